"""A host daemon with one small tenant, and the process that runs it in tests."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from remote_resident.daemon.server import Places, run
from remote_resident.daemon.tenant import Document, Lines, Reply, Request, Route
from remote_resident.errors import Problem, ProviderError

PROBLEM = Problem(
    step="runtime", reason="no_room", text="m: 2.5 found, 3.0 wanted", next="tu x"
)


class Tiny:
    """A tenant that shows what reaches it, in files of the runtime directory."""

    name = "tiny"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.child: subprocess.Popen[bytes] | None = None

    def routes(self) -> list[Route]:
        return [
            ("POST", "/v1/tiny/{a}/b/{c}", self.echo),
            ("GET", "/v1/tiny/status", lambda request: Reply(202, {"s": 1})),
            ("GET", "/v1/tiny/refusal", self.refusal),
            ("GET", "/v1/tiny/bug", self.bug),
            ("GET", "/v1/tiny/stream", self.stream),
            ("GET", "/v1/tiny/broken", lambda request: Lines(self.broken())),
            ("POST", "/v1/tiny/child", self.start_child),
            ("GET", "/v1/tiny/child", self.child_status),
            ("POST", "/v1/tiny/orphan", self.orphan),
        ]

    def begin(self) -> None:
        (self.folder / "begun").touch()

    def end(self, stop_services: bool) -> None:
        (self.folder / "ended").write_text(f"{stop_services}")

    def echo(self, request: Request) -> Document:
        return {
            "names": dict(request.names),
            "query": dict(request.query),
            "body": request.body,
        }

    def refusal(self, request: Request) -> Document:
        raise ProviderError("it is full", next="tu y", problems=[PROBLEM])

    def bug(self, request: Request) -> Document:
        raise ZeroDivisionError("of the tenant")

    def stream(self, request: Request) -> Lines:
        def lines() -> Iterator[Document | None]:
            try:
                yield {"n": 1}
                while True:
                    time.sleep(0.01)
                    yield None
            finally:
                (self.folder / "closed").touch()

        return Lines(lines())

    def broken(self) -> Iterator[Document]:
        yield {"n": 1}
        raise ProviderError("half way", reason="lost")

    def start_child(self, request: Request) -> Document:
        self.child = subprocess.Popen(["sh", "-c", "exit 7"])
        return {"pid": self.child.pid}

    def child_status(self, request: Request) -> Document:
        assert self.child is not None
        return {"status": self.child.wait()}

    def orphan(self, request: Request) -> Document:
        # the shell in between ends first, so that its child is handed on
        script = "sleep 0.2 >/dev/null & echo $!"
        told = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True)
        return {"pid": int(told.stdout)}


def start(home: Path, *words: str, **standard: Any) -> "subprocess.Popen[bytes]":
    """Start this file as a daemon and wait until it says that it accepts."""
    process = subprocess.Popen(
        [sys.executable, __file__, *words],
        env={**os.environ, "TU_REMOTE_HOME": str(home)},
        stdout=subprocess.PIPE,
        **standard,
    )
    out: IO[bytes] | None = process.stdout
    assert out is not None
    process.said = json.loads(out.readline() or b"{}")  # type: ignore[attr-defined]
    return process


def main() -> int:
    """Run it."""
    places = Places.of_host()
    try:
        return run(
            [Tiny(places.lock.parent)],
            places=places,
            stop_services="--stop-services" in sys.argv,
            ready=lambda: print(json.dumps({"ready": True}), flush=True),
        )
    except ProviderError as exc:
        said = {"error": str(exc), "reason": exc.reason, "next": exc.next}
        print(json.dumps(said), flush=True)
        return exc.exit_code


if __name__ == "__main__":
    sys.exit(main())
