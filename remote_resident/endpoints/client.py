"""The asking side of managed endpoints: what cells, programs and the command line use.

Everything goes through the host daemon but two things: the credential, which is kept here
before anything is asked, and free ports. Lines of a dispatch are `{"type": "phase",
"text"}`, `{"type": "stdout" | "stderr", "text"}` (bytes that are no UTF-8 as lone
surrogates), and last `{"type": "result", "exit_code", "result"}`, with `reason` and `error`
where the service died under the cell.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from remote_resident.endpoints import card, credentials, ports
from remote_resident.endpoints.record import CREDENTIALS
from remote_resident.endpoints.register import connected, refuse_unfit
from remote_resident.endpoints.store import Store
from remote_resident.errors import ProviderError, UsageError

Row = dict[str, Any]
Approver = Callable[[str, str], bool]
"""Gets a card and its digest, and says whether a person approves."""


class Daemon(Protocol):
    """What this module needs of the daemon's client."""

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask once and give the answered object."""

    def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Ask once and yield each line's object as it comes."""


class CellResult(NamedTuple):
    """What a cell came to."""

    exit_code: int
    """Its exit status; over 128 a signal's number was added."""
    stdout: str
    stderr: str
    result: Any
    """What the cell left as its result; None: nothing."""


def connect(
    mode: str,
    *,
    host: str | None = None,
    credential: str | None = None,
    daemon: Daemon | None = None,
) -> Row:
    """Enable endpoints of one mode; the credential is kept first.

    `credential` None: the one that is kept already. Raises UsageError (`bad_request`)
    where there is none, or where the host does not fit the mode.
    """
    refuse_unfit(mode, host)
    if credential is not None:
        credentials.save(CREDENTIALS[0], credential)
    body = {"mode": mode, "host": host}
    return _asked(daemon).call("POST", "/v1/endpoints/connect", body)


def disconnect(daemon: Daemon | None = None) -> Row:
    """Stop every local service and remove every registration; caches stay on disk."""
    answer = _asked(daemon).call("POST", "/v1/endpoints/disconnect", {})
    for name in CREDENTIALS:
        credentials.forget(name)
    return answer


def free_port(store: Store | None = None) -> int:
    """Give a port for a local endpoint: free, no other endpoint's, reserved a while.

    Raises ProviderError: `not_connected`, `wrong_mode` (mode url), `port_taken`.
    """
    store = store or Store()
    connected(store.settings(), "local")
    registered = store.registrations().endpoints.values()
    return ports.free_port({e.port for e in registered if e.port is not None})


def register(
    fields: Mapping[str, object],
    *,
    approve: str | None = None,
    approver: Approver | None = None,
    daemon: Daemon | None = None,
) -> Row:
    """Register an endpoint and give its row; bytes approved once are silent.

    `approve` is the digest of a card that a person read; without it the card is shown
    and the person asked, at a terminal. Raises ProviderError, `not_approved` with the
    card as its problem's text where nobody approved.
    """
    asked = _asked(daemon)
    given = {key: value for key, value in fields.items() if value is not None}
    try:
        return asked.call("POST", "/v1/endpoints", {**given, "approve": approve})
    except ProviderError as exc:
        shown = shown_card(exc)
        if shown is None or approve is not None:
            raise
        if not (approver or _at_terminal)(*shown):
            raise
    return asked.call("POST", "/v1/endpoints", {**given, "approve": shown[1]})


def shown_card(exc: ProviderError) -> tuple[str, str] | None:
    """Give the card and the digest that a refusal carries; None: it carries none."""
    if exc.reason != "not_approved" or not exc.problems:
        return None
    problem = exc.problems[0]
    return problem.text, str(problem.wanted)


def rows(daemon: Daemon | None = None) -> list[Row]:
    """List every endpoint."""
    found = _asked(daemon).call("GET", "/v1/endpoints")["endpoints"]
    assert isinstance(found, list)
    return found


def show(name: str, daemon: Daemon | None = None) -> Row:
    """Give one endpoint's row."""
    return _asked(daemon).call("GET", _of(name))


