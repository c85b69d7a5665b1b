"""Leave the session and fork a grandchild that ignores SIGTERM; say its pid."""

import os
import signal
import time


def build(config):
    return None


def predict(model, request):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            time.sleep(300)
        os._exit(0)
    os.wait()
    return {"grandchild": int(os.read(read, 32))}
