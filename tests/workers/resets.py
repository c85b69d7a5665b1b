"""Count what was called, in order; warm up before the first caller."""


def build(config):
    return ["build"]


def warm_up(model):
    model.append("warm_up")


def reset(model):
    model.append("reset")


def ready(model):
    return {"at_ready": list(model)}


def predict(model, request):
    model.append("predict")
    return {"called": list(model)}
