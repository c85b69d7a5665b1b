"""Answer with what was asked, and say what `build` was given."""


def build(config):
    return dict(config)


def ready(model):
    return {"args": model["args"]}


def predict(model, request):
    return {"echo": request.get("x"), "op_was": request["op"]}
