import logging
import subprocess
import sys


class Job:
    def run_job(self, ctx):
        print("from print", ctx.params["text"])
        sys.stderr.write("from stderr " + ctx.params["text"] + "\nno end " + ctx.job_id)
        logging.getLogger("prints").warning("from logging %s", ctx.params["text"])
        sys.stdout.buffer.write(b"from bytes\n")
        subprocess.run(["/bin/sh", "-c", "echo from a child >&2"], check=True)
        sys.stdout.write("the last without an end")
