"""Answer by a variable that the manifest lets through."""

import os
import time
from pathlib import Path


def build(config):
    return {"threads": os.environ.get("OMP_NUM_THREADS")}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "threads": model["threads"]}
