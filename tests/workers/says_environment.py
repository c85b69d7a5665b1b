"""Answer with the process's environment and argv, as the kernel has them."""

import os
from pathlib import Path


def build(config):
    return None


def predict(model, request):
    argv = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return {"environ": dict(os.environ), "argv": [word.decode() for word in argv]}
