"""Hold one model and answer for it on a Unix socket, in the model's own interpreter.

    python worker_base.py --resident-slug S --resident-tree T --resident-instance I
        (--socket P | --once) [options] --script worker.py [-- worker_args]

The script defines `build(config) -> model` and `predict(model, request) -> dict`, and may
define `reset(model)`, `ready(model)` and `warm_up(model)`. Only the standard library, in
the syntax of Python 3.8, and of that only what starts fast: `_socket`, `_thread` and
`_signal` stand for their packages, which cost as much as the interpreter's own start.

Two threads. The *main thread* builds the model, runs every prediction, and sends its
reply; frameworks tie streams, signal handlers and event loops to it. The *attendant*
looks after everybody else: it accepts, reads requests, answers ping, stop and stacks,
refuses, counts down, and sees signals, the owner's end and callers that leave.

      caller ── socket ──> attendant ── queue ──> main ── reply ──> caller
                               ^                    │ keeps the caller just answered
                        bell <─┴────── bell ────────┘

The simple idea would be a queue between the two, but a hop between threads costs as much
as the rest of a small request. So after a reply the main thread *keeps* that caller's
connection and waits on it by itself; its next request needs no hop. As soon as another
caller queues, the kept connection goes back to the attendant. A connection is watched by
one side at a time:

    idle      attendant, for input              (main, where it is the kept one)
    queued    attendant, for hang-up only: a caller that closes leaves the queue
    running   nobody: a caller that closes does not stop its prediction

One lock guards the queue and who watches what. It is held while a request is read and
while a line of ours that fits into any socket buffer is written, never while the model
runs or a reply is sent. A reply is claimed (`answered`) under the lock, so that the main
thread and a deadline in the attendant never both answer.

Leaving. Whoever wants the worker gone (idle time, the owner's end, stop, SIGTERM) shuts
the door first: the path is unlinked if it is still ours, so that newcomers start another
worker; then the listener is shut down, after which the kernel refuses who had already
looked the path up; then all that had connected are accepted. Nobody is left between the
two: who came in is answered, with `stopping` where we were told to go. Descriptors of a
connection are closed by the side that watches it; the rest by the end of the process.

Signals. The attendant hears them at once, also while the main thread is inside a long
call into C: see `bell`. After each prediction it is made sure that the model has not
taken them. A forked child of the model gets the defaults back, or ending it would end us.
SIGTERM and SIGINT stop the worker; SIGUSR1 has every thread's stack written to the log,
SIGUSR2 also where a thread holds the interpreter: see `stacks`.

Owner. The lifeline's EOF says that the owner is gone. A fork of the owner may hold the
pipe open, so its pidfd is watched too. Both from before `build`: a load that nobody waits
for ends as well.

Output. Descriptor 1 is turned to stderr before the script is loaded, whatever prints.

Stuck. A prediction or a load that takes longer than it may is ended by who waits for it,
outside. Where nobody does any more, the attendant does it, and where a call into C has
the interpreter, and the attendant with it, faulthandler's watchdog, which needs neither.
See `overtime`. Who leaves takes along what the model has started: see `left_behind`.

Files. `loop` is the main thread, `attendant` the other, `bell` what wakes it, `callers` who
watches whom, `calls` one request, `answers` what is answered beside the model, `door` the
path, `owners` who wants the worker, `memory` the meter, `argv` the command line, `protocol`
the lines. They are a package under a name of its own, so that this folder stays off
sys.path and its compiled files are used: this one alone is compiled at each start.
"""

# pathlib and contextlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH100, PTH120, PTH123

from __future__ import annotations

import _socket
import _thread
import atexit
import faulthandler
import os
import sys
import time
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(__file__))
# whatever lies beside this file must not shadow a module of the model's stack
sys.path[:] = [p for p in sys.path if not p or os.path.abspath(p) != HERE]


