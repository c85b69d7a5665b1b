"""Touch `begun`, wait for `until`, touch `done`; what is not named is left out."""

import os
import time
from pathlib import Path


def build(config):
    return []


def predict(model, request):
    if "begun" in request:
        Path(request["begun"]).touch()
    while "until" in request and not Path(request["until"]).exists():
        time.sleep(0.002)
    if "done" in request:
        Path(request["done"]).touch()
    model.append(request.get("name"))
    return {"pid": os.getpid(), "order": list(model)}
