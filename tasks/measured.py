"""The measured report: what this machine really did with a provider, and whether it
still would.

Reading is fast: small files are hashed, a weight's digest comes from the memo, and no
process is started unless a device is present.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import whole_file
from remote_resident.driver import device_count
from tasks.inputs import changed
from tasks.inputs import changes as changes
from tasks.inputs import inputs as inputs
from tasks.report_file import Report as Report
from tasks.report_file import read as read
from tasks.report_file import report_path as report_path
from tasks.report_file import there as there

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.gpus import Device
    from tasks.installed import Site

GIB = 2**30


def write(path: Path, report: Report) -> None:
    """Write a report whole, and keep it in the provider's history.

    Raises ProviderError (`disk_full`, else `unreadable`); the last report then stands.
    """
    import tomli_w

    from tasks import history

    text = tomli_w.dumps(_known(report.as_dict()))
    # first: what could not be kept is not certified either
    history.keep(path, report, text)
    whole_file.write(path, text.encode())


@functools.cache
def devices() -> "tuple[Device, ...]":
    """Describe the GPUs of this machine, asked once per process."""
    if not device_count():
        return ()
    from tasks import gpus

    return gpus.seen()


def machine_table(gpus: "Sequence[Device]") -> dict[str, object]:
    """Describe this machine and its devices for a report."""
    from remote_resident import machine

    return {**machine.facts(), "gpus": [dataclasses.asdict(gpu) for gpu in gpus]}


def weight_digests(provider: "ProviderManifest") -> dict[str, str | None]:
    """Give each weight's digest now, from the memo where it has it; None: not known."""
    known = provider.check_weights().digests if provider.weights_files else {}
    return {weight.name: known.get(weight.name) for weight in provider.weights_files}


def inputs_now(
    provider: "ProviderManifest",
    weights: Mapping[str, str] | None = None,
    site: "Site | None" = None,
) -> dict[str, object]:
    """Give what a report would rest on now, digests from the memo where it has them.

    `weights`: digests by name, `site`: the environment, as seen already; None: they
    are looked for.
    """
    if weights is None:
        known = weight_digests(provider)
    else:
        known = {w.name: weights.get(w.name) for w in provider.weights_files}
    return inputs(provider, known, provider.readings, site)


def compose(
    provider: "ProviderManifest",
    *,
    inputs: Mapping[str, object],
    timing: Mapping[str, object],
    memory: Mapping[str, object],
    answer: Mapping[str, object],
) -> Report:
    """Put a report together: what was seen, on which machine, when and by what."""
    from datetime import UTC, datetime

    from remote_resident import __version__

    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(
        slug=provider.slug,
        machine=machine_table(devices()),
        inputs=inputs,
        timing=timing,
        memory=memory,
        answer=answer,
        certified={"at": at, "by": f"remote-resident {__version__}"},
    )


def differs(
    provider: "ProviderManifest",
    report: Report,
    gpus: "Callable[[], Sequence[Device]]" = devices,
    weights: Mapping[str, str] | None = None,
    site: "Site | None" = None,
) -> list[str]:
    """Say what a report rests on and is not so any more; empty: it is current.

    `weights` and `site` as for `inputs_now`.
    """
    return [
        *changes(report.inputs, inputs_now(provider, weights, site)),
        *_devices_differ(report.machine.get("gpus", []), gpus()),
    ]


def over_budget(
    slug: str, key: str, budget_gb: float | None, peak_bytes: int | None
) -> str | None:
    """Say that a measured peak is above a declared budget; None: it is not, or unknown."""
    if budget_gb is None or peak_bytes is None or peak_bytes <= budget_gb * GIB:
        return None
    return (
        f"{slug}: {key}: {budget_gb} GiB declared, "
        f"{peak_bytes / GIB} GiB ({peak_bytes} bytes) measured"
    )


def _known(value: object) -> dict[str, object]:
    """Leave out what is not known: TOML has no null, and 0 would be a claim."""
    known = _without_none(value)
    assert isinstance(known, dict)
    return known


def _without_none(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value if item is not None]
    return value


def _devices_differ(was: object, now: "Sequence[Device]") -> Iterator[str]:
    listed = was if isinstance(was, list) else []
    before = [one if isinstance(one, Mapping) else {} for one in listed]
    for index in range(max(len(before), len(now))):
        old = before[index] if index < len(before) else {}
        new = dataclasses.asdict(now[index]) if index < len(now) else {}
        where = "" if len(before) < 2 and len(now) < 2 else f" {index}"
        yield from changed(f"gpu{where}", old.get("name"), new.get("name"))
        if old and new:
            yield from changed(f"driver{where}", old.get("driver"), new.get("driver"))
