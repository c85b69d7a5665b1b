"""Give up on the first file that cannot be written, and the whole model with it."""

import os
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    try:
        Path(request["output_dir"], "out.txt").write_text("atom\n")
    except OSError:
        os._exit(3)
    return {"answer": 42}
