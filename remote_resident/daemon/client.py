"""The asking half of the daemon's socket; starts a daemon where none answers."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from shlex import quote
from typing import Any

from remote_resident import places as host_places
from remote_resident import unix_http
from remote_resident.daemon import failures
from remote_resident.daemon.server import Places
from remote_resident.errors import ProviderError
from remote_resident.processes import INSTANCE_VARIABLE, SLUG_VARIABLE, TREE_VARIABLE
from remote_resident.spawn import Log

_HEALTH_S = 30.0
_START_S = 120.0
_LOOK_S = 0.05


class DaemonClient:
    """What asks one daemon; may be shared by threads, holds no connection."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Ask once and give the answered object.

        Raises what the daemon refused with, its reason, next and problems kept;
        ProviderError `not_running` where it is gone, `request_timeout` where it does
        not answer within `timeout_s` (None: as long as it takes).
        """
        with self._asked(method, path, body, timeout_s) as answer:
            document = self._document(answer.read())
            if answer.status >= 300:
                raise failures.error_of(answer.status, document)
            return document

    def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Ask once and yield each line's object as it comes; close it to leave.

        Raises as `call`, and ProviderError (`not_running`) where the daemon ended
        before the stream did.
        """
        with self._asked(method, path, body, None) as answer:
            if answer.status >= 300:
                document = self._document(answer.read())
                raise failures.error_of(answer.status, document)
            for line in unix_http.lines(answer):
                document = self._document(line)
                failure = document.get("failure")
                if len(document) == 1 and isinstance(failure, dict):
                    raise failures.error_of(failure.get("status", 500), failure)
                yield document

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float | None,
    ) -> Iterator[HTTPResponse]:
        connection = unix_http.UnixConnection(self.path, timeout_s)
        try:
            with unix_http.asked(connection, method, path, body) as answer:
                yield answer
        except TimeoutError:
            raise ProviderError(
                f"{self.path}: no answer to {method} {path} within {timeout_s} s",
                reason="request_timeout",
            ) from None
        except unix_http.Cut:
            raise self._gone("it ended before its answer did") from None
        except (OSError, HTTPException) as exc:
            raise self._gone(str(exc) or type(exc).__name__) from None

    def _document(self, raw: bytes) -> dict[str, Any]:
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ProviderError(
                f"{self.path}: an answer that is no JSON object found, one wanted",
                reason="protocol_error",
            )
        return found

    def _gone(self, said: str) -> ProviderError:
        return ProviderError(
            f"{self.path}: {said}, the host daemon wanted",
            reason="not_running",
            next="tu remote daemon",
        )


def connect(*, start: bool = True) -> DaemonClient:
    """Give a client of this user's daemon, started first where none answers.

    Those who start at once share one. Raises ProviderError: `not_running` where there
    is none and `start` is false, `start_failed` where none comes up.
    """
    places = Places.of_host()
    client = DaemonClient(places.socket)
    if _answers(client):
        return client
    if not start:
        raise ProviderError(
            f"{places.socket}: no daemon found, one wanted",
            reason="not_running",
            next="tu remote daemon",
        )
    deadline = time.monotonic() + _START_S
    with _turn(places.lock.with_name("daemon.start.lock"), deadline):
        while not _answers(client):
            _start(places, deadline)
    return client


def _answers(client: DaemonClient) -> bool:
    """Say whether a daemon answers; raises ProviderError for one that hangs."""
    try:
        client.call("GET", "/v1/health", timeout_s=_HEALTH_S)
    except ProviderError as exc:
        if exc.reason != "not_running":
            raise
        return False
    return True


@contextlib.contextmanager
def _turn(path: Path, deadline: float) -> Iterator[None]:
    """Hold the lock that starters take turns at."""
    host_places.ensure(path.parent)
    fd = host_places.open_lock(path)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ProviderError(
                        f"{path}: another start found, none that takes longer than "
                        f"{_START_S} s wanted",
                        reason="locked",
                        next=f"fuser -v {quote(str(path))}",
                    ) from None
                time.sleep(_LOOK_S)
        yield
    finally:
        os.close(fd)


def _start(places: Places, deadline: float) -> None:
    """Start one and wait until it accepts; returns too where another was quicker."""
    log = Log(places.log)
    read_fd, write_fd = os.pipe()
    since = log.size()
    argv = [sys.executable, "-m", "remote_resident.daemon", "--ready-fd", f"{write_fd}"]
    try:
        with log.open() as out:
            since = min(since, log.size())
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out.fileno(),
                stderr=out.fileno(),
                cwd="/",
                env=_of_nobody(),
                pass_fds=[write_fd],
                start_new_session=True,
            )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    said = _said(read_fd, deadline)
    if said.get("ready"):
        # it may outlive this process, or end before it and want to be reaped
        threading.Thread(target=child.wait, daemon=True).start()
        return
    if said.get("reason") == "locked" and time.monotonic() < deadline:
        # one that is just ending, or somebody else's start by hand
        child.wait()
        time.sleep(_LOOK_S)
        return
    raise _not_started(child, said, log, since)


def _of_nobody() -> dict[str, str]:
    """Give the environment without the marks that would end a daemon with its starter."""
    marks = (INSTANCE_VARIABLE, SLUG_VARIABLE, TREE_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in marks}


def _said(read_fd: int, deadline: float) -> dict[str, Any]:
    """Read what a daemon says of its start; empty: it ended, or time is up."""
    import select

    poll = select.poll()
    poll.register(read_fd, select.POLLIN)
    got = b""
    with open(read_fd, "rb", buffering=0) as pipe:
        while not got.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                break
            more = pipe.read(65536)
            if not more:
                break
            got += more
    try:
        said = json.loads(got)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _not_started(
    child: "subprocess.Popen[bytes]", said: dict[str, Any], log: Log, since: int
) -> ProviderError:
    try:
        child.wait(5.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if "reason" in said:
        return failures.error_of(failures.CONFLICT, said)
    return ProviderError(
        f"the host daemon ended with {child.returncode} before it accepted; "
        f"log {log.path}{log.last_words(since)}",
        reason="start_failed",
        next="tu remote daemon",
    )
