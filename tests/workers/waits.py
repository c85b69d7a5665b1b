"""Predict until the file `until` exists; `begun` is made as it begins."""

import time
from pathlib import Path


def build(config):
    return []


def predict(model, request):
    model.append(request.get("name"))
    if "begun" in request:
        Path(request["begun"]).touch()
    while "until" in request and not Path(request["until"]).exists():
        time.sleep(0.002)
    return {"order": list(model)}
