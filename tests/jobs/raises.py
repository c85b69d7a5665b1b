class Job:
    def run_job(self, ctx):
        ctx.log("before")
        raise ValueError("out of amino acids")
