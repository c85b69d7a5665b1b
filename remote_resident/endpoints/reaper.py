"""The parent of a cell, to whom all that the cell leaves behind is handed.

Run by path, with the cell's environment: `reaper.py STATUS_FD CONTROL_FD INSTANCE CWD
PROGRAM ARGUMENT...`. A byte from CONTROL_FD starts the cell. To STATUS_FD it writes
`pid N`, or `error ERRNO cwd|program` where the cell cannot be run, then `exit STATUS`.
What the cell started is ended once CONTROL_FD says the end of its other side, by whatever
way it left the cell's session, environment and parents. A process with the mark of
another instance has an owner of its own.
"""

import os
import select
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_VARIABLE = b"TU_RESIDENT_INSTANCE="
_ARGUMENT = b"\0--resident-instance\0"
_SIGTERM, _SIGKILL, _SIGPIPE, _SIGXFSZ = 15, 9, 13, 25
_LOOK_MS = 1000
_GRACE_S = 2.0
_SWEEP_S = 5.0


def main(words: list[str]) -> None:
    """Run a cell and end what it leaves."""
    status_fd, control_fd = int(words[0]), int(words[1])
    instance, cwd, argv = os.fsencode(words[2]), words[3], words[4:]
    for fd in (status_fd, control_fd):
        os.set_inheritable(fd, False)
    _adopt()
    if not os.read(control_fd, 1):
        return
    where = "cwd"
    try:
        os.chdir(cwd)
        where = "program"
        pid = _spawned(argv, instance)
    except OSError as exc:
        _say(status_fd, f"error {exc.errno} {where}")
        return
    _say(status_fd, f"pid {pid}")
    for fd in (1, 2):
        os.dup2(0, fd)
    if (status := _until_ended(pid, control_fd)) is not None:
        _say(status_fd, f"exit {status}")
        while os.read(control_fd, 1):
            pass
    _sweep(instance)


def _say(status_fd: int, text: str) -> None:
    try:
        os.write(status_fd, f"{text}\n".encode())
    except BrokenPipeError:
        # the daemon is gone, and the cell goes too
        return


def _adopt() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _spawned(argv: list[str], instance: bytes) -> int:
    # as it was given: an interpreter may have put a locale into its own by now
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - starts fast
        given = file.read().split(b"\0")
    pairs = (line.partition(b"=") for line in given if b"=" in line)
    env = {name: value for name, _, value in pairs}
    env[_VARIABLE.rstrip(b"=")] = instance
    return os.posix_spawnp(
        argv[0], argv, env, setsid=True, setsigdef=[_SIGPIPE, _SIGXFSZ]
    )


def _until_ended(pid: int, control_fd: int) -> int | None:
    """Wait for the cell's end, reap what else ends; None: nobody waits for it any more.

    The cell itself is not reaped yet: its pid must stay its own until all is ended.
    """
    poll = select.poll()
    for fd in (os.pidfd_open(pid), control_fd):
        poll.register(fd, select.POLLIN)
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        ready = poll.poll(_LOOK_MS)
        while (ended := os.waitid(os.P_ALL, 0, flags)) is not None:
            if ended.si_pid == pid:
                is_exit = ended.si_code == os.CLD_EXITED
                return ended.si_status if is_exit else -ended.si_status
            os.waitpid(ended.si_pid, 0)
        if deadline is None and any(fd == control_fd for fd, _ in ready):
            poll.unregister(control_fd)
            os.kill(pid, _SIGTERM)
            deadline = time.monotonic() + _GRACE_S
    return None


def _sweep(instance: bytes) -> None:
    """End every child, and their children as they are handed over, until none is left."""
    until = time.monotonic() + _SWEEP_S
    try:
        while time.monotonic() < until:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            killed = [pid for pid in _children(instance) if _killed(pid)]
            if not killed:
                return
            time.sleep(0.002)
    except ChildProcessError:
        return


def _children(instance: bytes) -> list[int]:
    names = os.listdir("/proc")  # noqa: PTH208 - starts fast
    return [int(n) for n in names if n.isdigit() and _is_ours(n, instance)]


def _is_ours(pid: str, instance: bytes) -> bool:
    try:
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if int(fields[1]) != os.getpid():
            return False
        marks = b"\0" + _read(pid, "environ")
        _, marked, rest = marks.partition(b"\0" + _VARIABLE)
        if marked:
            return rest.partition(b"\0")[0] == instance
        return _ARGUMENT not in _read(pid, "cmdline")
    except OSError:
        # it ended, or made itself unreadable: then it is still a child
        return os.path.exists(f"/proc/{pid}/stat")  # noqa: PTH110


def _read(pid: str, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
        return file.read()


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:
        # another user's by now
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
