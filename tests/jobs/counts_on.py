"""Counts to a number, waits for a file, counts on."""

import pathlib
import time


class Job:
    def run_job(self, ctx):
        for number in range(ctx.params["first"]):
            ctx.metric("count", number)
        until = pathlib.Path(ctx.params["until"])
        while not until.exists() and not ctx.cancelled:
            time.sleep(0.005)
        for number in range(ctx.params["first"], ctx.params["last"]):
            ctx.metric("count", number)
