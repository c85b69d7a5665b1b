"""Every claim of a manifest that was measured otherwise is shown, and some fail a check."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_tree import MANIFEST
from small_tree import provider as load
from small_tree import tree as small_tree

from remote_resident.manifest import ProviderManifest
from tasks import claims, ladder
from tasks.ladder import Acceptance, Rung
from tasks.measured import Report

GIB = 2**30
AT = "2026-11-29T12:00:00+00:00"
HERE = {
    "hostname": "lab7",
    "os": "Debian GNU/Linux 12 (bookworm)",
    "arch": "x86_64",
    "gpus": [],
}
H200 = {"name": "NVIDIA H200", "driver": "580.95.05"}
NAMED = 'verified_on = "Debian 12, amd64"'
ON_DEVICE = '\n[gpu]\npolicy = "optional"\nvram_budget_gb = 2.0\n'


def provider(root: Path, *head: str, tables: str = "") -> ProviderManifest:
    """Load a provider with these lines at the head and tables at the end."""
    lines = "".join(f"{line}\n" for line in head)
    return load(small_tree(root / "a tree", toml=lines + MANIFEST + tables))


def report(machine: Mapping[str, object] = HERE, **tables: object) -> Report:
    blank: dict[str, object] = {
        name: {} for name in ("inputs", "timing", "memory", "answer")
    }
    return Report(
        slug="m",
        machine=machine,
        certified={"at": AT},
        **{**blank, **tables},
    )


def accepted(*rungs: Rung) -> Acceptance:
    return Acceptance(slug="m", at=AT, machine="lab7", ok=True, phases=(), rungs=rungs)


def rung(size: float, peak_gb: float | None, pool: str = "host") -> Rung:
    return Rung(size=size, pool=pool, peak_gb=peak_gb, seconds=1.0, peak_source="rss")


def notes(
    one: ProviderManifest,
    found: Report | None,
    state: str = "current",
    acceptance: Acceptance | None = None,
) -> list[str]:
    compared = claims.compared(one, found, state=state, acceptance=acceptance)
    assert compared.problems == ()
    return list(compared.notes)


# -- what fails a check


def test_a_budget_below_the_measured_peak_is_contradicted(tmp_path: Path) -> None:
    one = provider(tmp_path)
    [problem] = claims.compared(
        one, report(memory={"rss_peak_bytes": GIB}), state="current"
    ).problems

    assert problem.text == (
        "m: host.ram_budget_gb: 0.1 GiB declared, 1.0 GiB (1073741824 bytes) measured"
    )
    assert (problem.step, problem.reason) == ("measured", "over_budget")
    assert problem.name == "host.ram_budget_gb"


def test_every_declared_limit_that_was_passed_is_named_with_both_numbers(
    tmp_path: Path,
) -> None:
    one = provider(tmp_path, 'status = "broken"', tables=ON_DEVICE)
    found = report(
        memory={
            "device_peak_bytes": 3 * GIB,
            "growth_mib": 32.0,
            "device_growth_mib": 16.0,
        },
        timing={"spawn_to_ready_s": 1000.5},
    )

    assert [p.text for p in claims.compared(one, found, state="stale").problems] == [
        "m: gpu.vram_budget_gb: 2.0 GiB declared, 3.0 GiB (3221225472 bytes) measured",
        "m: smoke.max_growth_mib: 8.0 declared, 32.0 measured",
        "m: smoke.max_growth_mib: 8.0 declared, 16.0 on the device measured",
        "m: runtime.start_timeout_s: 900.0 s declared, 1000.5 s measured",
        f'm: status: "broken" declared, a smoke that passed at {AT} measured',
    ]


@pytest.mark.parametrize(
    "memory", [{}, {"rss_peak_bytes": GIB // 10}, {"growth_mib": 8.0}]
)
def test_what_was_not_measured_or_is_within_contradicts_nothing(
    tmp_path: Path, memory: dict[str, object]
) -> None:
    found = report(memory=memory)

    compared = claims.compared(provider(tmp_path), found, state="stale")
    assert compared == claims.Compared()


# -- what is worth a note


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        ("verified", "missing", '"verified" declared, no report of this machine found'),
        (
            "verified",
            "stale",
            '"verified" declared, no current report of this machine found',
        ),
        ("verified", "current", None),
        ("untested", "missing", None),
        (
            "untested",
            "current",
            f'"untested" declared, a smoke that passed at {AT} measured',
        ),
    ],
)
def test_a_status_that_this_machine_does_not_bear_out_is_noted(
    tmp_path: Path, status: str, state: str, said: str | None
) -> None:
    one = provider(tmp_path, f'status = "{status}"', NAMED)
    found = None if state == "missing" else report()

    assert notes(one, found, state) == ([f"m: status: {said}"] if said else [])


def test_another_machines_report_says_nothing_of_the_status_here(
    tmp_path: Path,
) -> None:
    one = provider(tmp_path, 'status = "verified"', NAMED)

    assert claims.compared(one, report(), state="stale", here=False).notes == ()


@pytest.mark.parametrize(
    ("claim", "gpus", "unnamed"),
    [
        ("2026-11-29, 2 vCPU x86-64, Debian 12, CPU only", [], None),
        ("Debian 12, x86_64, H200, driver 580", [H200], None),
        ("2026, Ubuntu 24.04, aarch64, NVIDIA GB10", [], "all three"),
        ("Debian 12 amd64, one A100", [H200], "NVIDIA H200"),
        ("Debian 12 amd64, CPU", [H200, H200], "NVIDIA H200"),
        ("Debian 11 amd64, cpu", [], "Debian GNU/Linux 12 (bookworm)"),
    ],
)
def test_what_verified_on_does_not_name_of_the_machine_is_noted(
    tmp_path: Path, claim: str, gpus: list[object], unnamed: str | None
) -> None:
    head = ('status = "verified"', f'verified_on = "{claim}"')
    one = provider(tmp_path, *head, tables=ON_DEVICE)

    if unnamed == "all three":
        unnamed = "Debian GNU/Linux 12 (bookworm), x86_64, CPU only"
    assert notes(one, report(HERE | {"gpus": gpus})) == (
        [
            f'm: verified_on: "{claim}" declared, which does not name {unnamed} of '
            "the machine that measured"
        ]
        if unnamed
        else []
    )


def test_a_device_that_a_provider_does_not_use_need_not_be_named(
    tmp_path: Path,
) -> None:
    one = provider(tmp_path, 'status = "verified"', NAMED)

    assert notes(one, report(HERE | {"gpus": [H200]})) == []


LADDERS = """
[[host.ladder]]
size = 100
peak_gb = 0.05
[[host.ladder]]
size = 200
peak_gb = 0.08
"""


def test_a_ladder_below_what_a_suite_measured_is_noted_at_its_step(
    tmp_path: Path,
) -> None:
    one = provider(tmp_path, tables=LADDERS)
    acceptance = accepted(
        rung(50, 0.05),
        rung(90, 0.055),
        rung(100, 0.06),
        rung(150, 0.0801),
        rung(200, 0.08),
        rung(300, None),
    )

    assert notes(one, None, "missing", acceptance) == [
        "m: host.ladder: 0.05 GiB for sizes to 100 declared, 0.06 GiB at size 100 "
        f"measured by the acceptance suite at {AT}",
        "m: host.ladder: 0.08 GiB for sizes to 200 declared, 0.0801 GiB at size 150 "
        f"measured by the acceptance suite at {AT}",
    ]


def test_a_size_above_the_ladder_is_held_against_the_budget_as_admission_does(
    tmp_path: Path,
) -> None:
    one = provider(tmp_path, tables=LADDERS)

    above = accepted(rung(201, 0.2), rung(300, 0.15))
    assert notes(one, None, "missing", accepted(rung(201, 0.1))) == []
    assert notes(one, None, "missing", above) == [
        "m: host.ram_budget_gb: 0.1 GiB declared, 0.2 GiB at size 201 measured by the "
        f"acceptance suite at {AT}"
    ]


def test_a_device_ladder_is_held_against_device_peaks_only(tmp_path: Path) -> None:
    one = provider(tmp_path, tables=ON_DEVICE)

    assert notes(one, None, "missing", accepted(rung(9, 1.5, "device"))) == []
    [note] = notes(one, None, "missing", accepted(rung(9, 2.5, "device")))
    assert note.startswith("m: gpu.vram_budget_gb: 2.0 GiB declared, 2.5 GiB")


# -- what a suite measured, read


ACCEPTED = f"""
[accept]
slug = "m"
at = "{AT}"
machine = "lab7"
ok = false
[[phase]]
name = "held"
ok = false
reason = "grows"
text = "it grows"
seconds = 2.5
[[ladder]]
size = 200
peak_gb = 2.0
pool = "host"
seconds = 4.0
peak_source = "rss"
[[ladder]]
size = 100
pool = "host"
seconds = 1.0
peak_source = "rss"
"""


def test_what_a_suite_wrote_is_read_in_order_of_size(tmp_path: Path) -> None:
    path = ladder.beside(tmp_path / "m.toml")
    path.write_text(ACCEPTED)

    found = ladder.read(path)
    assert path.name == "m.accept.toml"
    assert found is not None
    assert [(one.size, one.peak_gb) for one in found.rungs] == [(100, None), (200, 2.0)]
    assert (found.ok, found.machine, found.phases[0].reason) == (False, "lab7", "grows")
    assert ladder.read(tmp_path / "other.accept.toml") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[accept]\n", "no [accept] with ok found"),
        ("[accept]\nok = true\n[ladder]\n", "ladder that is no list of tables found"),
        (
            '[accept]\nok = true\n[[ladder]]\nsize = nan\npool = "host"\n',
            "a [[ladder]] of size None, pool 'host' found",
        ),
        (
            '[accept]\nok = true\n[[ladder]]\nsize = 1\npool = "gpu"\n',
            "a [[ladder]] of size 1, pool 'gpu' found",
        ),
    ],
)
def test_what_no_suite_wrote_is_named_and_not_guessed(
    tmp_path: Path, text: str, found: str
) -> None:
    path = tmp_path / "m.accept.toml"
    path.write_text(text)

    accepted, damaged = ladder.found(tmp_path / "m.toml")
    assert accepted is None
    assert damaged == [f"{path}: {found}, what an acceptance suite writes wanted"]


@pytest.mark.parametrize("key", ["slug", "at", "machine"])
def test_a_number_of_endless_digits_in_a_suites_file_is_damage(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "m.accept.toml"
    path.write_text(f"[accept]\nok = true\n{key} = 0x{'f' * 5000}\n")

    [damage] = ladder.found(tmp_path / "m.toml")[1]
    assert damage.startswith(f"{path}: Exceeds the limit")


def test_a_suites_file_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.accept.toml")

    [damage] = ladder.found(tmp_path / "m.toml")[1]
    assert "not a regular file" in damage


@pytest.mark.parametrize("peak", [2**63, 2**4000])
def test_a_peak_of_endless_digits_breaks_no_comparison(
    tmp_path: Path, peak: int
) -> None:
    one = provider(tmp_path)
    odd = report(memory={"rss_peak_bytes": peak})

    assert len(claims.compared(one, odd, state="current").problems) <= 1
