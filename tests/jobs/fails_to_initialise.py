import sys


class Raises:
    def initialise_runtime(self):
        raise OSError("weights are gone")

    def shutdown_runtime(self):
        print("never to be called")

    def run_job(self, ctx):
        ctx.log("never to be run")


class Exits(Raises):
    def initialise_runtime(self):
        sys.exit("no card")
