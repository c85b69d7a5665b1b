"""Answer as a model should: by the request alone, with a file, in a moment."""

import time
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    Path(request["output_dir"], "out.txt").write_text("atom\n" * request.get("n", 1))
    return {"answer": 42, "n": request.get("n", 1)}
