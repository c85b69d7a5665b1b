"""When a worker leaves, and who is answered before."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_base import (
    BASE,
    DEADLINE_S,
    WORKERS,
    Busy,
    Caller,
    Held,
    Start,
    queued,
    until,
)


@pytest.mark.parametrize("told", ["signal", "stop"])
def test_told_to_stop_it_finishes_what_is_in_hand_and_refuses_what_waits(
    busy: Callable[..., Busy], told: str
) -> None:
    work = busy()
    waiting = queued(work.held, 1)
    idle = work.held.connect()
    idle.ask("ping")
    if told == "signal":
        work.held.child.terminate()
    else:
        assert work.held.ask("stop")["stopping"] is True

    refused = waiting.receive()
    until(lambda: not work.held.path.exists(), "the path is gone")
    late = idle.ask()

    assert refused is not None
    assert (refused["reason"], late["reason"]) == ("stopping", "stopping")
    assert work.end()["order"] == ["first"]
    assert work.held.ended() == 0


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    held = start("hangs")
    caller = held.connect()
    caller.send(op="predict")
    until(lambda: held.ask("ping")["busy_since"], "it is busy")

    held.child.terminate()
    until(lambda: "finishing what is in hand" in held.said(), "the first was heard")
    held.child.terminate()

    assert held.ended() == 143
    assert not held.path.exists()


def test_a_shut_door_wakes_nobody_while_what_is_in_hand_goes_on(start: Start) -> None:
    held = start("hangs")
    caller = held.connect()
    caller.send(op="predict")
    until(lambda: held.ask("ping")["busy_since"], "it is busy")
    held.child.terminate()
    until(lambda: "finishing what is in hand" in held.said(), "it was heard")

    def rests() -> bool:
        """Say whether it takes no time of a processor for a moment."""
        before = processor_ticks(held.child.pid)
        time.sleep(0.2)
        return processor_ticks(held.child.pid) == before

    until(rests, "it rests")


def processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_an_idle_worker_leaves_by_itself(start: Start) -> None:
    held = start("echo", "--idle-timeout", "0.1")

    assert held.ended() == 0
    assert not held.path.exists()


def caught(start: Start, idle_s: str, *, stopped: bool = False) -> tuple[Held, Caller]:
    """Call a worker before it has gone for idleness, whatever this machine does."""
    while True:
        held = start("echo", "--idle-timeout", idle_s)
        if stopped:
            held.child.send_signal(signal.SIGSTOP)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return held, held.connect()
        held.close()


def test_an_open_connection_keeps_an_idle_worker(start: Start) -> None:
    held, caller = caught(start, "0.2")
    caller.ask()

    with pytest.raises(subprocess.TimeoutExpired):
        held.child.wait(0.5)
    assert caller.ask("ping")["ok"]
    caller.sock.close()
    assert held.ended() == 0


def test_pings_do_not_count_as_use(start: Start) -> None:
    held = start("echo", "--idle-timeout", "0.3")

    def pinged() -> bool:
        with contextlib.suppress(OSError):
            held.ask("ping")
        return held.child.poll() is not None

    until(pinged, "it left although somebody pings")
    assert held.ended() == 0


def retire_under_request(start: Start, rounds: int) -> None:
    """Ask in the instant in which it retires: refused at the door, or answered."""
    answered = 0
    # further ones where this machine was too slow for a single call in time
    n = -1
    while (n := n + 1) < rounds or not answered:
        held = start("echo", "--idle-timeout", "0.02")
        ready = time.monotonic()
        moment = 0.018 + n % 20 * 0.0002 if n % 10 else 0.0
        while time.monotonic() < ready + moment:
            pass
        try:
            caller = held.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            assert held.ended() == 0
        else:
            assert caller.ask(x=n)["echo"] == n
            answered += 1
        held.close()
    assert answered


def test_who_comes_in_as_it_retires_is_answered(start: Start) -> None:
    retire_under_request(start, 20)


def test_who_is_at_the_door_when_the_time_is_up_is_answered(start: Start) -> None:
    held, caller = caught(start, "0.2", stopped=True)
    caller.send(op="predict", x=1)
    with pytest.raises(subprocess.TimeoutExpired):
        held.child.wait(0.3)

    held.child.send_signal(signal.SIGCONT)

    reply = caller.receive()
    assert reply is not None
    assert reply["echo"] == 1


@pytest.mark.long
def test_a_caller_that_never_reads_does_not_block_the_others_for_ever(
    start: Start,
) -> None:
    held = start("large")
    stalled = held.connect()
    stalled.send(op="predict", bytes=8 << 20)

    assert held.ask(bytes=100)["ok"]
    assert "a caller did not take its reply" in held.said()


@pytest.mark.long
def test_who_comes_in_as_it_retires_is_answered_1000_times(start: Start) -> None:
    retire_under_request(start, 1000)


def test_without_its_owner_it_finishes_answers_and_leaves(
    busy: Callable[..., Busy],
) -> None:
    lifeline, owner = os.pipe()
    work = busy(
        *("--lifeline-fd", str(lifeline), "--orphan-grace", "1.0"), pass_fds=(lifeline,)
    )
    os.close(lifeline)
    os.close(owner)
    until(lambda: "the owner is gone" in work.held.said(), "it noticed")

    assert work.end()["ok"]
    over = time.monotonic()
    assert work.held.ask(name="adopting")["ok"]
    assert work.held.ended() == 0
    assert time.monotonic() - over >= 1.0


def test_without_its_owner_it_does_not_load_for_ever(
    start: Start, tmp_path: Path
) -> None:
    lifeline, owner = os.pipe()
    held = start(
        "slow_load",
        *("--lifeline-fd", str(lifeline), "--orphan-grace", "0.1"),
        args=(str(tmp_path / "never"),),
        pass_fds=(lifeline,),
        loaded=False,
    )
    os.close(lifeline)
    os.close(owner)

    assert held.wait_ready() is None
    assert held.ended() == 143


def test_standard_input_may_be_the_lifeline_as_in_a_container(start: Start) -> None:
    lifeline, owner = os.pipe()
    held = start("echo", "--lifeline-fd", "0", "--orphan-grace", "0.05", stdin=lifeline)
    os.close(lifeline)

    with pytest.raises(subprocess.TimeoutExpired):
        held.child.wait(0.2)
    os.close(owner)
    assert held.ended() == 0
    assert "its end of the lifeline is closed" in held.said()


OWNER = """
import os, subprocess, sys
lifeline, end = os.pipe()
ready, ready_write = os.pipe()
if os.fork() == 0:
    # holds the lifeline open for as long as standard input is
    os.close(1)
    sys.stdin.read()
    os._exit(0)
argv = [sys.executable, sys.argv[1], "--resident-slug", "t", "--socket", sys.argv[2]]
argv += ["--lifeline-fd", str(lifeline), "--orphan-grace", "0.1"]
argv += ["--ready-fd", str(ready_write), "--script", sys.argv[3]]
child = subprocess.Popen(argv, pass_fds=(lifeline, ready_write), stdout=2)
os.read(ready, 4096)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_fork_that_holds_the_lifeline_does_not_keep_an_orphan(
    tmp_path: Path,
) -> None:
    if not hasattr(os, "pidfd_open"):
        pytest.skip("no pidfd_open in this interpreter")
    argv = [sys.executable, "-c", OWNER, str(BASE), str(tmp_path / "s")]
    owner = subprocess.Popen(
        [*argv, str(WORKERS / "echo.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    pidfd = os.pidfd_open(pid)

    owner.kill()
    ended, _, _ = select.select([pidfd], [], [], DEADLINE_S)
    owner.communicate()
    os.close(pidfd)

    assert ended
