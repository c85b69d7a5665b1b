class Job:
    def run_job(self, ctx):
        ctx.log("never said")
        yield 1
