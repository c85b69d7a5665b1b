"""Predict until the file `until` exists; `begun` is made as it begins."""

import os
import time


def build(config):
    return []


def predict(model, request):
    model.append(request.get("name"))
    if "begun" in request:
        open(request["begun"], "w").close()
    while "until" in request and not os.path.exists(request["until"]):
        time.sleep(0.002)
    return {"order": list(model)}
