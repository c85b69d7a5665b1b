"""One request to a fresh process: the worker's script, once, and its end."""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from remote_resident import places, processes, spawn
from remote_resident.caller_side import start_command
from remote_resident.caller_side.start_command import Admit, default_admit
from remote_resident.errors import WorkerRequestError, WorkerStartError
from remote_resident.processes import end_all
from remote_resident.worker_side import protocol

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

_ORPHAN_END_S = 10.0
_ABANDONED_GRACE_S = 2.0


@dataclass(slots=True)
class _Once:
    """What admission is asked about."""

    manifest: "ProviderManifest"
    instance: str | None
    size: float | None
    make_room: bool = False


def run_once(
    manifest: "ProviderManifest",
    payload: Mapping[str, Any],
    *,
    timeout_s: float | None = None,
    log_path: Path | None = None,
    admit: Admit | None = default_admit,
    make_room: bool = False,
) -> tuple[dict[str, Any], float]:
    """Answer one request with a process of its own; the reply and the seconds it took.

    `timeout_s` is for all of it, as the request's own `deadline` is; None: the
    manifest's start and request timeouts. The request, the reply and the errors are
    those of a resident worker's `request`, and the process carries the same marks.
    Nothing of it is left afterwards, and what an earlier one left whose caller was
    killed is ended first.
    """
    line = _line(manifest, {"op": "predict", **payload})
    seen = _seen(manifest, payload.get("output_dir"))
    start_command.refuse_bad_request(manifest, payload, seen)
    limit_s = _limit_s(manifest, payload, timeout_s)
    for directory in seen:
        _make(manifest, directory)
    start_command.refuse_bad_weights(manifest)
    instance = start_command.new_instance()
    inputs = start_command.inputs_digest(manifest)
    plan = start_command.plan(manifest, inputs, instance=instance, writable=seen)
    cli = plan.environment.container_cli()
    _end_abandoned(manifest, cli)
    log = spawn.Log(log_path or places.log_path(manifest.slug, manifest.tree))
    with _file("reply") as reply:
        began = time.monotonic()
        child: spawn.Child | None = None
        try:
            size = start_command.size_of(payload)
            candidate = _Once(manifest, instance, size, make_room)
            with start_command.admitted(admit, candidate) as device:
                child = _spawn(plan, _options(limit_s), device, (log, line, reply))
            in_time = child.wait_end(began + limit_s - time.monotonic())
            seconds = time.monotonic() - began
        finally:
            if child is not None:
                end_all(instance, container_cli=cli, session=child.pid)
                child.wait_end(_ORPHAN_END_S)
                child.close()
        return _judged(manifest, child, reply, in_time, limit_s), seconds


def _file(name: str) -> IO[bytes]:
    """Open a file in memory: unlike a pipe it keeps nobody waiting."""
    return os.fdopen(os.memfd_create(name), "w+b")


def _limit_s(
    manifest: "ProviderManifest", payload: Mapping[str, Any], timeout_s: float | None
) -> float:
    if timeout_s is None:
        timeout_s = manifest.runtime_start_timeout_s
        timeout_s += manifest.runtime_request_timeout_s
    deadline_s = payload.get("deadline")
    return timeout_s if deadline_s is None else min(timeout_s, deadline_s)


def _options(limit_s: float) -> list[str]:
    # `owner-pid` tells the next one whether anybody still waits for this one's answer
    owner = ["--owner-pid", str(os.getpid())]
    return ["--once", *owner, "--request-timeout", f"{limit_s}"]


def _seen(manifest: "ProviderManifest", directory: object) -> list[Path]:
    """Say which directory a container is to write to on top of what is declared."""
    contained = manifest.env_kind != "venv"
    return [Path(directory)] if contained and isinstance(directory, str) else []


