"""Says as many as it is told, as fast as it can, and how long it took."""

import time


class Job:
    def run_job(self, ctx):
        text = "x" * ctx.params.get("width", 80)
        began = time.monotonic()
        for number in range(ctx.params["lines"]):
            ctx.progress(number, text)
            if number % 2:
                ctx.log(text)
        ctx.emit("took", time.monotonic() - began)
