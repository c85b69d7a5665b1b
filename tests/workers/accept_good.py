"""Answer as a model should: by the request alone, with a file, in a moment."""

import time
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    time.sleep(0.02)
    Path(request["output_dir"], "out.txt").write_text("atom\n" * request.get("n", 1))
    return {"answer": 42, "n": request.get("n", 1)}
