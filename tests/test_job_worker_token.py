"""The token of a worker: from a file, kept from others, and from its jobs."""

from pathlib import Path

import pytest
from small_job_worker import TOKEN, Start, start

from remote_resident.jobs.worker import argv

__all__ = ["start"]


def test_the_token_can_come_from_a_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    worker = start("chooses:Chooses", "--token-file", str(file))

    assert worker.ask("GET", "/health").status == 401
    worker.token = TOKEN
    assert worker.ask("GET", "/health").status == 200
    assert "job worker: " not in worker.log.replace("job worker plugin", "")


def test_a_token_that_others_can_read_is_taken_and_warned_of(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    rest = "--entry m:C --id a --socket s".split()

    assert argv.parse([*rest, "--token-file", str(file)], {}).token == TOKEN
    assert argv.parse([*rest, "--token", TOKEN], {}).token == TOKEN
    assert capfd.readouterr().err.splitlines() == [
        f"job worker: {file}: others may read or write it, mode 0600 wanted",
        "job worker: --token: every user can read it there, "
        "TU_JOB_TOKEN or --token-file wanted",
    ]


def test_a_token_file_that_is_not_there_or_empty_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch(0o600)
    for file in (tmp_path / "gone", empty):
        words = f"--entry m:C --id a --socket s --token-file {file}".split()
        with pytest.raises(SystemExit):
            argv.parse(words, {})

    gone, nothing = capfd.readouterr().err.splitlines()
    assert "No such file" in gone
    assert nothing == (
        "job worker: --token-file: no token of printable ASCII characters found"
    )


def test_no_job_sees_the_token(start: Start) -> None:
    worker = start(env={"TU_JOB_TOKEN": TOKEN})
    events = worker.events("sees", "says_environment", names=["TU_JOB_TOKEN"])

    assert events[0]["payload"] == {"TU_JOB_TOKEN": None}
    assert TOKEN not in worker.log
