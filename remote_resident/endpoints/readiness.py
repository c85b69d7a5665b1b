"""Whether a service is ready: its route asked again and again, its listener confirmed."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from remote_resident import processes
from remote_resident.endpoints import containers, listener
from remote_resident.endpoints.listener import Listener
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.scripts import Run, environment

ANSWER_S = 5.0
"""How slow an answer may be."""
TWICE_S = 0.05
"""How far apart the two answers are."""
DEAD_S = 5.0
"""How long nothing may be alive after the start script ended."""
_FIRST_PAUSE_S, _SOON_PAUSE_S, _LAST_PAUSE_S = 0.01, 0.02, 0.04
_SOON_S = 60.0
_LOOK_S = 1.0
"""How often it is seen whether anything is alive: each look may ask an engine."""
_BYTES = 65536
_OK = 200
_NOBODY = "no listener"


def ask(port: int, route: str, timeout_s: float = ANSWER_S) -> int | str:
    """Ask a route of 127.0.0.1 and give the status, else what was found instead."""
    until = time.monotonic() + timeout_s
    with socket.socket() as sock:
        try:
            sock.settimeout(max(0.001, timeout_s))
            sock.connect(("127.0.0.1", port))
            sock.sendall(
                f"GET {route} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                "Accept: */*\r\nConnection: close\r\n\r\n".encode()
            )
            return _status(_head(sock, until))
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except ConnectionRefusedError:
            return _NOBODY
        except OSError as exc:
            return exc.strerror or str(exc)


def _head(sock: socket.socket, until: float) -> bytes:
    """Read an answer to its end, or what came of it until the time was over."""
    got = b""
    while len(got) < _BYTES:
        left = until - time.monotonic()
        if left <= 0:
            break
        sock.settimeout(left)
        try:
            more = sock.recv(_BYTES)
        except OSError:
            if b"\r\n\r\n" in got:
                break
            raise
        if not more:
            break
        got += more
        if _whole(got):
            break
    return got


def _whole(got: bytes) -> bool:
    """Say whether an answer is complete although its sender keeps the connection."""
    head, ended, body = got.partition(b"\r\n\r\n")
    if not ended:
        return False
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length" and value.strip().isdigit():
            return len(body) >= int(value)
    return False


def _status(got: bytes) -> int | str:
    if not got:
        return "a connection closed without an answer"
    words = got.split(b"\r\n", 1)[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return "an answer that is not HTTP"
    return int(words[1])


class NotReady(Exception):
    """A start that came to nothing: a reason token, and why in one line."""

    def __init__(self, *, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class NotWanted(Exception):
    """The start is no longer wanted."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """A start on its way to ready."""

    endpoint: Endpoint
    instance: str
    run: Run | None
    """None: another daemon's, whose exit status nobody can tell any more."""
    deadline: float
    """By the monotonic clock."""
    cut: Callable[[], bool]
    dead_s: float = DEAD_S
    env: Mapping[str, str] = field(init=False)
    seen: str = _NOBODY
    listener: Listener | None = None
    _looked: float = 0.0
    _alive: float = 0.0

    def __post_init__(self) -> None:
        self.env = environment(self.endpoint, self.instance)
        self._alive = time.monotonic()

    def until_ready(self) -> Listener:
        """Wait until the service is ready. Raises NotReady, and NotWanted."""
        begun, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            self._judge()
            if self._is_ok() and (found := self._confirm()) is not None:
                return found
            time.sleep(pause_s)
            is_soon = time.monotonic() - begun < _SOON_S
            longest_s = _SOON_PAUSE_S if is_soon else _LAST_PAUSE_S
            if not is_soon or self.seen != _NOBODY:
                pause_s = min(pause_s * 1.2, longest_s)

    def _is_ok(self) -> bool:
        left = max(0.001, self.deadline - time.monotonic())
        assert self.endpoint.port is not None
        assert self.endpoint.live is not None
        answer = ask(self.endpoint.port, self.endpoint.live, min(ANSWER_S, left))
        if answer == _OK:
            return True
        # a last look that the deadline cut short tells less than the one before it
        if self.seen == _NOBODY or time.monotonic() < self.deadline:
            self.seen = f"status {answer}" if isinstance(answer, int) else answer
        return False

    def _confirm(self) -> Listener | None:
        """See who gave the first answer, and that the same gives the second."""
        again = time.monotonic() + TWICE_S
        if not self._is_confirmed():
            return None
        time.sleep(max(0.0, again - time.monotonic()))
        if not self._is_ok():
            self.listener = None
            return None
        port, found = self.endpoint.port, self.listener
        assert port is not None
        if found is not None and listener.still_there(found, port):
            return found
        self.listener = None
        return None

    def _is_confirmed(self) -> bool:
        port = self.endpoint.port
        assert port is not None
        if self.listener is not None and listener.still_there(self.listener, port):
            return True
        self.listener = identify(self.endpoint, self.instance, self.env)
        if self.listener is None:
            self.seen = f"a listener not of this start ({listener.stranger(port)})"
        return self.listener is not None

    def _judge(self) -> None:
        """Raise where the start cannot come to anything any more."""
        now = time.monotonic()
        name = self.endpoint.name
        if self.cut():
            raise NotWanted
        status = None if self.run is None else self.run.poll()
        if status:
            raise NotReady(
                reason="start_failed",
                text=f"{name}: start returned {status}, 0 wanted",
            )
        if now >= self.deadline:
            raise NotReady(
                reason="not_ready",
                text=f"{name}: {self.endpoint.live}: {self.seen} found after "
                f"{self.endpoint.start_timeout_s!r} s, 200 twice wanted",
            )
        if self.run is not None and status is None:
            self._alive = now
        elif now - self._looked >= _LOOK_S:
            self._looked = now
            self._refuse_dead(now)

    def _refuse_dead(self, now: float) -> None:
        if alive(self.endpoint, self.instance, self.env):
            self._alive = now
        elif now - self._alive >= self.dead_s:
            raise NotReady(
                reason="start_failed",
                text=f"{self.endpoint.name}: start returned 0 and nothing of it was "
                f"alive for {self.dead_s} s, a service on port {self.endpoint.port} wanted",
            )


def identify(
    endpoint: Endpoint, instance: str, env: Mapping[str, str]
) -> Listener | None:
    """Confirm who listens on an endpoint's port; None: not this start's service."""
    port = endpoint.port
    assert port is not None
    assert endpoint.service_dir is not None
    if found := listener.of_start(port, instance, endpoint.service_dir):
        return found
    container = containers.publishing(endpoint, env)
    if container is None:
        return None
    return Listener(
        inodes=listener.inodes(port),
        owners=listener.owner_of(container.pid),
        container=container.identity,
    )


def alive(endpoint: Endpoint, instance: str, env: Mapping[str, str]) -> bool:
    """Say whether anything of a start lives: a process, or a container that runs."""
    if processes.members(instance):
        return True
    return any(c.running is not False for c in containers.find(endpoint, env))
