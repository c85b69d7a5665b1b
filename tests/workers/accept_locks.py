"""Take a lock that only a clean end gives back: after a kill there is no new start."""

import atexit
import os
import time
from pathlib import Path


def build(config):
    lock = config.args[0]
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    atexit.register(os.unlink, lock)
    return {}


def predict(model, request):
    if request.get("n", 1) >= 64:
        # long enough to be killed in
        time.sleep(0.05)
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42}
