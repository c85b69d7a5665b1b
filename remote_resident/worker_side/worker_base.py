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

Signals. The kernel's signal number is written to the bell by the C handler at once, also
while the main thread is inside a long call into C; a Python handler would wait for its
end. After each prediction it is made sure that the model has not taken them. A forked
child of the model gets the defaults back, or ending it would end us.

Owner. The lifeline's EOF says that the owner is gone. A fork of the owner may hold the
pipe open, so its pidfd is watched too. Both from before `build`: a load that nobody waits
for ends as well.

Output. Descriptor 1 is turned to stderr before the script is loaded, whatever prints.
"""

# pathlib and contextlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH100, PTH101, PTH103, PTH104, PTH108, PTH112, PTH117, PTH118, PTH120, SIM105

from __future__ import annotations

import _socket
import _thread
import atexit
import errno
import faulthandler
import os
import resource
import select
import sys
import time
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import NoReturn
else:
    import _signal as signal

HERE = os.path.dirname(os.path.abspath(__file__))
# whatever lies beside this file must not shadow a module of the model's stack
sys.path[:] = [p for p in sys.path if not p or os.path.abspath(p) != HERE]


def _load(name: str, path: str) -> ModuleType:
    """Import a file under a name, without its folder on sys.path."""
    from importlib.machinery import ModuleSpec, SourceFileLoader

    loader = SourceFileLoader(name, path)
    spec = ModuleSpec(name, loader, origin=path)
    # lets the import system keep compiled bytes where it can
    spec.has_location = True
    module = type(sys)(name)
    module.__file__ = path
    module.__loader__ = loader
    module.__spec__ = spec
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


protocol = _load("resident_protocol", os.path.join(HERE, "protocol.py"))

NO_RELEASE = "TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE"
INSTANCE = "TU_RESIDENT_INSTANCE"

BROKEN = 70
"""Exit status where the model closed our descriptors, or for a bug of our own."""

STALLED_S = 10.0
"""How long a caller may leave its reply unread before its connection is closed."""
LAST_CALL_S = 10.0
"""How long who connected as the door shut may take to send a request."""
EXIT_S = 10.0
"""How long the model's exit handlers may take."""
TEXT_LIMIT = 20_000
"""Characters of an exception's text that a reply carries."""

BRIEF_S = 20e-6
LINGER_S = 50e-6
FRESH_S = 0.1
READS_PER_TURN = 16
PAGE = resource.getpagesize()
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
AT_ONCE = b'{"event":"queued","id":null,"position":0}\n{"event":"started","id":null}\n'


# --- what the script is given -----------------------------------------------------


class Config:
    """What `build` is given: attributes, which `config[name]` and dict() read too.

    `slug`, `manifest_dir`, `weights_root`, `work_root` (absolute paths as text, None
    where not declared), `args` (the list behind `--`), `device` (the UUID of the one
    admitted, None where there is none), and `socket_path` for a script that calls
    `serve` by itself.
    """

    __slots__ = (
        "args",
        "device",
        "manifest_dir",
        "slug",
        "socket_path",
        "weights_root",
        "work_root",
    )

    def __init__(self, options: Options) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, getattr(options, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"config.{name} is read-only")

    def __getitem__(self, name: str) -> object:
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """Name the attributes."""
        return self.__slots__


def release_cublas_workspaces() -> int:
    """Give back the workspaces that cuBLAS keeps per stream; the bytes freed.

    0 where torch is not loaded, has no CUDA, or does not say. Never raises. Off with
    TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE=1, which reproduces the growth.
    """
    torch = sys.modules.get("torch")
    clear = getattr(getattr(torch, "_C", None), "_cuda_clearCublasWorkspaces", None)
    if clear is None or os.environ.get(NO_RELEASE) == "1":
        return 0
    try:
        before = _allocated(torch)
        clear()
        return max(0, before - _allocated(torch))
    except Exception:  # a framework's own trouble; the request has its answer
        return 0


