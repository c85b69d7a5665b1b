"""Raise what the request names; a `reason` is the exception's own."""


def build(config):
    return None


def predict(model, request):
    if "raise" not in request:
        return {}
    exc = ValueError(request["raise"])
    if "reason" in request:
        exc.reason = request["reason"]
    raise exc
