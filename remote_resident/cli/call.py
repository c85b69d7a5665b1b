"""`tu remote call`: ask a provider for one answer; its worker outlives the command."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.cli import numbers, tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import UsageError, WorkerRequestError

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="a provider, or a path to one")
    parser.add_argument(
        "request",
        metavar="REQUEST",
        help="a JSON object, @FILE that holds one, or - for standard input",
    )
    parser.add_argument("--op", help="the operation asked for, else the request's own")
    parser.add_argument(
        "--timeout",
        type=numbers.seconds,
        metavar="S",
        help="seconds to wait, a start included; the prediction itself goes on",
    )
    parser.add_argument(
        "--make-room",
        action="store_true",
        help="for a start, let idle workers of yours go",
    )
    parser.add_argument(
        "--no-start", action="store_true", help="only ask a worker that is there"
    )


def run(asked: Asked) -> Answer:
    """Ask, starting a worker where there is none."""
    from remote_resident import manifest

    provider = manifest.find(tree.data(asked), asked.slug)
    payload = object_of(asked.request)
    if asked.op is not None:
        payload["op"] = asked.op
    screen = tree.screen(asked)
    screen.started(provider.slug, "call")
    try:
        reply = _reply(asked, provider, payload)
    finally:
        screen.close()
    return Answer(document=reply, text=_readable(reply))


def _readable(reply: dict[str, Any]) -> str:
    """Write a reply for a person, as JSON that steers no terminal."""
    text = json.dumps(reply, indent=2, ensure_ascii=False)
    return "".join(
        c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text
    )


def _reply(
    asked: Asked, provider: "ProviderManifest", payload: dict[str, Any]
) -> dict[str, Any]:
    if provider.runtime_mode == "jobs":
        raise UsageError(
            f"{provider.slug}: mode jobs found, resident or subprocess wanted",
            reason="bad_request",
            next=f"tu remote job run {provider.named}",
        )
    if provider.runtime_mode == "subprocess":
        from remote_resident.caller_side.once import run_once

        if asked.no_start:
            raise WorkerRequestError(
                f"{provider.slug}: mode subprocess found, which has a process started "
                "for each request, and none is to be started",
                reason="not_running",
                next=f"tu remote call {provider.named} '{{}}'",
            )
        if asked.timeout is not None:
            payload["deadline"] = asked.timeout
        return run_once(provider, payload, make_room=asked.make_room)[0]
    from remote_resident.caller_side import start_command
    from remote_resident.supervisor import ResidentWorker

    worker = ResidentWorker(provider, owned=False)
    # before anything starts or has to go for it
    start_command.refuse_bad_request(provider, payload, [worker.socket_path.parent])
    limit_s = payload.get("deadline") if asked.timeout is None else asked.timeout
    if asked.no_start:
        _refuse_absent(worker, provider)
    elif asked.make_room:
        began = time.monotonic()
        size = start_command.size_of(payload)
        worker.ensure_started(make_room=True, deadline_s=limit_s, size=size)
        if limit_s is not None:
            # one limit for all of it, the start included
            limit_s = max(0.0, limit_s - (time.monotonic() - began))
    return dict(worker.request(payload, deadline_s=limit_s))


def _refuse_absent(worker: Any, provider: "ProviderManifest") -> None:
    """Refuse where only a start would bring an answer."""
    from remote_resident.supervisor import inputs_digest

    try:
        found = worker.ping()
    except WorkerRequestError as exc:
        # busy and unconfirmed is there
        if exc.reason == "not_running":
            raise
        return
    if found.get("inputs") != inputs_digest(provider):
        raise WorkerRequestError(
            f"{provider.slug}: the worker {found.get('pid')} was started from other "
            "inputs than there are now, and none is to be started",
            reason="stale_worker",
            next=f"tu remote restart {provider.named}",
        )


def object_of(request: str) -> dict[str, Any]:
    """Read the request. Raises UsageError (`bad_request`) for what is no JSON object."""
    where, text = _text(request)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            f"{where}: no JSON found ({exc}), an object wanted", reason="bad_request"
        ) from None
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise UsageError(
            f"{where}: a JSON {kind} found, an object wanted", reason="bad_request"
        )
    return found


def _text(request: str) -> tuple[str, str]:
    """Give where the request stands, and what stands there."""
    if request == "-":
        where, wanted = "standard input", "a JSON object"
    elif request.startswith("@"):
        where, wanted = str(Path(request[1:])), "a file with a JSON object"
    else:
        return "request", request
    try:
        if request == "-":
            # UTF-8 as in a file, whatever the locale is
            return where, sys.stdin.buffer.read().decode("utf-8")
        return where, Path(where).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        said = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise UsageError(
            f"{where}: {said}, {wanted} wanted", reason="bad_request"
        ) from None
