"""tu remote logs: followed until somebody leaves, and no control code for a terminal."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import DEADLINE_S, TU, tree
from fake_steps import PLAIN_SIGNALS

from remote_resident import places

__all__ = ["tree"]


def test_a_log_is_followed_until_a_signal(tree: Path) -> None:
    log = places.log_path("alpha", tree)
    places.ensure(log.parent)
    log.write_text("one\ntwo\n")
    process = subprocess.Popen(
        [*PLAIN_SIGNALS, *TU, "remote", "logs", "alpha", "--follow", "--lines", "1"],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None

    first = process.stdout.readline()
    with log.open("a") as file:
        file.write("three\n")
    second = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)

    assert (first, second) == ("two\n", "three\n")
    assert (process.returncode, err) == (130, "tu: cut by SIGINT\n")


@pytest.mark.parametrize("full", [False, True], ids=["left", "full"])
def test_a_log_is_followed_while_somebody_takes_it(tree: Path, full: bool) -> None:
    log = places.log_path("alpha", tree)
    places.ensure(log.parent)
    log.write_text("one\n")
    read, write = os.pipe()
    os.close(read)
    out = os.open("/dev/full", os.O_WRONLY) if full else write
    followed = subprocess.run(
        [*TU, "remote", "logs", "alpha", "--follow"],
        cwd=tree,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    for end in {out, write}:
        os.close(end)

    lost = "standard output: No space left on device: what follows is lost\n"
    assert (followed.returncode, followed.stderr) == ((1, lost) if full else (0, ""))


def test_control_codes_of_a_model_reach_no_terminal(tree: Path) -> None:
    log = places.log_path("alpha", tree)
    places.ensure(log.parent)
    log.write_text("\x1b[2Jgone\tnow\r\n")
    argv = [*TU, "remote", "logs", "alpha"]
    ours, theirs = os.openpty()
    try:
        subprocess.run(argv, cwd=tree, stdout=theirs, check=True, timeout=DEADLINE_S)
        shown = os.read(ours, 4096)
    finally:
        os.close(theirs)
        os.close(ours)
    piped = subprocess.run(argv, cwd=tree, capture_output=True, check=True)

    assert shown == b"\\x1b[2Jgone\tnow\r\n"
    assert piped.stdout.startswith(b"\x1b[2Jgone")
