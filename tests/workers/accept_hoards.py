"""Keep 16 MiB of each request."""

from pathlib import Path


def build(config):
    return []


def predict(model, request):
    model.append(b"x" * (16 << 20))
    Path(request["output_dir"], "out.txt").write_text("atom\n")
    return {"answer": 42}
