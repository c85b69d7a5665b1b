"""Pretends to be a job of torch: says what was released, and when."""

import pathlib
import sys
import types


class Job:
    def run_job(self, ctx):
        said = pathlib.Path(ctx.params["file"])
        said.touch()

        def say(line):
            said.write_text(said.read_text() + line)

        torch = types.ModuleType("torch")

        def empty_cache():
            say("released\n")
            if ctx.params.get("release") == "fails":
                raise RuntimeError("device lost")

        torch.cuda = types.SimpleNamespace(empty_cache=empty_cache)
        if not ctx.params.get("bare"):
            torch.cuda.is_initialized = lambda: True
        sys.modules["torch"] = torch
        say("ran\n")
        if ctx.params.get("raises"):
            raise ValueError("after all")