def _allocated(torch: object) -> int:
    cuda = getattr(torch, "cuda", None)
    count = getattr(cuda, "memory_allocated", None)
    return int(count()) if count is not None else 0


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
    are those of the command line.
    """
    options = _begun.options if _begun else Options()
    options.slug = slug
    options.socket_path = os.path.abspath(socket_path)
    if not _begun:
        options.orphan_grace_s = orphan_grace_s
    worker = _begun or Worker(options)
    worker.hooks = Hooks(on_predict, on_reset, release_cublas)
    worker.say = log
    worker.served = True
    return worker.serve(ready() if ready else {})


class Hooks:
    """What the loop calls of the model; a dataclass would cost 8 ms of the start."""

    __slots__ = ("predict", "release_cublas", "reset")

    def __init__(
        self,
        predict: Callable[[dict[str, object]], dict[str, object]],
        reset: Callable[[], object] | None,
        release_cublas: bool,
    ) -> None:
        self.predict = predict
        self.reset = reset
        self.release_cublas = release_cublas


# --- the command line -------------------------------------------------------------

_TEXTS = {
    "--resident-slug": "slug",
    "--resident-tree": "tree",
    "--resident-instance": "instance",
    "--inputs": "inputs",
    "--device": "device",
    "--operations": "operations",
}
_PATHS = {
    "--socket": "socket_path",
    "--script": "script",
    "--manifest-dir": "manifest_dir",
    "--weights-root": "weights_root",
    "--work-root": "work_root",
}
_SECONDS = {"--idle-timeout": "idle_timeout_s", "--orphan-grace": "orphan_grace_s"}
_COUNTS = {
    "--lifeline-fd": "lifeline_fd",
    "--ready-fd": "ready_fd",
    "--max-queue": "max_queue",
    "--max-line-bytes": "max_line_bytes",
}
_READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    **{flag: (name, str) for flag, name in _TEXTS.items()},
    **{flag: (name, os.path.abspath) for flag, name in _PATHS.items()},
    **{flag: (name, float) for flag, name in _SECONDS.items()},
    **{flag: (name, int) for flag, name in _COUNTS.items()},
}


class Options:
    """The command line; None where a value was not given."""

    def __init__(self) -> None:
        self.slug = ""
        self.tree: str | None = None
        self.instance: str | None = os.environ.get(INSTANCE)
        self.inputs: str | None = None
        self.device: str | None = None
        self.operations = ""
        self.socket_path = ""
        self.script = ""
        self.manifest_dir: str | None = None
        self.weights_root: str | None = None
        self.work_root: str | None = None
        self.idle_timeout_s = 0.0
        self.orphan_grace_s = 120.0
        self.lifeline_fd: int | None = None
        self.ready_fd: int | None = None
        self.max_queue = 16
        self.max_line_bytes = protocol.MAX_LINE_BYTES
        self.once = False
        self.args: list[str] = []

    def known_operations(self) -> tuple[str, ...]:
        """Name what a request may ask of the model."""
        named = [op for op in self.operations.split(",") if op]
        return tuple(dict.fromkeys(("predict", *named)))


def parse(argv: Sequence[str]) -> Options:
    """Read the command line; by hand, for argparse costs as much as the interpreter."""
    options = Options()
    waiting = list(argv)
    while waiting:
        flag, equals, value = waiting.pop(0).partition("=")
        if flag == "--":
            options.args = waiting
            break
        if flag == "--once":
            options.once = True
        elif flag not in _READERS:
            _refuse_usage(f"{flag}: no such option")
        elif not equals and not waiting:
            _refuse_usage(f"{flag}: nothing found, a value wanted")
        else:
            _set_option(options, flag, value if equals else waiting.pop(0))
    if not options.script or bool(options.socket_path) == options.once:
        _refuse_usage("--script, and one of --socket and --once, wanted")
    options.manifest_dir = options.manifest_dir or os.path.dirname(options.script)
    return options


def _set_option(options: Options, flag: str, value: str) -> None:
    name, read = _READERS[flag]
    try:
        setattr(options, name, read(value))
    except ValueError:
        _refuse_usage(f"{flag}: {value!r} found, a number wanted")


def _refuse_usage(text: str) -> NoReturn:
    sys.stderr.write(f"worker_base.py: {text}\n")
    raise SystemExit(2)


# --- the socket's path ------------------------------------------------------------


class Door:
    """The listening socket and its path: who can come in."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener: _socket.socket | None = None
        self._identity: tuple[int, int] | None = None

    def refuse_unusable(self) -> None:
        """Raise ProtocolError `socket_path` where nothing can be bound at the path."""
        size = len(os.fsencode(self.path))
        if size > protocol.MAX_PATH_BYTES:
            raise self._refusal(f"{size} bytes", f"at most {protocol.MAX_PATH_BYTES}")
        if not os.path.isdir(os.path.dirname(self.path)):
            raise self._refusal("no directory for it", "one")
        try:
            mode = os.lstat(self.path).st_mode >> 12
        except OSError:
            return
        if mode != 0o14:
            raise self._refusal("something that is no socket", "nothing or a socket")
        if self._somebody_listens():
            raise self._refusal("a socket that accepts", "nothing or a stale socket")

    def open(self) -> _socket.socket:
        """Listen, then take the path: a path that exists accepts."""
        self.refuse_unusable()
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        listener.setblocking(False)
        # the file is made with the socket's own mode, whatever the umask
        os.fchmod(listener.fileno(), 0o600)
        hidden = self._bind_hidden(listener)
        try:
            os.chmod(hidden, 0o600)
            found = os.lstat(hidden)
            self._identity = (found.st_dev, found.st_ino)
            listener.listen(1024)
            os.rename(hidden, self.path)
        except OSError:
            os.unlink(hidden)
            raise
        self.listener = listener
        return listener

    def shut(self) -> Iterator[_socket.socket]:
        """Let nobody in any more, and yield all who already were."""
        self.remove_path()
        if self.listener is None:
            return
        try:
            self.listener.shutdown(_socket.SHUT_RD)
        except OSError:
            return
        yield from self.accepted()

    def accepted(self) -> Iterator[_socket.socket]:
        """Yield who waits to be let in; raises OSError where descriptors run out."""
        while self.listener is not None:
            try:
                fd, _ = self.listener._accept()  # type: ignore[attr-defined, unused-ignore]
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                return
            sock = _socket.socket(fileno=fd)
            sock.setblocking(False)
            yield sock

    def remove_path(self) -> None:
        """Unlink the path if what lies there is still our socket."""
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._identity:
                os.unlink(self.path)
        except OSError:
            pass

    def _bind_hidden(self, listener: _socket.socket) -> str:
        """Bind beside the path under a name that is no longer than its own."""
        directory, name = os.path.split(self.path)
        room = protocol.MAX_PATH_BYTES - len(os.fsencode(self.path)) + len(name)
        for _ in range(100):
            hidden = os.path.join(directory, ("." + os.urandom(4).hex())[:room])
            if room < 2:
                hidden = os.path.join(directory, os.urandom(1).hex()[:1])
            try:
                listener.bind(hidden)
                return hidden
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise self._refusal(str(exc.strerror), "a place to bind") from None
        raise self._refusal("no free name beside it", "one")

    def _somebody_listens(self) -> bool:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self.path)
        except OSError as exc:
            return exc.errno == errno.EAGAIN
        finally:
            sock.close()
        return True

    def _refusal(self, found: str, wanted: str) -> RuntimeError:
        text = f"{self.path}: {found} found, {wanted} wanted"
        error: RuntimeError = protocol.ProtocolError(text, reason="socket_path")
        return error


def _peer_uid(sock: _socket.socket) -> int:
    credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


# --- memory -----------------------------------------------------------------------


