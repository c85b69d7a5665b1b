"""Run an endpoint's script: exactly the approved bytes, a clean environment, an end."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from remote_resident import places
from remote_resident.endpoints import panel
from remote_resident.endpoints.record import Endpoint
from remote_resident.processes import INSTANCE_VARIABLE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LANG = "C.UTF-8"
_KILL_WAIT_S = 5.0
_PANEL_WAIT_S = 1.0
_MFD_NOEXEC_SEAL = 0x0008
_SEALS = (
    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
)


def environment(
    endpoint: Endpoint, instance: str, credential: str | None = None
) -> dict[str, str]:
    """Give all that a script has in its environment; `credential` is a start's alone."""
    directory = endpoint.service_dir or ""
    known = {
        "PATH": PATH,
        "HOME": directory,
        "LANG": LANG,
        "HOST_PORT": str(endpoint.port),
        "SERVICE_DIR": directory,
        INSTANCE_VARIABLE: instance,
    }
    return known if credential is None else {**known, endpoint.credential: credential}


@dataclass(slots=True, kw_only=True)
class Run:
    """A script that was started."""

    kind: str
    process: "subprocess.Popen[bytes]"
    panel_fd: int
    panel: "subprocess.Popen[bytes]"
    timed_out: bool = False

    @classmethod
    def begin(
        cls,
        endpoint: Endpoint,
        kind: str,
        instance: str,
        *,
        credential: str | None = None,
        hide: str | None = None,
    ) -> "Run":
        """Start the script `kind`, start or stop; its service directory is made first.

        `hide` is the value that is kept out of the transcript. Raises ProviderError
        where a directory or the panel cannot be made, OSError where the script cannot
        be run.
        """
        text = endpoint.start if kind == "start" else endpoint.stop
        assert text is not None
        assert endpoint.service_dir is not None
        places.ensure(Path(endpoint.service_dir))
        fd, writer = panel.open_writer(endpoint.name, [hide] if hide else [])
        _say(fd, f"{kind} of {endpoint.name}")
        script = _sealed(kind, text)
        try:
            process = subprocess.Popen(
                [*_interpreter(text), f"/proc/self/fd/{script}"],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                env=environment(endpoint, instance, credential),
                cwd=endpoint.service_dir,
                pass_fds=[script],
                start_new_session=True,
            )
        except BaseException as exc:
            _say(fd, f"{kind} cannot be run: {exc}")
            os.close(fd)
            with contextlib.suppress(subprocess.TimeoutExpired):
                writer.wait(_PANEL_WAIT_S)
            raise
        finally:
            os.close(script)
        return cls(kind=kind, process=process, panel_fd=fd, panel=writer)

    def poll(self) -> int | None:
        """Give the exit status; None: it runs."""
        status = self.process.poll()
        if status is not None and self.panel_fd >= 0:
            _say(self.panel_fd, f"{self.kind} ended: {_status(status)}")
            self._let_go()
        return status

    def end(self, grace_s: float = 2.0) -> None:
        """End the script and what is in its process group: not the service's own."""
        for signum, wait_s in (
            (signal.SIGTERM, grace_s),
            (signal.SIGKILL, _KILL_WAIT_S),
        ):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
        self.poll()
        self._let_go()

    def settle(self, timeout_s: float = _PANEL_WAIT_S) -> None:
        """Wait until the transcript is written, where nobody holds it open any more."""
        self.poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.panel.wait(timeout_s)

    def _let_go(self) -> None:
        if self.panel_fd >= 0:
            os.close(self.panel_fd)
            self.panel_fd = -1


def finish(run: Run, timeout_s: float, orphans: Iterable[int] = ()) -> int | None:
    """Wait for a script's end and end it past its deadline; None: it had to be ended.

    `orphans` are children of this process that it did not start, a service's: reaped as
    soon as they end, since a stop script may wait until their pids are gone.
    """
    with contextlib.ExitStack() as stack:
        waiting = {fd: pid for pid in orphans for fd in _pidfd(pid, stack)}
        scripts = _pidfd(run.process.pid, stack)
        poll = select.poll()
        for fd in (*waiting, *scripts):
            poll.register(fd, select.POLLIN)
        until = time.monotonic() + timeout_s
        while run.process.poll() is None and (left := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                poll.unregister(fd)
                if fd in waiting:
                    _reap(waiting[fd])
    status = run.poll()
    if status is None:
        run.timed_out = True
        run.end()
    return status


def _status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _pidfd(pid: int, stack: contextlib.ExitStack) -> list[int]:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return []
    stack.callback(os.close, fd)
    return [fd]


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _say(fd: int, text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(OSError):
        os.write(fd, f"== {stamp} {text}\n".encode())


def _interpreter(text: str) -> list[str]:
    """Give the program that the script's first line names, as the kernel reads it."""
    first = text.partition("\n")[0].strip()
    words = first[2:].split(None, 1) if first.startswith("#!") else []
    return words or ["/bin/sh"]


def _sealed(name: str, text: str) -> int:
    """Put a script where nobody can change it: in memory, sealed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        # a kernel that does not know the flag
        fd = os.memfd_create(name, flags)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
