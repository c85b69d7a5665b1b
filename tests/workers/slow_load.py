"""Load until the file named by the first argument exists."""

import os
import time


def build(config):
    open(config.args[0] + ".begun", "w").close()
    while not os.path.exists(config.args[0]):
        time.sleep(0.002)


def predict(model, request):
    return {}
