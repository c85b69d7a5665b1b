"""Answer the same request differently each time, in one of its values."""

import random
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "scores": [random.random() for _ in range(3)]}
