"""Pad each input to the largest that was ever seen, which shows in the answer."""

from pathlib import Path


def build(config):
    return {"largest": 0}


def predict(model, request):
    model["largest"] = max(model["largest"], request.get("n", 1))
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42, "padded": model["largest"]}
