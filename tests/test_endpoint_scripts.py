"""Scripts run as approved, with nothing but their own, and tell nobody a credential."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_endpoint import CANARY, DEADLINE_S, endpoint, wait_for

from remote_resident import processes
from remote_resident.endpoints import panel
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.scripts import LANG, PATH, Run, environment, finish


@pytest.fixture
def instance() -> Iterator[str]:
    name = os.urandom(8).hex()
    yield name
    processes.end_all(name, grace_s=0.0)


def ran(script: str, instance: str, kind: str = "start", **more: object) -> int | None:
    run = Run.begin(with_script(script), kind, instance, **more)  # type: ignore[arg-type]  # a test's own
    status = finish(run, DEADLINE_S)
    run.settle(DEADLINE_S)
    return status


def with_script(script: str) -> Endpoint:
    return endpoint("s", url="http://127.0.0.1:20001", start=script, stop=script)


def printed() -> list[str]:
    return [line for line in panel.shown("s-service") if not line.startswith("== ")]


def test_a_script_gets_exactly_its_names_and_the_start_alone_the_credential(
    instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SOMETHING", "inherited")
    directory = with_script("").service_dir
    expected = {
        f"PATH={PATH}",
        f"HOME={directory}",
        f"LANG={LANG}",
        "HOST_PORT=20001",
        f"SERVICE_DIR={directory}",
        f"TU_RESIDENT_INSTANCE={instance}",
    }

    ran("env -0 | tr '\\0' '\\n' > e", instance, "start", credential=CANARY)
    started = (Path(directory or "") / "e").read_text().splitlines()
    ran("env -0 | tr '\\0' '\\n' > e", instance, "stop", hide=CANARY)
    stopped = (Path(directory or "") / "e").read_text().splitlines()

    # what the shell makes for itself
    own = ("PWD=", "OLDPWD=", "SHLVL=", "_=")
    assert {line for line in stopped if not line.startswith(own)} == expected
    assert {line for line in started if not line.startswith(own)} == {
        *expected,
        f"NVIDIA_API_KEY={CANARY}",
    }


def test_a_script_runs_in_its_own_directory_that_others_cannot_enter(
    instance: str,
) -> None:
    ran("pwd", instance)
    directory = Path(with_script("").service_dir or "")

    assert printed() == [str(directory)]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_first_line_names_the_interpreter_and_the_bytes_are_the_approved(
    instance: str,
) -> None:
    script = "#!/bin/cat\nwhat is run is what is shown\n"

    assert ran(script, instance) == 0
    assert "\n".join(printed()).rstrip() == script.rstrip()


def test_what_runs_cannot_be_changed_by_anybody(instance: str) -> None:
    ran('echo x >> "$0"; echo "kept $?"', instance)

    assert printed()[-1].startswith("kept ")
    assert printed()[-1] != "kept 0"


def test_an_interpreter_that_is_missing_is_an_error_and_told_on_the_panel(
    instance: str,
) -> None:
    with pytest.raises(FileNotFoundError):
        Run.begin(with_script("#!/nowhere/sh\n"), "start", instance)

    assert "start cannot be run" in panel.shown("s-service")[-1]


def test_a_script_past_its_deadline_is_ended_with_its_group_not_its_service(
    instance: str,
) -> None:
    own = "setsid sh -c 'echo $$ > own; exec sleep 1000'"
    script = f"sleep 1000 & echo $! > child; {own} & wait"
    run = Run.begin(with_script(script), "stop", instance)
    directory = Path(with_script("").service_dir or "")
    service = wait_for(lambda: (directory / "own").exists() and _pid(directory / "own"))
    child = _pid(directory / "child")

    assert finish(run, 0.01) is None
    assert run.timed_out
    # a signal that was sent may take a moment
    wait_for(lambda: child not in processes.members(instance), "the end of its group")
    assert service in processes.members(instance)


def _pid(path: Path) -> int:
    text = path.read_text().strip()
    return int(text) if text else 0


def test_a_credential_is_on_no_panel_also_in_pieces_and_from_a_child(
    instance: str, home: Path
) -> None:
    script = (
        'printf %s "${NVIDIA_API_KEY%canary*}"; sleep 0.1; '
        'echo "${NVIDIA_API_KEY#nvapi-}"; env; '
        '(sleep 0.1; echo "late $NVIDIA_API_KEY") & echo end'
    )
    ran(script, instance, "start", credential=CANARY, hide=CANARY)

    assert "[credential]" in printed()
    assert "late [credential]" in printed()
    found = [p for p in home.rglob("*") if p.is_file()]
    assert found
    assert [p for p in found if CANARY.encode() in p.read_bytes()] == []


def test_the_panel_is_its_owners_alone_and_bounded(instance: str) -> None:
    ran("head -c 15000000 /dev/zero | tr '\\0' 'x' | fold -w 100", instance)
    path = panel.path_of("s-service")
    sizes = [p.stat().st_size for p in path.parent.glob("s-service.log*")]

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert max(sizes) < 12 * 2**20
    assert len(sizes) > 1


def test_what_a_service_prints_goes_on_to_the_panel_after_the_start_has_ended(
    instance: str,
) -> None:
    script = "setsid sh -c 'until [ -e go ]; do sleep 0.02; done; echo later' &"
    run = Run.begin(with_script(script), "start", instance)
    assert finish(run, DEADLINE_S) == 0
    (Path(with_script("").service_dir or "") / "go").touch()

    wait_for(lambda: "later" in printed())
    run.settle(DEADLINE_S)
    assert run.panel.returncode == 0


def test_an_environment_names_no_credential_unless_it_is_given() -> None:
    assert "NVIDIA_API_KEY" not in environment(with_script(""), "i")
