import os
import sys


class Job:
    def run_job(self, ctx):
        ctx.emit("read", [sys.stdin.read(), os.read(0, 10).decode()])
