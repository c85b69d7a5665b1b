"""A worker that runs: which process it is, and its end, which is seen and not guessed."""

import os
import select
from dataclasses import dataclass

from remote_resident import spawn
from remote_resident.processes import end_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A worker that accepts requests."""

    pid: int
    instance: str
    spawn_to_ready_s: float | None
    """From the spawn to the ready line; None: another start's, not known here."""
    load_s: float | None
    """What the worker says its load took; None: not said."""
    adopted: bool
    """It answered already, or another process started it."""


@dataclass(slots=True, kw_only=True)
class Held:
    """A worker whose end can be waited for."""

    started: Started
    inputs: str
    pidfd: int
    child: spawn.Child | None = None
    """None: another process's child, whose exit status is not for us."""
    container_cli: str | None = None

    def wait_end(self, timeout_s: float) -> bool:
        """Wait for its end; True once it has ended."""
        if self.child is not None:
            return self.child.wait_end(timeout_s)
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def returncode(self) -> int | None:
        """Give its exit status; None: alive, or not known to this process."""
        return None if self.child is None else self.child.process.returncode

    def end(self, grace_s: float) -> list[int]:
        """End all of it."""
        return end_all(
            self.started.instance,
            grace_s=grace_s,
            container_cli=self.container_cli,
            session=self.started.pid,
        )

    def __del__(self) -> None:
        """Let go of the descriptor; the child lets go of its own."""
        if self.child is None:
            os.close(self.pidfd)


def wait_pid(pid: int | None, timeout_s: float) -> bool:
    """Wait for the end of any process; True once it has ended."""
    if pid is None:
        return False
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))
    finally:
        os.close(fd)
