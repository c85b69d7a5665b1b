"""Forks children and ends each at once, as a pool of processes does."""

import os
import signal
import time


class Job:
    def run_job(self, ctx):
        parent = os.getpid()
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                while os.getppid() == parent:
                    time.sleep(0.01)
                os._exit(0)
            os.kill(pid, signal.SIGTERM)
            ctx.emit("ended", os.waitpid(pid, 0)[1])
