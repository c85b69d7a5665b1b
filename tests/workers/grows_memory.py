"""Take `mib` MiB, and keep it if `keep` says so."""


def build(config):
    return []


def predict(model, request):
    block = bytearray(request["mib"] << 20)
    block[::4096] = b"x" * len(block[::4096])
    if request.get("keep"):
        model.append(block)
    return {"kept": len(model)}
