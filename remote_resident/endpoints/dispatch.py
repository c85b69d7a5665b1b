"""One call of an endpoint: its place in line, its cell, its lines."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remote_resident.endpoints import cell, credentials
from remote_resident.endpoints.cell import Cell, Line, Work
from remote_resident.endpoints.owner import Owner
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.swap import State
from remote_resident.endpoints.tickets import Ticket, Word
from remote_resident.errors import Problem, ProviderError, UsageError, summary
from remote_resident.manifest_rules import LONGEST_S

TIMEOUT_S = 3600.0
"""How long a cell may take where its caller says nothing."""
_FIELDS = frozenset("endpoint argv code timeout_s cwd".split())
_LOOK_S = 0.2


def wanted(body: Mapping[str, Any]) -> tuple[str, Work]:
    """Read what is asked: the endpoint's name and the work, still without its URL.

    Raises UsageError (`bad_request`) that lists every fault.
    """
    faults = list(_faults(body))
    if faults:
        problems = [
            Problem(
                step="runtime",
                reason="bad_request",
                text=f"dispatch: {key}: {text}",
                name=key,
            )
            for key, text in faults
        ]
        raise UsageError(summary(problems), reason="bad_request", problems=problems)
    timeout_s = body.get("timeout_s")
    work = Work(
        argv=body.get("argv"),
        code=body.get("code"),
        cwd=Path(body.get("cwd") or "/"),
        env={},
        timeout_s=TIMEOUT_S if timeout_s is None else float(timeout_s),
    )
    return str(body["endpoint"]), work


def _faults(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((str(key)[:64], "no such field") for key in body if key not in _FIELDS)
    if not isinstance(body.get("endpoint"), str):
        yield "endpoint", "missing, an endpoint's name wanted"
    argv, code, cwd = body.get("argv"), body.get("code"), body.get("cwd")
    if (argv is None) == (code is None):
        found = "neither argv nor code" if argv is None else "both argv and code"
        yield "argv", f"{found} found, one of them wanted"
    if argv is not None and not _is_argv(argv):
        yield "argv", "a list of strings, the first a program, wanted"
    if code is not None and not isinstance(code, str):
        yield "code", "a string of Python code wanted"
    if cwd is not None and not (isinstance(cwd, str) and cwd.startswith("/")):
        yield "cwd", "an absolute path wanted"
    if not _is_time(body.get("timeout_s")):
        yield "timeout_s", f"seconds above 0 and at most {LONGEST_S} wanted"


def _is_argv(argv: object) -> bool:
    strings = isinstance(argv, list) and all(isinstance(one, str) for one in argv)
    return strings and bool(argv) and bool(argv[0]) and "\0" not in "".join(argv)  # type: ignore[index,arg-type]  # judged


def _is_time(timeout_s: object) -> bool:
    if timeout_s is None:
        return True
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        return False
    return 0 < timeout_s <= LONGEST_S


def on_local(owner: Owner, endpoint: Endpoint, work: Work) -> Iterator[Line | None]:
    """Wait for the endpoint, run the cell on it, yield phases, output and the result.

    Closing it leaves: what waits is not loaded for, and the cell is ended. Raises
    ProviderError: why the endpoint cannot be had, or the cell had to be ended.
    """
    ticket = owner.arrive(endpoint.name)
    one = Cell(name=endpoint.name, work=work, over=lambda: owner.leave(ticket))
    try:
        one.work = _prepared(endpoint, work)
        while not ticket.granted:
            words = owner.wait(ticket, _LOOK_S)
            if owner.state(endpoint.name)[0].state is State.STARTING:
                # what a hand-over would wait for else
                one.prepare()
            yield from _phases(words) or [None]
        owner.attach(ticket, one)
        one.start()
        # after the start: a slow reader of phases must not keep the endpoint waiting
        yield from _phases(owner.words(ticket))
        for line in one.lines():
            if line is not None and line["type"] == "result":
                line |= _told(line, ticket)
            yield line
    finally:
        one.close()
        owner.leave(ticket)


def on_remote(endpoint: Endpoint, work: Work) -> Iterator[Line | None]:
    """Run a cell for a remote endpoint; it alone gets the credential."""
    ready = _prepared(endpoint, work)
    one = Cell(name=endpoint.name, work=ready, over=lambda: None)
    try:
        one.start()
        yield from _phases([Word("ready", None)])
        yield from one.lines()
    finally:
        one.close()


def _prepared(endpoint: Endpoint, work: Work) -> Work:
    """Give the work its environment.

    Raises ProviderError (`not_connected`) for a remote endpoint without a credential.
    """
    key = credentials.load(endpoint.credential)
    if key is None and endpoint.location == "remote":
        raise ProviderError(
            f"{endpoint.name}: {endpoint.credential}: no credential found, one wanted",
            reason="not_connected",
            next="tu remote endpoint connect --mode url --host HOST "
            "--credential-file FILE",
        )
    given = key if endpoint.location == "remote" else None
    env = cell.environment(endpoint.url, os.environ, given)
    return replace(work, env=env, hide=[key] if key else [])


def _phases(words: Sequence[Word]) -> list[Line | None]:
    return [{"type": "phase", "text": w.text, "limit_s": w.limit_s} for w in words]


def _told(line: Line, ticket: Ticket) -> Line:
    """Say of a cell that ended by itself that its service had died under it."""
    if ticket.failure is None or line["exit_code"] == 0:
        return {}
    return {"reason": ticket.failure.reason, "error": ticket.failure.text}
