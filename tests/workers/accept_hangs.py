"""Take for ever over whatever is large."""

import time
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    if request.get("n", 1) >= 64:
        time.sleep(600)
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42}
