"""Fork a child while loading that ends by an exception, and wait for it."""

import os


def build(config):
    if os.fork() == 0:
        raise SystemExit(4)
    return {"ended": os.waitstatus_to_exitcode(os.wait()[1])}


def predict(model, request):
    return model
