class Job:
    def run_job(self, ctx):
        for number in range(ctx.params["to"]):
            ctx.metric("count", number)