class Memory:
    """This process's memory, cheaply enough to be told with every reply."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._seen: object = None
        self._text = ""
        self._fresh_until = 0.0
        self.device: tuple[int | None, int | None] = (None, None)
        """Reserved by the framework, now and at most, as last read by the main thread:
        another one could wait for the allocator with the interpreter in its hands."""

    def host(self) -> tuple[int | None, int | None]:
        """Give resident bytes, now and at most."""
        try:
            rss = int(self._read("/proc/self/statm").split()[1]) * PAGE
            # not ru_maxrss: that starts with the peak of the process that spawned this
            text = self._read("/proc/self/status")
            peak = int(text.partition(b"VmHWM:")[2].split()[0]) * 1024
        except (OSError, ValueError, IndexError):
            self._files.clear()
            return None, None
        return rss, max(rss, peak)

    def look_at_device(self) -> None:
        """Read what torch has reserved on its devices, where it uses any."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None:
            return
        try:
            if cuda.is_initialized():
                devices = range(cuda.device_count())
                self.device = (
                    sum(int(cuda.memory_reserved(i)) for i in devices),
                    sum(int(cuda.max_memory_reserved(i)) for i in devices),
                )
        except Exception:  # a framework's own trouble: the numbers are unknown
            self.device = (None, None)

    def fields(self) -> dict[str, object]:
        """Give the four fields of a meter."""
        rss, peak = self.host()
        device, device_peak = self.device
        return {
            "rss_bytes": rss,
            "rss_peak_bytes": peak,
            "device_bytes": device,
            "device_peak_bytes": device_peak,
        }

    def _read(self, path: str) -> bytes:
        fd = self._files.get(path)
        if fd is None:
            fd = self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, 4096, 0)

    def text(self, spent_s: float) -> str:
        """Give the four fields as they stand in a meter, after so much work.

        Reading takes as long as the rest of a small reply, so it is left out where it
        can hardly differ: no page fault since, or work of less than BRIEF_S (a few
        dozen pages at most), and then not for longer than FRESH_S.
        """
        now = monotonic()
        if spent_s < BRIEF_S and now < self._fresh_until:
            return self._text
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seen = (usage.ru_minflt, usage.ru_majflt, self.device)
        if seen != self._seen:
            self._text = protocol.text_of(self.fields())[1:]
            self._seen = seen
        self._fresh_until = now + FRESH_S
        return self._text


# --- requests ---------------------------------------------------------------------


