"""Resolves what it is given again and again while another does the same."""

import pathlib
import time


class Job:
    def run_job(self, ctx):
        ctx.log("resolving")
        until = pathlib.Path(ctx.params.get("until", "/"))
        while not until.exists():
            time.sleep(0.005)
        ctx.emit("resolved", [ctx.resolve(url) for url in ctx.params["urls"]])
