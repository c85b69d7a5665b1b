"""Answer by where the caller is in the world."""

import os
import time
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "zone": os.environ.get("TZ")}
