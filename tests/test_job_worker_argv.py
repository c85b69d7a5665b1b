"""The command line of a worker, and its settings."""

import pytest

from remote_resident.jobs.worker import argv


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("--socket s", "no --entry found, module:Class wanted"),
        (
            "--entry m:C --id a",
            "--socket, --host and --port: neither found, one transport wanted",
        ),
        (
            "--entry m:C --id a --socket s --host h --port 1",
            "--socket, --host and --port: both found, one transport wanted",
        ),
        (
            "--entry m:C --id a --host h",
            "--host and --port: one of them found, both wanted",
        ),
        (
            "--entry m:C --id a --port 1",
            "--host and --port: one of them found, both wanted",
        ),
        (
            "--entry m:C --id a --host h --port 0",
            "--host: no token found, TU_JOB_TOKEN or --token-file wanted",
        ),
        (
            "--entry m:C --id a --host h --port 65536",
            "--port: 65536 found, 0 to 65535 wanted",
        ),
        ("--entry m:C --id a --sock s", "unrecognized arguments: --sock s"),
        (
            "--entry m:C --id ../a --socket s",
            "--id: '../a' found, 1 to 64 of A-Z a-z 0-9 _ - wanted",
        ),
        (
            "--entry m:C --socket s",
            "--id: '' found, 1 to 64 of A-Z a-z 0-9 _ - wanted",
        ),
    ],
)
def test_a_command_line_that_is_none_is_one_line_and_2(
    capfd: pytest.CaptureFixture[str], typed: str, line: str
) -> None:
    with pytest.raises(SystemExit) as refusal:
        argv.parse(typed.split(), {})

    assert refusal.value.code == 2
    assert capfd.readouterr().err == f"job worker: {line}\n"


@pytest.mark.parametrize(
    ("text", "grace_s", "warned"),
    [
        ("", 60.0, False),
        ("2.5", 2.5, False),
        ("0", None, False),
        ("-3", None, False),
        ("soon", 60.0, True),
        ("nan", 60.0, True),
        ("inf", 60.0, True),
    ],
)
def test_a_setting_is_read_or_falls_back_with_a_warning(
    capfd: pytest.CaptureFixture[str], text: str, grace_s: float | None, warned: bool
) -> None:
    words = ["--entry", "m:C", "--id", "a", "--socket", "s"]
    options = argv.parse(words, {"TU_JOB_CANCEL_GRACE_S": text})

    assert (options.grace_s, options.keepalive_s) == (grace_s, None)
    assert bool(capfd.readouterr().err) == warned