def _package() -> ModuleType:
    """Make the files beside this one importable under a name that nobody else has."""
    package = type(sys)("resident_side")
    package.__path__ = [HERE]
    return sys.modules.setdefault(package.__name__, package)


if TYPE_CHECKING:
    from . import argv, callers, calls, left_behind, loop, memory, protocol
else:
    _package()
    from resident_side import (
        argv,
        callers,
        calls,
        left_behind,
        loop,
        memory,
        protocol,
    )

release_cublas_workspaces = memory.release_cublas_workspaces

EXIT_S = 10.0
"""How long the model's exit handlers may take."""

_begun: Any = None
"""The worker of this process, once its command line was read."""


def config() -> Any:
    """Give the configuration of the worker of this process; for who calls `serve`."""
    return argv.Config(_begun.options if _begun else argv.Options())


def serve(  # noqa: PLR0913  (the contract's signature; all by keyword)
    *,
    slug: str,
    socket_path: str,
    on_predict: Callable[[dict[str, object]], dict[str, object]],
    ready: Callable[[], dict[str, object]] | None = None,
    on_reset: Callable[[], object] | None = None,
    log: Callable[[str], object] | None = None,
    orphan_grace_s: float = 120.0,
    release_cublas: bool = True,
) -> int:
    """Answer on a socket until told to leave, and give the exit status to leave with.

    For a script that wants the loop for itself. Call it in the main thread, once the
    model is loaded. Under `--script` the lifeline, the ready pipe, limits and markers
    are those of the command line. Raises ProtocolError `socket_path`.
    """
    worker = _begun
    if worker is None:
        options = argv.Options()
        options.orphan_grace_s = orphan_grace_s
        worker = loop.Worker(options)
        worker.attendant.start()
    worker.options.slug = slug
    worker.options.socket_path = os.path.abspath(socket_path)
    worker.attendant.say = log
    hooks = loop.Hooks(on_predict, on_reset, release_cublas)
    status: int = worker.serve(hooks, ready() if ready else {})
    return status


def main(words: Sequence[str]) -> int:
    """Load the script and answer for its model; the exit status."""
    global _begun
    options = argv.parse(words)
    out = _part_streams(options)
    if options.instance:
        os.environ.setdefault(argv.INSTANCE, options.instance)
    worker = _begun = loop.Worker(options)
    faulthandler.enable(worker.attendant.log_fd)
    worker.attendant.bell.take_stacks()
    if not options.once:
        # before `build`: a load that nobody waits for any more ends too
        worker.attendant.start()
    try:
        return _answer_once(worker, out) if options.once else _serve_script(worker)
    except protocol.ProtocolError as exc:
        worker.attendant.log(f"{exc.reason}: {exc}")
        return 1


def _part_streams(options: Any) -> int:
    """Turn descriptor 1 to stderr, and give the real standard output.

    What the command line names among 0, 1 and 2 is moved out of the way first: in a
    container standard input is the lifeline.
    """
    for name in ("lifeline_fd", "ready_fd"):
        fd = getattr(options, name)
        if fd is not None and fd <= 2:
            setattr(options, name, os.dup(fd))
        elif fd is not None:
            os.set_inheritable(fd, False)
    out = os.dup(1)
    os.dup2(2, 1)
    # in the log's order, and not lost with a process that is ended
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if not options.once:
        _close_stdin()
    return out


def _close_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


# --- the script -------------------------------------------------------------------


def _serve_script(worker: Any) -> int:
    worker.attendant.door.refuse_unusable()
    script = _load(worker.options)
    if worker.served:
        return worker.attendant.status or 0
    model = _build(worker.options, script)
    warm_up = getattr(script, "warm_up", None)
    if warm_up is not None:
        warm_up(model)
    ready = getattr(script, "ready", None)
    said = {} if ready is None else dict(ready(model))
    status: int = worker.serve(_hooks(script, model), said)
    return status