class Peer:
    """One connection."""

    __slots__ = ("call", "fd", "last_call", "lines", "sock")

    def __init__(self, sock: _socket.socket, limit: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.lines = protocol.Lines(limit)
        self.call: Call | None = None
        """What it waits for; None: it is idle."""
        self.last_call: float | None = None
        """When its time to send a request is over; None: never."""


class Call:
    """One request that the model is to answer."""

    __slots__ = ("answered", "due", "events", "payload", "peer", "received")

    def __init__(self, peer: Peer, payload: dict[str, object]) -> None:
        self.peer = peer
        self.payload = payload
        self.received = monotonic()
        self.events = payload.get("events") is True
        self.answered = False
        self.due: float | None = None
        if "deadline" in payload:
            deadline = payload["deadline"]
            if isinstance(deadline, (int, float)):
                self.due = self.received + deadline

    def event(self, name: str, **fields: object) -> bytes:
        """Give the line of an event."""
        named = {"event": name, "id": self.payload.get("id"), **fields}
        line: bytes = protocol.encode_line(named)
        return line


def fault_of(payload: dict[str, object], operations: Sequence[str]) -> str | None:
    """Say why a request is none that a worker takes; None: nothing is wrong."""
    op = payload.get("op")
    if not isinstance(op, str) or op not in operations:
        known = ", ".join((*operations, *protocol.RESERVED))
        return f"op: {op!r} found, one of {known} wanted"
    deadline = payload.get("deadline")
    number = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
    if deadline is not None and not number:
        return f"deadline: {deadline!r} found, seconds wanted"
    directory = payload.get("output_dir")
    if directory is None:
        return None
    if not isinstance(directory, str) or not os.path.isabs(directory):
        return f"output_dir: {directory!r} found, an absolute path wanted"
    return None


def refusal(error: str, reason: str) -> dict[str, object]:
    """Build a reply that says no."""
    return {"ok": False, "error": error, "reason": reason}


def failure(exc: BaseException) -> dict[str, object]:
    """Build the reply for what a prediction raised, with its own reason if it has one."""
    if not isinstance(exc, Exception):
        return refusal(_text_of(exc), "worker_died")
    reason = getattr(exc, "reason", None)
    if isinstance(reason, str) and _is_reason(reason):
        return refusal(_text_of(exc), reason)
    return refusal(_text_of(exc), "request_failed")


def _text_of(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception:  # the exception's own __str__
        text = ""
    name = type(exc).__name__
    return (f"{name}: {text}" if text else name)[:TEXT_LIMIT]


def _is_reason(text: str) -> bool:
    """Match [a-z][a-z0-9_]* as a whole; `re` is not imported for it."""
    allowed = "abcdefghijklmnopqrstuvwxyz0123456789_"
    return "a" <= text[:1] <= "z" and all(c in allowed for c in text)


# --- the worker -------------------------------------------------------------------


class Worker:
    """The loop: what is in hand, who is connected, and when to leave."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.hooks: Hooks | None = None
        self.memory = Memory()
        self.door = Door(options.socket_path)
        self.served = False
        self.lock = _thread.allocate_lock()
        self.peers: dict[int, Peer] = {}
        self.queue: list[Call] = []
        self.running: Call | None = None
        self.busy_since: float | None = None
        self.kept: Peer | None = None
        self.requests = 0
        self.ready: dict[str, object] = {}
        self.operations: tuple[str, ...] = ("predict",)
        self.began = monotonic()
        self.active = monotonic()
        """When the last request was over."""
        self.orphaned: float | None = None
        self.retiring = False
        self.stopping = False
        self.status: int | None = None
        """The exit status, once it is decided to leave."""
        self.gone = False
        self.wake_at = float("inf")
        self.accept_at: float | None = None
        self.epoll = select.epoll()
        self.bell_r, self.bell_w = _bell()
        self.turn_r, self.turn_w = _bell()
        self.poll = select.poll()
        self.poll.register(self.turn_r, select.POLLIN)
        self.epoll.register(self.bell_r, select.EPOLLIN)
        self.watched: dict[int, str] = {}
        self.attending = False
        self._heard_method = self._heard
        self.heard = 0
        """Stop signals, as counted by the bell; those that Python's handler saw."""
        self.heard_late = 0
        self.obeyed = 0
        self.log_fd = os.dup(2)
        self.say: Callable[[str], object] | None = None

    # --- start and end, in the main thread

    def attend(self) -> None:
        """Start the attendant, once."""
        if not self.attending:
            self.attending = True
            os.register_at_fork(after_in_child=self._after_fork)
            _thread.start_new_thread(self._attendant, ())

    def serve(self, ready: dict[str, object]) -> int:
        """Open the door, answer until it is time to leave, give the exit status."""
        protocol.encode_line(ready)
        self.ready = ready
        self.operations = self.options.known_operations()
        self.door.path = self.options.socket_path
        self.memory.look_at_device()
        self.attend()
        self._take_signals()
        listener = self.door.open()
        self.active = monotonic()
        self.epoll.register(listener.fileno(), select.EPOLLIN)
        self._ring()
        self.tell_ready()
        try:
            self._loop()
        finally:
            self._dismiss()
        return self.status or 0

    def _loop(self) -> None:
        call: Call | None = None
        sent = True
        while True:
            with self.lock:
                if call is not None:
                    self._finish(call, sent)
                    call = None
                if self.status is not None:
                    return
                if self.queue:
                    call = self._begin(self.queue.pop(0))
            call = call or self._wait()
            if call is not None:
                sent = self._answer(call)

    def tell_ready(self) -> None:
        """Write the one line of the ready pipe and close it."""
        fd = self.options.ready_fd
        if fd is None:
            return
        self.options.ready_fd = None
        said: dict[str, object]
        said = {"ready": True, "load_s": monotonic() - self.began, "pid": os.getpid()}
        try:
            os.write(fd, protocol.encode_line(said))
            os.close(fd)
        except OSError as exc:
            self.log(f"ready pipe: {exc.strerror}")

    def _dismiss(self) -> None:
        """Shut the door, and refuse whoever still asks."""
        with self.lock:
            for sock in self.door.shut():
                self._admit(sock)
            self.gone = True
            self.stopping = True
            for call in self.queue:
                self._refuse(call.peer, self._stopping(), call.payload)
            self.queue.clear()
            for peer in list(self.peers.values()):
                if peer.call is None:
                    self._read(peer)
                self._close(peer)
        self._ring()

    def log(self, text: str) -> None:
        """Write one line to the log, which is stderr unless `serve` was given another."""
        if self.say is not None:
            self.say(text)
            return
        line = f"{time.strftime('%H:%M:%S')} worker {self.options.slug}: {text}\n"
        try:
            os.write(self.log_fd, line.encode(errors="backslashreplace"))
        except OSError:
            pass

    # --- signals

    def _take_signals(self) -> None:
        """Install our handlers; in the main thread, after the model's."""
        signal.set_wakeup_fd(self.bell_w, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._heard_method)
        self._usr1 = signal.getsignal(signal.SIGUSR1)
        faulthandler.register(signal.SIGUSR1, self.log_fd, all_threads=True)

    def _keep_signals(self) -> None:
        """Take back what a prediction took."""
        if (
            _signal_now(signal.SIGTERM) is self._heard_method
            and _signal_now(signal.SIGINT) is self._heard_method
            and _signal_now(signal.SIGUSR1) is self._usr1
        ):
            return
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        self._take_signals()

    def _heard(self, number: int, frame: object) -> None:
        """Count a signal in the main thread: the model may have taken the bell away."""
        self.heard_late += 1
        self._ring()

    def _after_fork(self) -> None:
        """Let a forked child of the model have nothing of ours."""
        if signal.getsignal(signal.SIGTERM) is self._heard_method:
            signal.set_wakeup_fd(-1)
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
        listener = self.door.listener
        if listener is not None:
            listener.close()
        for peer in self.peers.values():
            peer.sock.close()

    # --- the main thread's turn

    def _wait(self) -> Call | None:
        """Wait until there is something to do; give the kept caller's request."""
        for fd, what in self._linger() or self.poll.poll():
            if fd == self.turn_r:
                self._hear_turn(what)
                continue
            with self.lock:
                peer = self.kept
                call = None if peer is None else self._read(peer)
                if call is None:
                    continue
                if not self.queue and not self.retiring:
                    return self._begin(call)
                self._queue(call)
        return None

    def _linger(self) -> list[tuple[int, int]]:
        """Look for the next request of a caller who asks one after the other.

        To sleep and be woken costs more than to answer a small one.
        """
        until = self.active + LINGER_S
        while True:
            ready = self.poll.poll(0)
            if ready or monotonic() > until:
                return ready
            os.sched_yield()

    def _hear_turn(self, what: int) -> None:
        try:
            if what & select.POLLIN and os.read(self.turn_r, 4096):
                return
        except OSError:
            pass
        self.log("a descriptor of the worker was closed by the model; leaving")
        self.status = BROKEN

    def _begin(self, call: Call) -> Call:
        """Make a request the one that runs. Lock held."""
        peer = call.peer
        if peer is not self.kept:
            self._give_back()
            self._unwatch(peer)
        peer.call = call
        self.running = call
        self.busy_since = time.time()
        self.requests += 1
        if call.due is not None and call.due < self.wake_at:
            self._ring()
        return call

    def _give_back(self) -> None:
        """Let the attendant watch the kept connection again. Lock held."""
        peer = self.kept
        self.kept = None
        if peer is not None:
            self.poll.unregister(peer.fd)
            if peer.fd in self.peers:
                self._watch(peer, select.EPOLLIN)

    def _keep(self, peer: Peer) -> None:
        """Watch the connection just answered from here. Lock held."""
        if peer is not self.kept and not self.gone:
            self.kept = peer
            self.poll.register(peer.fd, select.POLLIN)

    def _answer(self, call: Call) -> bool:
        """Run a request and send its reply; False where nobody takes it."""
        started = over = monotonic()
        try:
            reply = self._tell_started(call, started)
            if reply is None:
                reply = self._predicted(call)
                over = monotonic()
        except ConnectionError:
            return False
        line = self._line(reply, call.payload, started - call.received, over - started)
        if call.due is not None:
            with self.lock:
                if call.answered:
                    return True
                call.answered = True
        sent = self._send(call.peer, line)
        # while the caller reads its reply
        self._keep_signals()
        return sent

    def _tell_started(self, call: Call, now: float) -> dict[str, object] | None:
        """Say that the prediction begins; a reply where it does not, None where it does.

        Raises ConnectionError where nobody waits for it any more.
        """
        if call.due is not None and now >= call.due:
            return self._late(call)
        if self.options.work_root is not None or "output_dir" in call.payload:
            fault = self._make_output_dir(call)
            if fault is not None:
                return refusal(fault, "bad_request")
        if not call.events:
            return None
        if call.peer is self.kept and "id" not in call.payload:
            line = AT_ONCE
        elif call.peer is self.kept:
            line = call.event("queued", position=0) + call.event("started")
        else:
            line = call.event("started")
        if not self._send(call.peer, line):
            # who closed its connection while it waited has left the queue
            raise ConnectionError
        return None

    def _make_output_dir(self, call: Call) -> str | None:
        """Make the directory that a prediction writes into; say why it cannot be."""
        wanted = call.payload.get("output_dir")
        if wanted is None:
            if self.options.work_root is None:
                return None
            name = f"{self.options.slug}-{os.getpid()}-{os.urandom(6).hex()}"
            wanted = os.path.join(self.options.work_root, name)
            call.payload["output_dir"] = wanted
        try:
            os.makedirs(str(wanted), 0o700, exist_ok=True)
        except OSError as exc:
            return f"output_dir: {wanted}: {exc.strerror}"
        return None

    def _predicted(self, call: Call) -> dict[str, object]:
        """Ask the model, and give the reply whatever happens."""
        hooks = self.hooks
        assert hooks is not None
        try:
            if hooks.reset is not None:
                hooks.reset()
            reply = _checked(hooks.predict(dict(call.payload)))
            if "output_dir" in call.payload:
                reply["output_dir"] = call.payload["output_dir"]
        except Exception as exc:  # the model's errors are the caller's answer
            self._log_traceback(exc)
            reply = failure(exc)
        except BaseException as exc:  # answered, then it ends the worker as it wants to
            self._log_traceback(exc)
            reply = failure(exc)
            self.status = exit_status(exc)
        if hooks.release_cublas:
            release_cublas_workspaces()
        self.memory.look_at_device()
        return reply

    def _line(
        self,
        reply: dict[str, object],
        payload: dict[str, object],
        queued_s: float = 0.0,
        predict_s: float = 0.0,
    ) -> bytes:
        """Encode a reply; one that cannot be becomes the reason why."""
        meter = (
            f',"_meter":{{"queued_s":{queued_s:.6f},"predict_s":{predict_s:.6f},'
            f"{self.memory.text(predict_s)}}}\n"
        )
        if "id" in payload:
            reply["id"] = payload["id"]
        line: bytes
        try:
            text = protocol.text_of(reply)[:-1] + meter
            line = protocol.bytes_of(text, self.options.max_line_bytes)
        except protocol.ProtocolError as exc:
            reason = "too_large" if exc.reason == "too_large" else "request_failed"
            instead = refusal(f"reply: {exc}", reason)
            if "id" in payload:
                instead["id"] = payload["id"]
            line = protocol.bytes_of(protocol.text_of(instead)[:-1] + meter)
        return line

    def _send(self, peer: Peer, line: bytes) -> bool:
        """Send a line as fast as its reader takes it; False where nobody does."""
        try:
            sent = peer.sock.send(line)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent == len(line):
            return True
        writable = select.poll()
        writable.register(peer.fd, select.POLLOUT)
        rest = memoryview(line)[sent:]
        while rest:
            if not writable.poll(STALLED_S * 1000):
                self.log(f"a caller read nothing for {STALLED_S} s; closed")
                return False
            try:
                rest = rest[peer.sock.send(rest) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True

    def _finish(self, call: Call, sent: bool) -> None:
        """Let go of a request that is over. Lock held."""
        peer = call.peer
        self.running = None
        self.busy_since = None
        self.active = monotonic()
        peer.call = None
        if not sent or self.retiring or self.stopping:
            self._close(peer)
        else:
            self._keep(peer)
        if self.stopping and self.status is None:
            self.status = 0
        if self.orphaned is not None or self.retiring:
            self._ring()

    def _log_traceback(self, exc: BaseException) -> None:
        try:
            sys.__excepthook__(type(exc), exc, exc.__traceback__)
            sys.stderr.flush()
        except Exception:  # the model may have closed stderr, or its __str__ raises
            self.log(_text_of(exc))

    # --- the attendant

    def _attendant(self) -> None:
        try:
            self._watch_owner()
            while not self.gone:
                self.wake_at = self._next_time()
                wait = self.wake_at - monotonic()
                for fd, what in self.epoll.poll(max(0.0, wait) if wait < 1e9 else None):
                    with self.lock:
                        if not self.gone:
                            self._on_event(fd, what)
                with self.lock:
                    if not self.gone:
                        self._on_time(monotonic())
        except BaseException as exc:  # without an attendant nobody is let in: a bug
            if self.gone:
                return
            self._log_traceback(exc)
            self.door.remove_path()
            os._exit(BROKEN)

    def _watch_owner(self) -> None:
        lifeline = self.options.lifeline_fd
        if lifeline is None:
            return
        self.watched[lifeline] = "its end of the lifeline is closed"
        parent = os.getppid()
        if parent > 0 and hasattr(os, "pidfd_open"):
            try:
                pidfd = os.pidfd_open(parent)
                self.watched[pidfd] = f"process {parent} has ended"
            except OSError:
                pass
        for fd in self.watched:
            self.epoll.register(fd, select.EPOLLIN)

    def _on_event(self, fd: int, what: int) -> None:
        listener = self.door.listener
        if fd in self.peers:
            self._on_peer(self.peers[fd])
        elif fd == self.bell_r:
            self._hear_bell()
        elif fd in self.watched:
            self._on_owner(fd)
        elif listener is not None and fd == listener.fileno():
            self._accept()

    def _hear_bell(self) -> None:
        for number in os.read(self.bell_r, 4096):
            self.heard += number in STOP_SIGNALS
        while self.obeyed < max(self.heard, self.heard_late):
            self.obeyed += 1
            self._on_stop_signal()

    def _on_stop_signal(self) -> None:
        if self.obeyed == 1:
            self.log("told to stop by a signal: finishing what is in hand")
            if not self.stopping:
                self._stop()
            return
        self.log("told to stop by a signal again: leaving at once")
        self.door.remove_path()
        os._exit(128 + signal.SIGTERM)

    def _on_owner(self, fd: int) -> None:
        try:
            if "lifeline" in self.watched[fd] and os.read(fd, 4096):
                return
        except OSError:
            pass
        self.epoll.unregister(fd)
        if self.orphaned is None:
            self.orphaned = monotonic()
            grace = self.options.orphan_grace_s
            self.log(
                f"the owner is gone: {self.watched[fd]}; leaving {grace} s after the "
                f"last request"
            )

    def _accept(self) -> None:
        try:
            for sock in self.door.accepted():
                self._admit(sock)
        except OSError as exc:
            self.log(f"accepting: {exc.strerror}; again in 1 s")
            self._pause_accepting()

    def _pause_accepting(self) -> None:
        """Look away from the door for a second, or the loop would spin on it."""
        if self.door.listener is not None:
            self.epoll.modify(self.door.listener.fileno(), 0)
            self.accept_at = monotonic() + 1.0

    def _admit(self, sock: _socket.socket) -> Peer | None:
        uid = _peer_uid(sock)
        peer = Peer(sock, self.options.max_line_bytes)
        if uid == os.geteuid():
            self.peers[peer.fd] = peer
            self.epoll.register(peer.fd, select.EPOLLIN)
            return peer
        self.log(f"a caller of uid {uid} was refused")
        error = f"uid {uid} found, uid {os.geteuid()} wanted"
        self._refuse(peer, refusal(error, "unauthorized"), {})
        sock.close()
        return None

    def _on_peer(self, peer: Peer) -> None:
        if peer.call is None:
            call = self._read(peer)
            if call is not None:
                self._queue(call)
        elif peer.call in self.queue:
            # only a hang-up is watched for
            self.queue.remove(peer.call)
            self._close(peer)

    def _read(self, peer: Peer) -> Call | None:
        """Read what has arrived, answer what can be, give the request that cannot."""
        for _ in range(READS_PER_TURN):
            try:
                chunk = peer.sock.recv(protocol.CHUNK_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                self._close(peer)
                return None
            if not chunk:
                self._ended(peer)
                return None
            line = peer.lines.feed(chunk)
            call = (
                self._next_call(peer) if line is None else self._line_call(peer, line)
            )
            if call is not None or peer.fd not in self.peers:
                return call
            if len(chunk) < protocol.CHUNK_BYTES:
                return None
        return None

    def _ended(self, peer: Peer) -> None:
        size = peer.lines.size
        if size:
            error = f"message: its end after {size} bytes found, a newline wanted"
            self._refuse(peer, refusal(error, "protocol_error"), {})
        self._close(peer)

    def _next_call(self, peer: Peer) -> Call | None:
        while peer.fd in self.peers:
            try:
                line = peer.lines.take()
            except protocol.ProtocolError as exc:
                self._refuse(peer, refusal(str(exc), exc.reason), {})
                continue
            if line is None:
                return None
            call = self._line_call(peer, line)
            if call is not None:
                return call
        return None

    def _line_call(self, peer: Peer, line: bytes) -> Call | None:
        """Give the request in a line; None where it was answered here."""
        try:
            payload = protocol.decode_line(line)
        except protocol.ProtocolError as exc:
            self._refuse(peer, refusal(str(exc), exc.reason), {})
            self._close(peer)
            return None
        if (
            self.stopping
            or payload.get("op") not in self.operations
            or "deadline" in payload
            or "output_dir" in payload
        ) and self._answered_here(peer, payload):
            return None
        return Call(peer, payload)

    def _answered_here(self, peer: Peer, payload: dict[str, object]) -> bool:
        op = payload.get("op")
        if isinstance(op, str) and op in protocol.RESERVED:
            self._answer_reserved(peer, op, payload)
            return True
        fault = fault_of(payload, self.operations)
        if fault is not None:
            self._refuse(peer, refusal(fault, "bad_request"), payload)
        elif self.stopping:
            self._refuse(peer, self._stopping(), payload)
        else:
            return False
        return True

    def _queue(self, call: Call) -> None:
        """Let a request wait for its turn, or refuse it. Lock held."""
        ahead = len(self.queue) + (self.running is not None)
        if ahead > self.options.max_queue:
            error = (
                f"{len(self.queue)} waiting found, at most {self.options.max_queue} "
                f"wanted"
            )
            self._refuse(call.peer, refusal(error, "queue_full"), call.payload)
            return
        if call.events and not self._write(
            call.peer, call.event("queued", position=ahead)
        ):
            return
        call.peer.call = call
        self.queue.append(call)
        if call.peer is self.kept:
            self._give_back()
        self._watch(call.peer, 0)
        if self.running is None:
            _ring(self.turn_w)

    def _answer_reserved(self, peer: Peer, op: str, payload: dict[str, object]) -> None:
        if op == "ping":
            reply = self._pinged()
        elif op == "stacks":
            reply = self._stacks()
        else:
            reply = {"ok": True, "stopping": True}
        self._write(peer, self._line(reply, payload))
        if op == "stop" and not self.stopping:
            self.log("asked to stop: finishing what is in hand")
            self._stop()

    def _pinged(self) -> dict[str, object]:
        options = self.options
        return {
            **self.ready,
            "ok": True,
            "protocol": protocol.VERSION,
            "slug": options.slug,
            "tree": options.tree,
            "instance": options.instance,
            "pid": os.getpid(),
            "inputs": options.inputs,
            "uptime_s": monotonic() - self.began,
            "requests": self.requests,
            "queue": len(self.queue),
            "busy_since": self.busy_since,
            "stopping": self.stopping or self.retiring,
            **self.memory.fields(),
        }

    def _stacks(self) -> dict[str, object]:
        """Give every thread's stack, which the log gets too."""
        path = f"{os.path.dirname(self.options.socket_path)}/.{os.urandom(6).hex()}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)
        except OSError as exc:
            return refusal(f"stacks: {exc.strerror}", "request_failed")
        try:
            faulthandler.dump_traceback(fd, all_threads=True)
            text = os.pread(fd, 1 << 20, 0).decode(errors="replace")
        finally:
            os.close(fd)
        self.log(f"stacks:\n{text}")
        return {"ok": True, "stacks": text}

    def _refuse(
        self, peer: Peer, reply: dict[str, object], payload: dict[str, object]
    ) -> None:
        waited = monotonic() - peer.call.received if peer.call else 0.0
        self._write(peer, self._line(reply, payload, waited))

    def _write(self, peer: Peer, line: bytes) -> bool:
        """Write a short line without waiting; who cannot take it is closed."""
        try:
            if peer.sock.send(line) == len(line):
                return True
        except OSError:
            pass
        self._close(peer)
        return False

    def _stopping(self) -> dict[str, object]:
        return refusal("the worker is leaving", "stopping")

    def _late(self, call: Call) -> dict[str, object]:
        return refusal(
            f"deadline: {monotonic() - call.received} s since the request found, "
            f"at most {call.payload['deadline']} wanted",
            "request_timeout",
        )

    # --- who watches a connection; lock held

    def _watch(self, peer: Peer, what: int) -> None:
        try:
            self.epoll.modify(peer.fd, what)
        except FileNotFoundError:
            self.epoll.register(peer.fd, what)

    def _unwatch(self, peer: Peer) -> None:
        try:
            self.epoll.unregister(peer.fd)
        except OSError:
            pass

    def _close(self, peer: Peer) -> None:
        """Close a connection; one whose request runs stays until that is over."""
        if self.peers.get(peer.fd) is not peer:
            return
        if peer is self.kept:
            self.kept = None
            self.poll.unregister(peer.fd)
        else:
            self._unwatch(peer)
        del self.peers[peer.fd]
        peer.sock.close()
        if not self.peers:
            self._ring()

    # --- time and leaving; lock held

    def _next_time(self) -> float:
        """Give when something is due if nothing happens until then."""
        with self.lock:
            calls = [*self.queue, *([self.running] if self.running else [])]
            times = [c.due for c in calls if c.due is not None and not c.answered]
            times += [p.last_call for p in self.peers.values() if p.last_call]
            leave = self._leave_time()
            for due in (leave, self.accept_at):
                if due is not None:
                    times.append(due)
        return min(times, default=float("inf"))

    def _leave_time(self) -> float | None:
        """Give when the worker is to leave if nobody asks; None: not by itself."""
        busy = self.running is not None or self.queue
        if busy or self.retiring or self.stopping:
            return None
        times = []
        if self.orphaned is not None:
            since = max(self.orphaned, self.active)
            times.append(since + self.options.orphan_grace_s)
        # an open connection keeps the worker, whoever holds it
        if self.options.idle_timeout_s > 0 and not self.peers and self.served:
            times.append(self.active + self.options.idle_timeout_s)
        return min(times) if times else None

    def _on_time(self, now: float) -> None:
        for call in [c for c in self.queue if c.due is not None and c.due <= now]:
            self.queue.remove(call)
            self._time_out(call)
            call.peer.call = None
            if call.peer.fd in self.peers:
                self._watch(call.peer, select.EPOLLIN)
        self._time_out_running(now)
        if self.accept_at is not None and self.accept_at <= now:
            self.accept_at = None
            self._accept_again()
        leave = self._leave_time()
        if leave is not None and leave <= now:
            self._retire()
        if self.retiring:
            self._see_off(now)

    def _time_out_running(self, now: float) -> None:
        call = self.running
        if call is None or call.answered or call.due is None or call.due > now:
            return
        call.answered = True
        self._time_out(call)

    def _time_out(self, call: Call) -> None:
        self._refuse(call.peer, self._late(call), call.payload)

    def _accept_again(self) -> None:
        if self.door.listener is not None:
            self.epoll.modify(self.door.listener.fileno(), select.EPOLLIN)

    def _retire(self) -> None:
        """Leave for want of requests, unless one is at the door."""
        if not self.served or self.door.listener is None:
            self.log("the owner is gone and nothing is loaded; leaving")
            os._exit(128 + signal.SIGTERM)
        before = len(self.peers)
        self._accept()
        if len(self.peers) > before:
            return
        self.log("nobody asks; leaving")
        self.retiring = True
        last_call = monotonic() + LAST_CALL_S
        for sock in self.door.shut():
            peer = self._admit(sock)
            if peer is not None:
                peer.last_call = last_call

    def _see_off(self, now: float) -> None:
        """Leave once all are answered who came in as the door shut."""
        waiting = [p for p in self.peers.values() if p.last_call or p.call]
        for peer in waiting:
            if peer.call is None and peer.last_call and peer.last_call <= now:
                self._close(peer)
        if not any(p.fd in self.peers for p in waiting) and self.status is None:
            self.status = 0
            _ring(self.turn_w)

    def _stop(self) -> None:
        """Finish what is in hand, refuse what waits."""
        self.stopping = True
        for sock in self.door.shut():
            self._admit(sock)
        for call in self.queue:
            self._refuse(call.peer, self._stopping(), call.payload)
            self._close(call.peer)
        self.queue.clear()
        if self.running is None:
            self.status = 0
            _ring(self.turn_w)

    def _ring(self) -> None:
        _ring(self.bell_w)


def _bell() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _ring(fd: int) -> None:
    try:
        os.write(fd, b"\0")
    except OSError:
        # full: it rings already
        pass


def _checked(result: object) -> dict[str, object]:
    """Make a reply of what `predict` returned; raises TypeError where none can be."""
    if not isinstance(result, dict):
        found = type(result).__name__
        raise TypeError(f"predict returned a {found}, a dict wanted")
    for key in ("id", "event", "_meter", "ok"):
        if key in result and (key != "ok" or result[key] is not True):
            raise TypeError(f"predict returned {key!r}, which is the protocol's")
    return {"ok": True, **result}


_signal_now = signal.getsignal


def exit_status(exc: BaseException) -> int:
    """Give the status that the interpreter would end with."""
    if isinstance(exc, SystemExit):
        code = exc.code
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF
        return 1
    return 130 if isinstance(exc, KeyboardInterrupt) else 1


# --- the process ------------------------------------------------------------------

_begun: Worker | None = None
"""The worker of this process, once its command line was read."""


def config() -> Config:
    """Give the configuration of the worker of this process; for who calls `serve`."""
    return Config(_begun.options if _begun else Options())


def main(argv: Sequence[str]) -> int:
    """Load the script and answer for its model; the exit status."""
    global _begun
    options = parse(argv)
    out = _part_streams(options)
    if options.instance:
        os.environ.setdefault(INSTANCE, options.instance)
    worker = _begun = Worker(options)
    faulthandler.enable(worker.log_fd)
    faulthandler.register(signal.SIGUSR1, worker.log_fd, all_threads=True)
    # before `build`: a load that nobody waits for any more ends too
    worker.attend()
    try:
        if options.once:
            return _answer_once(worker, out)
        worker.door.refuse_unusable()
        return _serve_script(worker)
    except protocol.ProtocolError as exc:
        worker.log(f"{exc.reason}: {exc}")
        return 1


def _part_streams(options: Options) -> int:
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
    if sys.stdout is not None:
        # in the log's order, and not lost with a process that is ended
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if not options.once:
        _close_stdin()
    return out


def _close_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _serve_script(worker: Worker) -> int:
    script = _load_script(worker.options)
    if worker.served:
        return worker.status or 0
    hooks, model = _built(worker, script)
    warm_up = getattr(script, "warm_up", None)
    if warm_up is not None:
        warm_up(model)
    worker.hooks = hooks
    worker.served = True
    ready = getattr(script, "ready", None)
    return worker.serve(dict(ready(model)) if ready is not None else {})


def _load_script(options: Options) -> ModuleType:
    # `import worker_base` in the script gets this module, off sys.path as it is
    sys.modules.setdefault("worker_base", _this_module())
    sys.argv[:] = [options.script, *options.args]
    return _load("resident_worker", options.script)


def _this_module() -> ModuleType:
    """Give this file's module, by whatever name a launcher runs it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", None) is globals():
            return module
    module = type(sys)("worker_base")
    module.__dict__.update(globals())
    return module


def _built(worker: Worker, script: ModuleType) -> tuple[Hooks, object]:
    build, predict = (getattr(script, name, None) for name in ("build", "predict"))
    if not callable(build) or not callable(predict):
        sys.stderr.write(
            f"{worker.options.script}: functions build and predict wanted\n"
        )
        raise SystemExit(1)
    model = build(Config(worker.options))
    reset = getattr(script, "reset", None)
    return (
        Hooks(
            lambda request: predict(model, request),
            None if reset is None else lambda: reset(model),
            True,
        ),
        model,
    )


def _answer_once(worker: Worker, out: int) -> int:
    """Answer the one request of standard input on the real standard output."""
    peer = Peer(_socket.socket(_socket.AF_UNIX), worker.options.max_line_bytes)
    try:
        payload = protocol.decode_line(_line_of_stdin(peer))
    except protocol.ProtocolError as exc:
        _write_all(out, worker._line(refusal(str(exc), exc.reason), {}))
        return 0
    finally:
        _close_stdin()
    fault = fault_of(payload, worker.options.known_operations())
    if fault is not None:
        _write_all(out, worker._line(refusal(fault, "bad_request"), payload))
        return 0
    call = Call(peer, payload)
    call.events = False
    worker.hooks, _ = _built(worker, _load_script(worker.options))
    started = monotonic()
    reply = worker._tell_started(call, started) or worker._predicted(call)
    spent = monotonic() - started
    _write_all(out, worker._line(reply, payload, started - call.received, spent))
    return worker.status or 0


def _line_of_stdin(peer: Peer) -> bytes:
    """Read standard input up to its first newline and no further than it must."""
    while True:
        line: bytes | None = peer.lines.take()
        if line is not None:
            return line
        chunk = os.read(0, protocol.CHUNK_BYTES)
        if not chunk:
            size = peer.lines.size
            raise protocol.ProtocolError(
                f"message: its end after {size} bytes found, a newline wanted",
                received=size,
            )
        peer.lines.feed(chunk)


def _write_all(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]


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
                pass
        os._exit(status)


def _leave_late(status: int) -> None:
    time.sleep(EXIT_S)
    os._exit(status)


def _run() -> NoReturn:
    try:
        status = main(sys.argv[1:])
    except BaseException as exc:  # a script's own SystemExit ends it as it wants to
        code = exc.code if isinstance(exc, SystemExit) else exc
        if code is not None and not isinstance(code, int):
            sys.__excepthook__(type(exc), exc, exc.__traceback__)
        status = exit_status(exc)
    _leave(status)


if __name__ == "__main__":
    _run()
