"""Run Python in threads that come and go until told to stop."""

import threading


class RunsOn:
    def run_job(self, ctx):
        def work(depth=0):
            if depth < 30:
                work(depth + 1)

        while not ctx.cancelled:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
