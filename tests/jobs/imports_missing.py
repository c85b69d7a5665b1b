import a_module_that_nobody_has


class Job:
    def run_job(self, ctx):
        a_module_that_nobody_has.use()
