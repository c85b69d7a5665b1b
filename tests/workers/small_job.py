"""A job class that does what its params say."""

import contextlib
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# in a container it cannot be written
with contextlib.suppress(OSError):
    (HERE / "loading").touch()
while (HERE / "slow").exists():
    time.sleep(0.01)


class Job:
    def run_job(self, ctx):
        does = ctx.params.get("does", "results")
        print(f"job {ctx.job_id} does {does}", file=sys.stderr)
        getattr(self, does)(ctx)

    def results(self, ctx):
        ctx.progress(50, "half way")
        ctx.metric("loss", 0.25)
        ctx.log("a line")
        ctx.result(f"file:///{ctx.params.get('x', 0)}")

    def device(self, ctx):
        ctx.result(os.environ.get("CUDA_VISIBLE_DEVICES"))

    def says(self, ctx):
        for name in ctx.params["names"]:
            ctx.result(os.environ.get(name))

    def prints(self, ctx):
        for number in range(ctx.params["lines"]):
            print(f"line {number}", file=sys.stderr)

    def writes(self, ctx):
        Path(ctx.state_dir, "out.txt").write_text("CA 1.0")
        self.results(ctx)

    def raises(self, ctx):
        raise ValueError("of the job")

    def waits(self, ctx):
        """Wait for a file, or for the cancel."""
        Path(ctx.params["began"]).write_text(str(os.getpid()))
        ctx.progress(1, "waits")
        while not ctx.cancelled and not Path(ctx.params["go"]).exists():
            time.sleep(0.01)

    def ignores(self, ctx):
        Path(ctx.params["began"]).write_text(str(os.getpid()))
        while not Path(ctx.params["go"]).exists():
            time.sleep(0.01)

    def sleeps(self, ctx):
        while not ctx.cancelled:
            time.sleep(0.01)

    def caches(self, ctx):
        """Stand in for a framework that says when its cache is given back."""
        import types

        def empty_cache():
            Path(ctx.params["emptied"]).touch()

        cuda = types.SimpleNamespace(
            is_initialized=lambda: True, empty_cache=empty_cache
        )
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)

    def chats(self, ctx):
        for number in range(ctx.params["lines"]):
            ctx.log(f"line {number}")

    def gives(self, ctx):
        for number in range(ctx.params["number"]):
            ctx.result(number)

    def holds(self, ctx):
        """Keep the interpreter for itself, as one call into C does."""
        import ctypes

        Path(ctx.params["began"]).write_text(str(os.getpid()))
        time_s = ctypes.c_uint(int(ctx.params["seconds"]))
        hold = ctypes.PyDLL(None)
        hold.sleep(time_s) if time_s.value else hold.usleep(ctypes.c_uint(500_000))

    def nests(self, ctx):
        """Give what is deeper than a reader of JSON may bear."""
        found = []
        for _ in range(900):
            found = [found]
        ctx.result(found)
        ctx.emit("deep", found)

    def steers(self, ctx):
        """Write and give what would steer a terminal."""
        text = "\x1b[2J\x1b]0;title\x07\u202ea\rb"
        print(text, file=sys.stderr)
        for number in range(5):
            ctx.result(f"{text}\n{number}")

    def exits(self, ctx):
        print("last words", file=sys.stderr)
        os._exit(ctx.params.get("status", 9))
