"""Answer with a text of `size` characters, or with many numbers."""


def build(config):
    return {}


def predict(model, request):
    size = request["bytes"]
    if size not in model:
        model[size] = [i / 7 for i in range(size // 19)]
    return {"numbers": model[size]}
