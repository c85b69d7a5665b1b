"""One request to a fresh process: the worker's script, once, and its end."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from remote_resident import places, spawn, start_command
from remote_resident.errors import WorkerRequestError, WorkerStartError
from remote_resident.processes import end_all
from remote_resident.start_command import Admit, default_admit
from remote_resident.worker_side import protocol

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

_ORPHAN_END_S = 10.0


@dataclass(slots=True, kw_only=True)
class _Once:
    """What admission is asked about."""

    manifest: "ProviderManifest"
    instance: str | None


def run_once(
    manifest: "ProviderManifest",
    payload: Mapping[str, Any],
    *,
    timeout_s: float | None = None,
    log_path: Path | None = None,
    admit: Admit | None = default_admit,
) -> tuple[dict[str, Any], float]:
    """Answer one request with a process of its own; the reply and the seconds it took.

    `timeout_s` is for all of it; None: the manifest's start and request timeouts. The
    request, the reply and the errors are those of a resident worker's `request`, and
    the process carries the same marks. Nothing of it is left afterwards.
    """
    manifest_limit = (
        manifest.runtime_start_timeout_s + manifest.runtime_request_timeout_s
    )
    limit_s = manifest_limit if timeout_s is None else timeout_s
    line = _line(manifest, {"op": "predict", **payload})
    start_command.refuse_bad_weights(manifest)
    instance = start_command.new_instance()
    inputs = start_command.inputs_digest(manifest)
    plan = start_command.plan(manifest, inputs, instance=instance)
    log = spawn.Log(log_path or places.log_path(manifest.slug, manifest.tree))
    # files, not pipes: neither side can be kept waiting by the other
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as reply:
        request.write(line)
        request.seek(0)
        began = time.monotonic()
        child: spawn.Child | None = None
        try:
            candidate = _Once(manifest=manifest, instance=instance)
            with start_command.admitted(admit, candidate) as device:
                child = _spawn(plan, device, log, (request.fileno(), reply.fileno()))
            in_time = child.wait_end(began + limit_s - time.monotonic())
            seconds = time.monotonic() - began
        finally:
            if child is not None:
                cli = plan.environment.container_cli()
                end_all(instance, container_cli=cli, session=child.pid)
                child.wait_end(_ORPHAN_END_S)
                child.close()
        return _judged(manifest, child, reply, in_time, limit_s), seconds


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
    device: str | None,
    log: spawn.Log,
    standard: tuple[int, int],
) -> spawn.Child:
    contained = plan.environment.contained
    # a container's standard input is the request: it has no lifeline
    pipes = spawn.Pipes.open(lifeline=not contained, ready=False, contained=contained)
    try:
        command = plan.command(["--once", *pipes.args()], device)
    except BaseException:
        pipes.close()
        raise
    stdin, stdout = standard
    try:
        return spawn.spawn(
            command.argv, command.env, pipes, log, stdin=stdin, stdout=stdout
        )
    except OSError as exc:
        raise WorkerStartError(
            f"{plan.manifest.slug}: {command.argv[0]}: {exc.strerror}, a program wanted"
        ) from None


def _judged(
    manifest: "ProviderManifest",
    child: spawn.Child,
    reply: IO[bytes],
    in_time: bool,
    limit_s: float,
) -> dict[str, Any]:
    log, slug = child.log, manifest.slug
    if not in_time:
        raise WorkerRequestError(
            f"{slug}: process {child.pid} was ended: no reply after {limit_s} s, at most "
            f"so long wanted; log {log.path}",
            reason="request_timeout",
        )
    reply.seek(0)
    line = reply.read(protocol.MAX_LINE_BYTES + 2)
    hint = f"{spawn.exit_hint(child.process.returncode)}; log {log.path}"
    if not line:
        tail = "".join(f"\n    {text}" for text in log.tail(child.log_start))
        said = f", its last lines:{tail}" if tail else ", to which it wrote nothing"
        raise WorkerRequestError(
            f"{slug}: process {child.pid} died answering: {hint}{said}",
            reason="worker_died",
        )
    try:
        answer = protocol.decode_line(line)
    except protocol.ProtocolError as exc:
        raise WorkerRequestError(
            f"{slug}: process {child.pid}: {exc}; {hint}", reason=exc.reason
        ) from None
    if answer.get("ok") is True:
        return dict(answer)
    reason = str(answer.get("reason") or "request_failed")
    more = f"; process {child.pid}: {hint}" if reason == "worker_died" else ""
    raise WorkerRequestError(f"{slug}: {answer.get('error')}{more}", reason=reason)
