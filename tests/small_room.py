"""Providers, readings and holders for the tests of room, and what holds for real."""

import os
from pathlib import Path

from remote_resident import room
from remote_resident.admission import Budget, Gpu, Holder, Memory, Readings
from remote_resident.manifest import ProviderManifest, load

HOST = Memory(total_gb=128, free_gb=100, available_gb=110)


CARD = Gpu(index=0, uuid="GPU-0", name="Card", total_gb=80, free_gb=80)


NO_CARD = Readings(HOST, [])


ONE_CARD = Readings(HOST, [CARD])


GPU = '[gpu]\npolicy = "required"\nvram_budget_gb = 20\n'


UNMEASURED = '[gpu]\npolicy = "required"\nbudget_unmeasured = true\n'


def provider(
    tree: Path, gpu: str = "", *, ram: str = "ram_budget_gb = 1", slug: str = "echo"
) -> ProviderManifest:
    folder = tree / "manifests" / slug
    folder.mkdir(parents=True)
    (folder / "w.py").write_text("")
    (folder / "provider.toml").write_text(
        f'slug = "{slug}"\n[runtime]\nworker = "w.py"\n{gpu}[host]\n{ram}\n'
        '[env]\npython = "$P"\n[smoke]\nrequest = { a = 1 }\n'
    )
    return load(folder / "provider.toml", tree)


def numbers(budget: Budget) -> tuple[float | None, float | None, str]:
    return budget.vram_gb, budget.ram_gb, budget.source


def other(ram: float, **more: object) -> Holder:
    said: dict[str, object] = {
        "slug": "other",
        "tree": "/b",
        "instance": "i",
        "pids": (11,),
        "uid": os.geteuid(),
        "device": None,
        "budget": Budget(0.0, ram, "declared"),
        "loading": False,
        "resident_gb": ram,
    }
    return Holder(**{**said, **more})  # type: ignore[arg-type]


SIT = """\
#!/bin/sh
echo there
read -r over
"""


def held_in(tree: Path) -> list[Holder]:
    return [holder for holder in room.holders() if holder.tree == str(tree)]
