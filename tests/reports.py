"""Measured reports as several machines would write them, for tests of what is shown."""

from collections.abc import Mapping
from pathlib import Path

import tomli_w

from tasks import measured
from tasks.measured import Report

GIB = 2**30
AT = "2026-11-29T12:00:00+00:00"
HOSTILE = '<script>alert(1)</script>$e^x$ "q" id="x" onload=y url(#z) \u202eevil\x1b[2J'
"""What another machine may call itself, as far as anybody checks."""
TIMING: dict[str, object] = {
    "spawn_to_ready_s": 9.0625,
    "load_s": 8.78618051400008,
    "first_s": 3.144005952000043,
    "held_s": [2.25, 2.5, 2.375],
    "held_median_s": 2.375,
    "fresh_s": 6.773221184999784,
}
MEMORY: dict[str, object] = {
    "rss_peak_bytes": 337170432,
    "device_peak_bytes": 3 * GIB,
    "growth_mib": 0.25,
    "device_growth_mib": 0.0,
    "ram_budget_gb": 0.75,
    "vram_budget_gb": 8.0,
}
ACCEPTED = {
    "accept": {"slug": "m", "at": AT, "machine": "lab7", "ok": False},
    "phase": [
        {"name": "queue", "ok": False, "reason": "queue_full", "text": "17 of 16"}
    ],
    "ladder": [
        {
            "size": size,
            "peak_gb": size / 1024,
            "pool": pool,
            "seconds": size / 64,
            "peak_source": "VmHWM",
        }
        for pool in ("host", "device")
        for size in (50, 100, 400, 1600)
    ],
}


def machine(
    name: str = "lab7", gpu: str = "NVIDIA H200", driver: str = "580.95.05"
) -> dict[str, object]:
    return {
        "hostname": name,
        "os": "Debian GNU/Linux 12 (bookworm)",
        "kernel": "6.1.0-40",
        "arch": "x86_64",
        "cpu_model": "AMD EPYC 9554",
        "cores": 64,
        "memory_bytes": 512 * GIB,
        "gpus": [{"name": gpu, "driver": driver, "memory_gb": 139.75}],
    }


def report(
    slug: str = "m",
    at: str = AT,
    *,
    on: Mapping[str, object] | None = None,
    **tables: object,
) -> Report:
    answer = {"values": {"native.score": 1.34}, "files": {}, "identical": True}
    given: dict[str, object] = {
        "inputs": {},
        "timing": TIMING,
        "memory": MEMORY,
        "answer": answer,
    }
    return Report(
        slug=slug,
        machine=machine() if on is None else on,
        certified={"at": at, "by": "remote-resident 0.1.0"},
        **{**given, **tables},
    )


def put(folder: Path, *reports: Report, accepted: bool = False) -> Path:
    """Write reports, the last of each slug as the current one."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in reports:
        measured.write(folder / f"{one.slug}.toml", one)
        if accepted:
            beside = folder / f"{one.slug}.accept.toml"
            beside.write_text(tomli_w.dumps(ACCEPTED))
    return folder


def over_time(name: str = "lab7") -> list[Report]:
    """Give reports of one machine before and after an update of its driver."""
    return [
        report(
            at=f"2026-11-{day:02}T12:00:00+00:00",
            on=machine(name, driver="580.95.05" if day < 20 else "590.10"),
            timing={**TIMING, "held_median_s": day / 8},
        )
        for day in (10, 15, 20, 25)
    ]
