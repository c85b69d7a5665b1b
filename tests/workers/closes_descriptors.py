"""Close the standard descriptors, or with `all` every one there is."""

import os


def build(config):
    return None


def predict(model, request):
    os.closerange(3 if request.get("all") else 0, 256 if request.get("all") else 3)
    return {"fine": True}