def stop(name: str, *, now: bool = False, daemon: Daemon | None = None) -> Row:
    """Stop an endpoint's service once the cell in hand ended; `now` ends it."""
    return _asked(daemon).call("POST", f"{_of(name)}/stop", {"now": now})


def remove(name: str, daemon: Daemon | None = None) -> Row:
    """Stop an endpoint's service and forget its registration; approvals are kept."""
    return _asked(daemon).call("POST", f"{_of(name)}/remove", {})


def logs(name: str, daemon: Daemon | None = None) -> Row:
    """Give the transcript of an endpoint's scripts."""
    return _asked(daemon).call("GET", f"{_of(name)}/logs")


def dispatch(
    endpoint: str,
    *,
    argv: list[str] | None = None,
    code: str | None = None,
    timeout_s: float | None = None,
    daemon: Daemon | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Run a cell, a command or Python code, on an endpoint and yield each line.

    Closing the iterator leaves: what waits is not loaded for any more.
    """
    body: dict[str, Any] = {"endpoint": endpoint, "cwd": str(Path.cwd())}
    body |= {"code": code} if argv is None else {"argv": _found(argv)}
    body |= {} if timeout_s is None else {"timeout_s": timeout_s}
    yield from _asked(daemon).stream("POST", "/v1/dispatch", body)


def compute_provider(
    provider: str,
    code: str | None = None,
    *,
    argv: list[str] | None = None,
    timeout_s: float | None = None,
    on_line: Callable[[Mapping[str, Any]], None] | None = None,
    daemon: Daemon | None = None,
) -> CellResult:
    """Run Python code, or a command, on an endpoint and give what it came to.

    `BASE_URL` is a variable of the code and of its environment. A cell that ends with
    an error is a result; raises ProviderError where it could not run or be ended whole.
    """
    if (argv is None) == (code is None):
        found = "neither code nor argv" if argv is None else "both code and argv"
        raise UsageError(f"{provider}: {found} found, one wanted", reason="bad_request")
    said: dict[str, list[str]] = {"stdout": [], "stderr": []}
    lines = dispatch(provider, argv=argv, code=code, timeout_s=timeout_s, daemon=daemon)
    for line in lines:
        if on_line is not None:
            on_line(line)
        if line["type"] in said:
            said[line["type"]].append(line["text"])
        elif line["type"] == "result":
            if "error" in line:
                said["stderr"].append(f"{line['error']}\n")
            out, err = ("".join(said[kind]) for kind in ("stdout", "stderr"))
            return CellResult(line["exit_code"], out, err, line.get("result"))
    raise ProviderError(
        f"{provider}: the daemon's answer ended without a result, one wanted",
        reason="protocol_error",
        next=f"tu remote endpoint show {provider}",
    )


def list_compute(
    tree: str | os.PathLike[str] | None = None, daemon: Daemon | None = None
) -> list[Row]:
    """List every endpoint and every provider of the tree: location, state, since."""
    from remote_resident import places

    root = places.find_tree(None if tree is None else Path(tree))
    found = _asked(daemon).call("GET", f"/v1/compute?tree={quote(str(root), safe='')}")
    listed = found["compute"]
    assert isinstance(listed, list)
    return listed


def _found(argv: list[str]) -> list[str]:
    """Find the program as the caller's shell would: the daemon has its own PATH."""
    import shutil

    if not argv or "/" in argv[0]:
        return argv
    path = shutil.which(argv[0])
    return argv if path is None else [str(Path(path).absolute()), *argv[1:]]


def _at_terminal(shown: str, digest: str) -> bool:
    """Show a card and ask, where there is a person at a terminal."""
    import sys

    if not card.at_terminal():
        return False
    sys.stderr.write(f"{shown}\n\n")
    return card.ask("Approve exactly this?")


def _of(name: str) -> str:
    return f"/v1/endpoints/{quote(name, safe='')}"


def _asked(daemon: Daemon | None) -> Daemon:
    if daemon is not None:
        return daemon
    from remote_resident.daemon.client import connect as connect_daemon

    return connect_daemon()
