"""Pad each input to the largest that was ever seen, which shows in the answer."""

import time
from pathlib import Path


def build(config):
    return {"largest": 0}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    model["largest"] = max(model["largest"], request.get("n", 1))
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "padded": model["largest"]}
