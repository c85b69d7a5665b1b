class Job:
    def run_job(self, ctx):
        raise KeyboardInterrupt
