"""Load something that looks like torch with a device, and count what is released."""

import os
import sys
import types


def build(config):
    torch = types.ModuleType("torch")
    torch.held = 0
    torch.released = 0
    torch._C = types.SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: clear(torch))
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_allocated=lambda: torch.held,
        memory_reserved=lambda i: 1000 + torch.held,
        max_memory_reserved=lambda i: 5000,
    )
    sys.modules["torch"] = torch
    return torch


def clear(torch):
    torch.released += torch.held
    torch.held = 0
    if os.environ.get("CLEARING_FAILS"):
        raise RuntimeError("CUDA error")


def predict(model, request):
    model.held += 8
    return {"released_before": model.released}