def _load(options: Any) -> ModuleType:
    """Run the script's file as a module, its folder off sys.path."""
    # what `import worker_base` in it finds
    sys.modules.setdefault("worker_base", _this_module())
    sys.argv[:] = [options.script, *options.args]
    module = type(sys)("resident_worker")
    module.__file__ = options.script
    sys.modules[module.__name__] = module
    with open(options.script, "rb") as file:
        code = compile(file.read(), options.script, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def _this_module() -> ModuleType:
    """Give this file's module, by whatever name a launcher runs it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", None) is globals():
            return module
    module = type(sys)("worker_base")
    module.__dict__.update(globals())
    return module


def _build(options: Any, script: ModuleType) -> object:
    for name in ("build", "predict"):
        if not callable(getattr(script, name, None)):
            sys.stderr.write(f"{options.script}: no {name} found, a function wanted\n")
            raise SystemExit(1)
    model: object = script.build(argv.Config(options))
    return model


def _hooks(script: ModuleType, model: object) -> Any:
    predict = script.predict
    reset = getattr(script, "reset", None)
    return loop.Hooks(
        lambda request: predict(model, request),
        None if reset is None else lambda: reset(model),
    )


# --- a fresh process per request --------------------------------------------------


def _answer_once(worker: Any, out: int) -> int:
    """Answer the one request of standard input on the real standard output."""
    peer = callers.Peer(_socket.socket(_socket.AF_UNIX), worker.options.max_line_bytes)
    line = worker.attendant.line
    try:
        payload = protocol.decode_line(_line_of_stdin(peer.lines))
    except protocol.ProtocolError as exc:
        _write_all(out, line(calls.refusal(str(exc), exc.reason), {}))
        return 0
    finally:
        _close_stdin()
    # not before: the lifeline may be what the request came on
    worker.attendant.start()
    call = calls.Call(peer, payload)
    fault = calls.fault_of(payload, worker.options.known_operations())
    if fault is not None:
        _write_all(out, line(calls.refusal(fault, "bad_request"), payload))
        return 0
    script = _load(worker.options)
    worker.hooks = _hooks(script, _build(worker.options, script))
    started = monotonic()
    reply = worker.refused(call, started) or worker.predicted(call)
    over = monotonic()
    queued_s = started - call.received
    _write_all(out, line(reply, payload, queued_s, over - started))
    return worker.attendant.status or 0


def _line_of_stdin(lines: Any) -> bytes:
    """Read standard input up to its first newline and no further than it must."""
    while True:
        chunk = os.read(0, protocol.CHUNK_BYTES)
        if not chunk:
            raise protocol.ProtocolError(
                f"message: its end after {lines.size} bytes found, a newline wanted",
                received=lines.size,
            )
        line: bytes | None = lines.feed(chunk) or lines.take()
        if line is not None:
            return line


def _write_all(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]


# --- the end ----------------------------------------------------------------------


def _leave(status: int) -> NoReturn:
    """End the process after the model's exit handlers.

    Not the interpreter's way out: it waits for the model's threads for ever, and the
    destructors of a compiled stack can turn a clean end into a crash.
    """
    _thread.start_new_thread(_leave_late, (status,))
    try:
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # closed by the model, or never there
                continue
        _end_left()
        os._exit(status)


def _leave_late(status: int) -> None:
    time.sleep(EXIT_S)
    _end_left()
    os._exit(status)


def _end_left() -> None:
    # a forked child that got here must not end the worker above it
    if _begun is not None and _begun.attendant.pid == os.getpid():
        left_behind.end(_begun.options.instance)


def _run() -> NoReturn:
    try:
        status = main(sys.argv[1:])
    except BaseException as exc:  # a script's own SystemExit ends it as it wants to
        code = exc.code if isinstance(exc, SystemExit) else exc
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
        elif code is not None and not isinstance(code, int):
            sys.__excepthook__(type(exc), exc, exc.__traceback__)
        status = calls.exit_status(exc)
    _leave(status)


if __name__ == "__main__":
    _run()
