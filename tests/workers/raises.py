"""Raise what the request names; a `reason` is the exception's own."""


def build(config):
    return None


class Unspeakable(Exception):
    """Nothing can be learnt of it."""

    def __str__(self):
        raise RuntimeError("no text")

    @property
    def reason(self):
        raise RuntimeError("no reason")


def predict(model, request):
    if "raise" not in request:
        return {}
    if request["raise"] == "unspeakable":
        raise Unspeakable
    exc = ValueError(request["raise"])
    if "reason" in request:
        exc.reason = request["reason"]
    raise exc
