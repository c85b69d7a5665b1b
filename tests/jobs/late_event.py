"""Goes on talking in a thread after it has returned."""

import pathlib
import threading
import time


class Job:
    def run_job(self, ctx):
        def talk():
            while not pathlib.Path(ctx.params["until"]).exists():
                ctx.log("still talking")
                time.sleep(0.001)

        threading.Thread(target=talk, daemon=True).start()
