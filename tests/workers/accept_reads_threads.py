"""Answer by a variable that the manifest lets through."""

import os
from pathlib import Path


def build(config):
    return {"threads": os.environ.get("OMP_NUM_THREADS")}


def predict(model, request):
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "threads": model["threads"]}
