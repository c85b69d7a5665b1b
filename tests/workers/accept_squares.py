"""Take memory by the square of the input: little in a smoke, too much at the end."""

import time
from pathlib import Path


def build(config):
    return {}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    pairs = bytearray(b"x" * request.get("n", 1) ** 2 * 16384)
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "pairs": len(pairs)}
