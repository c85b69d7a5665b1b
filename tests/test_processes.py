"""Everything of an instance is found and ended, and nothing else."""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from seconds import within

from remote_resident import processes

DEADLINE_S = 20.0

# writes a byte once it stands as wanted, then waits for ever
WAITS = "os.write(1, b'.'); os.close(1); signal.pause()"
DEAF = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


@pytest.fixture
def instance() -> Iterator[str]:
    name = f"test-{secrets.token_hex(8)}"
    yield name
    processes.end_all(name, grace_s=0)


def started(
    code: str, instance: str | None, *, count: int = 1, session: bool = True
) -> "subprocess.Popen[bytes]":
    """Run code in a session of its own until `count` processes say that they stand."""
    environ = {"PATH": os.environ["PATH"]}
    if instance is not None:
        environ[processes.INSTANCE_VARIABLE] = instance
    child = subprocess.Popen(
        [sys.executable, "-IS", "-c", f"import os, signal, sys\n{code}"],
        env=environ,
        stdout=subprocess.PIPE,
        start_new_session=session,
    )
    assert child.stdout is not None
    for _ in range(count):
        assert select.select([child.stdout], [], [], DEADLINE_S)[0]
        assert os.read(child.stdout.fileno(), 1) == b"."
    return child


def finish(child: "subprocess.Popen[bytes]") -> int:
    """Reap a child, which must have ended."""
    assert child.stdout is not None
    child.stdout.close()
    return child.wait(DEADLINE_S)


def alive(pid: int) -> bool:
    """Say whether a process runs: neither gone nor a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_process_that_ends_on_sigterm_is_not_killed(instance: str) -> None:
    child = started(WAITS, instance)

    assert processes.members(instance) == [child.pid]
    assert processes.end_all(instance, grace_s=DEADLINE_S) == [child.pid]
    assert finish(child) == -signal.SIGTERM


def test_what_left_the_session_and_ignores_sigterm_is_ended(instance: str) -> None:
    code = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {DEAF}
    os._exit(0)
os.wait()
{WAITS}
"""
    child = started(code, instance, count=2)
    found = processes.members(instance)

    ended = processes.end_all(instance, grace_s=0.1)

    assert len(found) == 2
    assert ended == found
    assert not any(map(alive, found))
    assert finish(child) == -signal.SIGTERM


def test_what_dropped_its_environment_is_found_by_session_and_descent(
    instance: str,
) -> None:
    bare = f"""os.execve(sys.executable, [sys.executable, "-IS", "-c",
        "import os, signal; {WAITS}"], {{}})"""
    code = f"""
if os.fork() == 0:
    {bare}
if os.fork() == 0:
    os.setsid()
    {bare}
{WAITS}
"""
    child = started(code, instance, count=3)
    found = processes.members(instance)

    assert len(found) == 3
    assert processes.end_all(instance, grace_s=DEADLINE_S) == found
    finish(child)


def test_a_bare_process_is_found_after_the_leader_by_the_session_it_was_in(
    instance: str,
) -> None:
    code = f"""
if os.fork() == 0:
    os.execve(sys.executable, [sys.executable, "-IS", "-c",
        "import os, signal; os.write(1, str(os.getpid()).encode()); {WAITS}"], {{}})
os._exit(0)
"""
    child = started(code, instance, count=0)
    assert child.stdout is not None
    child.wait(DEADLINE_S)
    left = int(child.stdout.read().rstrip(b"."))

    assert processes.members(instance) == []
    assert processes.end_all(instance, grace_s=5, session=child.pid) == [left]
    child.stdout.close()


def test_another_instance_below_is_left_to_its_own_owner(instance: str) -> None:
    other = f"{instance}-other"
    code = f"""
if os.fork() == 0:
    os.setsid()
    os.environ[{processes.INSTANCE_VARIABLE!r}] = {other!r}
    os.execve(sys.executable, [sys.executable, "-IS", "-c",
        "import os, signal; {WAITS}"], os.environ)
{WAITS}
"""
    child = started(code, instance, count=2)
    (theirs,) = processes.members(other)

    assert processes.end_all(instance, grace_s=DEADLINE_S) == [child.pid]
    assert alive(theirs)
    assert processes.end_all(other, grace_s=DEADLINE_S) == [theirs]
    finish(child)


def test_a_session_that_an_instance_merely_runs_in_is_not_its_own(
    instance: str,
) -> None:
    stranger = started(WAITS, None, session=False)
    child = started(WAITS, instance, session=False)

    assert os.getsid(child.pid) == os.getsid(stranger.pid)
    assert processes.end_all(instance, grace_s=DEADLINE_S) == [child.pid]
    assert alive(stranger.pid)
    stranger.terminate()
    finish(stranger)
    finish(child)


def test_a_session_whose_leader_is_gone_is_not_its_own_where_the_caller_is_in_it(
    instance: str,
) -> None:
    code = f"""
import select
sys.path.insert(0, {str(Path(processes.__file__).parents[1])!r})
from remote_resident import processes
leader = os.pidfd_open(os.getpid())
if os.fork():
    os._exit(0)
select.select([leader], [], [])
stranger = os.fork() or signal.pause()
marked = os.fork()
if marked == 0:
    os.environ[{processes.INSTANCE_VARIABLE!r}] = {instance!r}
    os.execve("/bin/sleep", ["sleep", "100"], os.environ)
while marked not in processes.members({instance!r}):
    pass
assert processes.end_all({instance!r}, grace_s=5) == [marked]
os.kill(stranger, 0)
assert os.waitpid(stranger, os.WNOHANG) == (0, 0)
os.kill(stranger, signal.SIGKILL)
os.write(1, b".")
"""
    finish(started(code, None))


