"""Hears nothing; a file lets it go."""

import pathlib
import time


class Job:
    def run_job(self, ctx):
        ctx.log("waiting")
        until = pathlib.Path(ctx.params.get("until", "/nowhere"))
        while not until.exists():
            time.sleep(0.01)
