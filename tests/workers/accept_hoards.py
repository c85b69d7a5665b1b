"""Keep 16 MiB of each request."""

import time
from pathlib import Path


def build(config):
    return []


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    model.append(b"x" * (16 << 20))
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42}
