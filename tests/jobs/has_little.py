class Job:
    def run_job(self, ctx):
        pass


class NoRun:
    pass
