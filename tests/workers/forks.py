"""Fork a child that waits for SIGTERM, stays, raises, or returns like the worker."""

import os
import signal
import time


def build(config):
    return None


def predict(model, request):
    pid = os.fork()
    if pid == 0:
        if request["child"] == "raises":
            raise SystemExit(5)
        if request["child"] in ("waits", "stays"):
            time.sleep(60)
        return {}
    if request["child"] == "stays":
        return {"child": pid}
    if request["child"] == "waits":
        os.kill(pid, signal.SIGTERM)
    return {"ended": os.waitpid(pid, 0)[1]}
