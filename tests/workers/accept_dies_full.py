"""Give up on the first file that cannot be written, and the whole model with it."""

import os
import time
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    try:
        Path(request["output_dir"], "out.txt").write_text("atom\n")
    except OSError:
        os._exit(3)
    return {"answer": 42}
