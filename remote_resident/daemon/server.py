"""The daemon's process: its lock, its socket, its signals, and its end."""

import contextlib
import fcntl
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from remote_resident import places as host_places
from remote_resident import spawn
from remote_resident.daemon import orphans
from remote_resident.daemon.door import Door
from remote_resident.daemon.routes import Table
from remote_resident.daemon.tenant import Document, Request, Tenant
from remote_resident.errors import ProviderError

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PATH_LIMIT = 107
_LOG_LOOK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the daemon's own files are."""

    socket: Path
    lock: Path
    log: Path

    @classmethod
    def of_host(cls) -> "Places":
        """Name this user's; creates nothing. Raises ProviderError (`socket_path`)."""
        runtime = host_places.runtime_dir()
        # all logs move together
        logs = host_places.log_path("daemon", runtime).parent
        return cls(
            socket=runtime / "daemon.sock",
            lock=runtime / "daemon.lock",
            log=logs / "daemon.log",
        )


def run(
    tenants: Sequence[Tenant],
    *,
    places: Places,
    stop_services: bool = False,
    ready: Callable[[], None] | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or `POST /v1/end`; give the exit code, 0.

    To be called in the main thread. `ready` is called once the socket accepts. With
    `stop_services` the tenants' services end with the daemon. Raises ProviderError:
    `locked` where another daemon runs, `socket_path` where no socket can be bound.
    """
    host_places.ensure(places.lock.parent)
    with _only_one(places.lock):
        ending = _Ending(stop_services=stop_services)
        orphans.adopt()
        with _signals(ending):
            table = Table([*_own_routes(tenants, ending)])
            for tenant in tenants:
                table.add(tenant.routes())
            begun: list[Tenant] = []
            try:
                for tenant in tenants:
                    tenant.begin()
                    begun.append(tenant)
                _serve(table, places, ending, ready)
            finally:
                for tenant in reversed(begun):
                    _end(tenant, ending.stop_services)
    return 0


@dataclass(slots=True)
class _Ending:
    """Whether the end was asked for, and what is to end with it."""

    stop_services: bool
    # a pipe, not an event: a signal handler may interrupt the waiting thread itself
    read_fd: int = -1
    write_fd: int = -1

    def __post_init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def ask(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.write_fd, b"x")

    def wait(self, timeout_s: float) -> bool:
        import select

        poll = select.poll()
        poll.register(self.read_fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


def _own_routes(
    tenants: Sequence[Tenant], ending: _Ending
) -> Iterator[tuple[str, str, Callable[[Request], Document]]]:
    since = time.time()

    def health(request: Request) -> Document:
        from remote_resident import __version__

        return {
            "ok": True,
            "pid": os.getpid(),
            "version": __version__,
            "since": since,
            "tenants": [tenant.name for tenant in tenants],
        }

    def end(request: Request) -> Document:
        ending.stop_services |= request.body.get("stop_services") is True
        ending.ask()
        return {"ok": True, "pid": os.getpid(), "stop_services": ending.stop_services}

    yield "GET", "/v1/health", health
    yield "POST", "/v1/end", end


def _serve(
    table: Table,
    places: Places,
    ending: _Ending,
    ready: Callable[[], None] | None,
) -> None:
    over = threading.Event()
    listener = _bound(places.socket)
    mark = places.socket.stat()
    door = Door(listener, table, str(places.log))
    threads = [
        threading.Thread(target=door.serve_forever, args=(0.1,), daemon=True),
        threading.Thread(target=orphans.reap_until, args=(over,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        if ready is not None:
            ready()
        while not ending.wait(_LOG_LOOK_S):
            _keep_log_short(places.log)
    finally:
        # first out of sight: who connects from now on starts the next daemon
        with contextlib.suppress(OSError):
            if os.path.samestat(places.socket.stat(), mark):
                places.socket.unlink()
        over.set()
        door.shutdown()
        door.server_close()


def _end(tenant: Tenant, stop_services: bool) -> None:
    try:
        tenant.end(stop_services)
    except Exception as exc:
        # the next tenant's services must end too
        from remote_resident.daemon.door import tell

        tell(f"the end of {tenant.name}", exc)


def _bound(path: Path) -> socket.socket:
    """Bind under another name, then rename: the socket that is seen accepts."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(new)) > _PATH_LIMIT:
            raise OSError(f"{len(os.fsencode(new))} bytes, at most {_PATH_LIMIT}")
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if not stat.S_ISSOCK(found.st_mode):
                raise OSError("no socket found there")
        new.unlink(missing_ok=True)
        # the mode that the file is made with
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(new))
        new.chmod(0o600)
        listener.listen(1024)
        new.replace(path)
    except OSError as exc:
        listener.close()
        raise ProviderError(
            f"{path}: {exc.strerror or exc} found, a place for the daemon's socket "
            "wanted",
            reason="socket_path",
            next=host_places.elsewhere(),
        ) from None
    return listener


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock of the one daemon; raises ProviderError (`locked`)."""
    fd = spawn.keep_private(host_places.open_lock(path))
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refused(fd, path) from None
        except OSError as exc:
            raise host_places.unusable_lock(path, exc) from None
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        spawn.close_private(fd)


def _refused(fd: int, path: Path) -> ProviderError:
    said = os.pread(fd, 32, 0).decode(errors="replace").strip()
    who = f"pid {said}" if said.isdigit() else "a process that has not said its pid"
    return ProviderError(
        f"{path}: a daemon that runs already found ({who}), none wanted",
        reason="locked",
        next=f"kill {said}" if said.isdigit() else f"fuser -v {quote(str(path))}",
    )


@contextlib.contextmanager
def _signals(ending: _Ending) -> Iterator[None]:
    """Let the ending signals ask for the end, once or more often."""
    old = {s: signal.signal(s, lambda *_: ending.ask()) for s in _ENDING}
    try:
        yield
    finally:
        for signum, handler in old.items():
            if handler is not None:
                signal.signal(signum, handler)
        ending.close()


def _keep_log_short(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        # in the foreground what is said goes to a terminal or a journal instead
        if os.path.samestat(os.fstat(sys.stderr.fileno()), path.stat()):
            spawn.Log(path).rotate()
