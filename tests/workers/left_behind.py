"""Leave the session and fork a grandchild that ignores SIGTERM; say its pid.

Or start a child that has nothing of us, neither the session nor the environment.
"""

import os
import signal
import subprocess
import time


def build(config):
    return None


def predict(model, request):
    if "bare" in request:
        bare = subprocess.Popen(["/bin/sleep", "300"], env={}, start_new_session=True)
        return {"child": bare.pid}
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