def _make(manifest: "ProviderManifest", directory: Path) -> None:
    """Make a directory that is bound: the process inside cannot."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise WorkerRequestError(
            f"{manifest.slug}: output_dir: {directory}: {exc.strerror} found, "
            "a directory wanted",
            reason="bad_request",
        ) from None


def _end_abandoned(manifest: "ProviderManifest", cli: str | None) -> None:
    """End what answers a caller that is gone, and what a worker that is gone left."""
    for left in processes.instances(manifest.slug, str(manifest.tree)):
        if left.leader is None or left.abandoned:
            end_all(left.instance, grace_s=_ABANDONED_GRACE_S, container_cli=cli)


def _line(manifest: "ProviderManifest", payload: dict[str, Any]) -> bytes:
    # no events: there is one reply on the way back and nothing else
    wanted = {name: value for name, value in payload.items() if name != "events"}
    try:
        return protocol.encode_line(wanted)
    except protocol.ProtocolError as exc:
        raise WorkerRequestError(
            f"{manifest.slug}: request: {exc}", reason=exc.reason
        ) from None


def _spawn(
    plan: start_command.Plan,
    options: list[str],
    device: str | None,
    streams: tuple[spawn.Log, bytes, IO[bytes]],
) -> spawn.Child:
    """Start the process and send it its request.

    Of a virtual environment it reads a file; a container has no other lifeline than its
    standard input, on which the request comes and no end after it.
    """
    log, line, reply = streams
    contained = plan.environment.contained
    standard = {"stdout": reply.fileno()}
    with _file("request") as request:
        if not contained:
            request.write(line)
            request.seek(0)
            standard["stdin"] = request.fileno()
        pipes = spawn.Pipes.open(lifeline=True, ready=False, contained=contained)
        try:
            command = plan.command([*options, *pipes.args()], device)
        except BaseException:
            pipes.close()
            raise
        try:
            child = spawn.spawn(
                command.argv, command.env, pipes, log, standard=standard
            )
        except OSError as exc:
            raise WorkerStartError(
                f"{plan.manifest.slug}: {command.argv[0]}: {exc.strerror}, "
                "a program wanted",
                next=f"tu remote check {plan.manifest.named}",
            ) from None
    if contained:
        _send(line, pipes.lifeline_write)
    return child


def _send(line: bytes, lifeline: int) -> None:
    """Write the request behind our back: who reads it may take any time, or never."""
    fd = spawn.keep_private(os.dup(lifeline))

    def write() -> None:
        # a reader that ends early has its own words for it
        with contextlib.suppress(OSError):
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(fd, rest) :]
        spawn.close_private(fd)

    threading.Thread(target=write, name="request", daemon=True).start()


def _judged(
    manifest: "ProviderManifest",
    child: spawn.Child,
    reply: IO[bytes],
    in_time: bool,
    limit_s: float,
) -> dict[str, Any]:
    log, slug = child.log, manifest.slug
    next_ = f"tu remote logs {manifest.named}"
    if not in_time:
        raise WorkerRequestError(
            f"{slug}: process {child.pid} was ended: no reply after {limit_s} s, at most "
            f"so long wanted; log {log.path}",
            reason="request_timeout",
            next=next_,
        )
    reply.seek(0)
    line = reply.read(protocol.MAX_LINE_BYTES + 2)
    hint = f"{spawn.exit_hint(child.process.returncode)}; log {log.path}"
    if not line:
        said = log.last_words(child.log_start)
        raise WorkerRequestError(
            f"{slug}: process {child.pid} died answering: {hint}{said}",
            reason="worker_died",
            next=next_,
        )
    try:
        answer = protocol.decode_line(line)
    except protocol.ProtocolError as exc:
        raise WorkerRequestError(
            f"{slug}: process {child.pid}: {exc}; {hint}",
            reason=exc.reason,
            next=next_,
        ) from None
    if answer.get("ok") is True:
        return dict(answer)
    reason = str(answer.get("reason") or "request_failed")
    more = f"; process {child.pid}: {hint}" if reason == "worker_died" else ""
    text = f"{slug}: {answer.get('error')}{more}"
    raise WorkerRequestError(text, reason=reason, next=next_)
