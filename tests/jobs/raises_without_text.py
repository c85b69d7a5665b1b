class Rude(Exception):
    def __str__(self):
        raise RuntimeError("no text for you")


class Job:
    def run_job(self, ctx):
        raise Rude
