"""Load until the file named by the first argument exists."""

import time
from pathlib import Path


def build(config):
    go = Path(config.args[0])
    Path(f"{go}.begun").touch()
    while not go.exists():
        time.sleep(0.002)


def predict(model, request):
    return {}
