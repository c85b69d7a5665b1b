"""Return what cannot be a reply."""

BAD = {
    "nan": {"scores": [1.0, {"plddt": float("nan")}]},
    "set": {"found": {1, 2}},
    "list": [1, 2],
    "none": None,
    "not_ok": {"ok": False},
    "id": {"id": 3},
    "big": {"text": "x" * 2_000_000},
    "fine": {"text": "x"},
}


def build(config):
    return None


def predict(model, request):
    return BAD[request["what"]]
