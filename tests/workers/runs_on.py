"""Run Python in threads that come and go for ever, in `load` or in `predict`."""

import threading


def build(config):
    if config.args == ["load"]:
        run_on()


def predict(model, request):
    run_on()


def run_on():
    def work(depth=0):
        if depth < 30:
            work(depth + 1)

    print("runs on", flush=True)
    while True:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
