"""Readiness is asked for often, and said only of who answered."""

import socket
import threading
import time
from statistics import median

import pytest
from small_endpoint import DEADLINE_S, endpoint

from remote_resident.endpoints.readiness import NotWanted, Watch, ask

LATE = b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"


class Counted:
    """A route that says 503, and when it was asked."""

    def __init__(self, port: int, asks: int) -> None:
        self.asks, self.seen, self.enough = asks, list[float](), threading.Event()
        self.socket = socket.create_server(("127.0.0.1", port))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while len(self.seen) < self.asks:
            taken, _ = self.socket.accept()
            self.seen.append(time.monotonic())
            with taken:
                taken.recv(4096)
                taken.sendall(LATE)
        self.enough.set()


def test_a_route_is_asked_again_and_again_within_a_tenth_of_a_second() -> None:
    one = endpoint()
    assert one.port is not None
    counted = Counted(one.port, asks=30)
    with counted.socket:
        watch = Watch(
            endpoint=one,
            instance="0" * 16,
            run=None,
            deadline=time.monotonic() + DEADLINE_S,
            cut=counted.enough.is_set,
            dead_s=DEADLINE_S,
        )
        with pytest.raises(NotWanted):
            watch.until_ready()
        counted.thread.join(DEADLINE_S)

    assert watch.seen == "status 503"
    gaps = [b - a for a, b in zip(counted.seen, counted.seen[1:], strict=False)]
    assert median(gaps) <= 0.1


def test_what_answers_and_is_not_http_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(4096)
                taken.sendall(b"hello\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        said = ask(server.getsockname()[1], "/ready", DEADLINE_S)
        thread.join(DEADLINE_S)

    assert said == "an answer that is not HTTP"
