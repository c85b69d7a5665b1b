"""Do what a request asks: die, hang, in Python or in C; write a file; say who this is."""

import os
import time
from pathlib import Path


def build(config):
    while os.environ.get("LOAD") == "hangs":
        time.sleep(0.05)


def predict(model, request):
    if "begun" in request:
        with Path(request["begun"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if request.get("dies"):
        os.kill(os.getpid(), 9)
    if request.get("hangs") == "python":
        while True:
            time.sleep(0.05)
    if request.get("hangs") == "c":
        # holds the interpreter: no other thread runs
        sum(range(10**12))
    if "output_dir" in request:
        path = Path(request["output_dir"], "out.txt")
        path.write_text("written")
    return {
        "uid": os.getuid(),
        "environ": dict(os.environ),
        "pid": os.getpid(),
        "echo": request.get("x"),
    }
