class Job:
    def run_job(self, ctx):
        refused = []
        for name in ctx.params["names"]:
            try:
                ctx.emit(name, 1)
            except ValueError:
                refused.append(name)
        ctx.emit("refused", refused)
