import time


class Job:
    def run_job(self, ctx):
        ctx.log("waiting")
        while not ctx.cancelled:
            time.sleep(0.005)
        raise InterruptedError("told to")
