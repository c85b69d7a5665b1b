"""Fork a child that waits for SIGTERM, raises, or returns as if it were the worker."""

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
        if request["child"] == "waits":
            time.sleep(60)
        return {}
    if request["child"] == "waits":
        os.kill(pid, signal.SIGTERM)
    return {"ended": os.waitpid(pid, 0)[1]}