def test_a_process_never_ends_itself(instance: str) -> None:
    code = f"""
sys.path.insert(0, {str(Path(processes.__file__).parents[1])!r})
from remote_resident import processes
if os.fork() == 0:
    signal.pause()
assert len(processes.end_all({instance!r}, grace_s=5)) == 1
os.wait()
os.write(1, b".")
"""
    assert finish(started(code, instance)) == 0


def test_a_name_that_only_begins_alike_is_another(instance: str) -> None:
    child = started(WAITS, f"{instance}0")

    assert processes.members(instance) == []
    assert processes.end_all(f"{instance}0", grace_s=DEADLINE_S) == [child.pid]
    finish(child)


def test_what_forks_while_it_is_hunted_leaves_nothing(instance: str) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: None)
for generation in range(100_000):
    if os.fork():
        os._exit(0)
    if generation == 50:
        os.write(1, b".")
"""
    child = started(code, instance)

    processes.end_all(instance, grace_s=0.05)

    assert processes.members(instance) == []
    child.wait(DEADLINE_S)
    assert child.stdout is not None
    child.stdout.close()


def test_orphans_that_were_handed_to_this_process_are_reaped(instance: str) -> None:
    # in a process of its own: what is a sub-reaper stays one
    code = f"""
import ctypes, time
sys.path.insert(0, {str(Path(processes.__file__).parents[1])!r})
from remote_resident import processes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
read, write = os.pipe()
if os.fork() == 0:
    os.environ[{processes.INSTANCE_VARIABLE!r}] = {instance!r}
    os.execve(sys.executable, [sys.executable, "-IS", "-c", '''
import os, signal
if os.fork() == 0:
    os.setsid()
    os.write(1, b".")
    signal.pause()
signal.pause()
'''], os.environ)
os.read(read, 0)
while len(processes.members({instance!r})) < 2:
    time.sleep(0.01)
processes.end_all({instance!r}, grace_s=5)
os.waitpid(-1, 0)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    os.write(1, b"!")
"""
    child = started(code, None)
    assert child.stdout is not None
    assert child.stdout.read() == b"!"
    assert finish(child) == 0


def test_the_exit_status_of_a_child_is_left_to_who_started_it(instance: str) -> None:
    child = started(WAITS, instance)
    processes.end_all(instance, grace_s=DEADLINE_S)

    assert finish(child) == -signal.SIGTERM


def test_a_stopped_process_is_ended(instance: str) -> None:
    child = started(WAITS, instance)
    child.send_signal(signal.SIGSTOP)

    assert processes.end_all(instance, grace_s=0.1) == [child.pid]
    assert finish(child) in (-signal.SIGTERM, -signal.SIGKILL)


def test_an_instance_that_has_nothing_takes_no_time(instance: str) -> None:
    began = time.monotonic()

    assert processes.end_all(instance, grace_s=60) == []
    within(5.0, time.monotonic() - began)


def test_the_worker_of_a_provider_is_the_oldest_of_its_instance(
    instance: str,
) -> None:
    code = f"""
if os.fork() == 0:
    {WAITS}
{WAITS}
"""
    words = ["--resident-slug", "s", "--resident-tree", "/t", "--socket", "/s"]
    child = subprocess.Popen(
        [
            *(sys.executable, "-IS", "-c", f"import os, signal\n{code}"),
            *("--resident-instance", instance, *words, "--", "--socket", "/x"),
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.read(2) == b".."
    (found,) = processes.instances("s", "/t")

    assert (found.instance, found.marks["socket"]) == (instance, "/s")
    assert found.leader is not None
    assert found.leader.pid == child.pid
    assert processes.instances("s", "/other") == []
    processes.end_all(instance, grace_s=DEADLINE_S)
    finish(child)


def test_what_a_dead_worker_left_is_known_by_its_environment(instance: str) -> None:
    code = f"""
os.environ[{processes.SLUG_VARIABLE!r}] = "s"
os.environ[{processes.TREE_VARIABLE!r}] = "/t"
os.execve(sys.executable, [sys.executable, "-IS", "-c",
    "import os, signal; {WAITS}"], os.environ)
"""
    child = started(code, instance)
    (found,) = processes.instances("s", "/t")

    assert (found.instance, found.leader, found.marks) == (instance, None, {})
    processes.end_all(instance, grace_s=DEADLINE_S)
    finish(child)


def test_containers_of_an_instance_are_stopped_and_removed_by_their_label(
    tmp_path: Path, instance: str
) -> None:
    told = tmp_path / "told"
    cli = tmp_path / "podman"
    cli.write_text(
        f'#!/bin/sh\necho "$@" >> \'{told}\'\n[ "$1" = ps ] && echo c1 c2\nexit 0\n'
    )
    cli.chmod(0o755)

    processes.end_all(instance, grace_s=3, container_cli=str(cli))

    assert told.read_text().splitlines() == [
        f"ps --all --quiet --filter label=tu-remote.instance={instance}",
        "stop --time 3 c1 c2",
        "rm --force c1 c2",
    ]


def test_a_container_program_that_is_missing_does_not_stop_the_sweep(
    instance: str,
) -> None:
    child = started(WAITS, instance)

    ended = processes.end_all(instance, grace_s=5, container_cli="/nowhere/docker")

    assert ended == [child.pid]
    finish(child)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_descriptors_are_given_back(instance: str, number: signal.Signals) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    child = started(DEAF if number is signal.SIGKILL else WAITS, instance)
    processes.end_all(instance, grace_s=0.1 if number is signal.SIGKILL else 5)

    assert finish(child) == -number
    with contextlib.suppress(OSError):
        assert count() == before
