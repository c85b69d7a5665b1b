"""Says values that JSON does not have, and goes on."""

import pathlib


class Rude:
    def __repr__(self):
        raise RuntimeError("no repr for you")


class Sneaky(dict):
    def items(self):
        raise RuntimeError("no items for you")


def circle():
    found = []
    found.append(found)
    return found


def deep():
    found = []
    for _ in range(100_000):
        found = [found]
    return found


ODD = {
    "set": {1},
    "path": pathlib.PurePosixPath("/x"),
    "nan": float("nan"),
    "infinity": [1.0, -float("inf")],
    "key": {(1, 2): 3},
    "rude": Rude(),
    "sneaky": Sneaky(a=object()),
    "circle": circle(),
    "deep": deep(),
    "long": 10**5000,
    "surrogate": "\ud800",
    "bytes": b"\xff",
}


class Job:
    def run_job(self, ctx):
        for name, value in ODD.items():
            ctx.emit(name, value)
            ctx.metric(name, value)
        ctx.progress(float("nan"), object(), {1})
        ctx.log(b"bytes")
        ctx.result(None)
        ctx.log("still here")
