class Job:
    def run_job(self, ctx):
        ctx.log("here")
