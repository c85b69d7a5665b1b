"""Answer with what was asked, and say what `build` and the process were given."""

import os
import sys


def build(config):
    return dict(config)


def ready(model):
    return {"args": model["args"]}


def predict(model, request):
    if "about" not in request:
        return {"echo": request.get("x")}
    return {
        "config": model,
        "request": {name: request[name] for name in sorted(request)},
        "argv": sys.argv,
        "path": sys.path,
        "instance": os.environ.get("TU_RESIDENT_INSTANCE"),
        "loaded": sorted(sys.modules),
    }
