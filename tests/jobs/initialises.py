"""A runtime that comes up once a file is there; says when it is taken down."""

import os
import pathlib
import threading
import time


class Job:
    def initialise_runtime(self):
        print("coming up in", threading.current_thread().name, flush=True)
        until = pathlib.Path(os.environ.get("UP", "/"))
        while not until.exists():
            time.sleep(0.005)
        self.up = True

    def shutdown_runtime(self):
        print("taken down in", threading.current_thread().name, flush=True)

    def run_job(self, ctx):
        ctx.log(f"up: {self.up}")
