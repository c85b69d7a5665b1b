"""What runs a cell that is Python code: read from one descriptor, result to another.

Run by path in a process of its own: `code.py CODE_FD RESULT_FD`.
"""

import contextlib
import json
import linecache
import os
import sys
import types

NAME = "<cell>"


def main(code_fd: int, result_fd: int) -> None:
    """Run the code as a program of its own; its variable `result` is its answer."""
    with open(code_fd, encoding="utf-8", errors="surrogateescape") as file:
        code = file.read()
    # as in `python -c`: what lies beside this file is not the cell's
    sys.path[0] = ""
    sys.argv = [NAME]
    cell = types.ModuleType("__main__")
    for name in ("BASE_URL", "INFER_API_KEY"):
        if name in os.environ:
            setattr(cell, name, os.environ[name])
    sys.modules["__main__"] = cell
    # so that a traceback shows the cell's lines, and none of ours
    sys.excepthook = _show
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    try:
        exec(compile(code, NAME, "exec"), cell.__dict__)
    finally:
        _give(result_fd, cell.__dict__.get("result"))


def _show(
    kind: type[BaseException], exc: BaseException, frames: types.TracebackType | None
) -> None:
    import traceback

    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    traceback.print_exception(kind, exc, frames)


def _give(fd: int, result: object) -> None:
    """Write a result as JSON; what JSON cannot say is given as its repr.

    What has no repr either, nested too deep or too long, is given as an object's.
    """
    for say in (lambda one: one, repr, object.__repr__):
        # an object of the cell's own may raise whatever it likes
        with contextlib.suppress(Exception):
            text = json.dumps(say(result), allow_nan=False)
            break
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
