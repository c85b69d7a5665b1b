"""Fork a child that waits, and end it with SIGTERM."""

import os
import signal
import time


def build(config):
    return None


def predict(model, request):
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(1)
    os.kill(pid, signal.SIGTERM)
    return {"ended": os.waitpid(pid, 0)[1]}
