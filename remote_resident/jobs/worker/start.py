"""The story of one worker: read, load, listen, initialise, wait, take down, leave."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from . import argv, binding, entry, owner, signals, tags
from .app import Parts, application, document
from .argv import Options
from .auth import guarded
from .binding import Binding
from .departure import Departure
from .runner import Runner
from .runtime import Runtime
from .server import descriptors, quieten, serve, server_of

INSTANCE = "TU_RESIDENT_INSTANCE"
BROKEN = 70
"""Exit status for a bug of our own."""
EXIT_S = 10.0
"""How long the plugin's exit handlers may take."""


def run() -> NoReturn:
    """Run the command line that this process was started with, and leave."""
    # before the plugin is imported, which may hang too
    signals.tell_stacks()
    options = argv.parse(sys.argv[1:], os.environ)
    argv.forget_token()
    if options.openapi:
        _leave(_print_document(options))
    if options.instance:
        os.environ.setdefault(INSTANCE, options.instance)
    options = _part_streams(options)
    _leave(_serve(options))


def _print_document(options: Options) -> int:
    """Write the document to the real standard output, whatever the plugin prints."""
    out = os.dup(1)
    tags.install()
    entry.put_started_folder_first()
    try:
        plugin = entry.load(options.entry) if options.entry else None
        runner = Runner(plugin, options.state_root)
        parts = Parts(options.plugin_id, plugin, runner, Runtime(plugin))
        text = json.dumps(document(parts), indent=2)
    except entry.BadEntry as exc:
        argv.warn(str(exc))
        return 1
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return 0


def _part_streams(options: Options) -> Options:
    """Part the standard streams; what is named among them is moved out of the way."""
    options = replace(
        options,
        lifeline_fd=_moved(options.lifeline_fd),
        ready_fd=_moved(options.ready_fd),
    )
    tags.install()
    return options


def _moved(fd: int | None) -> int | None:
    return os.dup(fd) if fd is not None and fd <= 2 else fd


def _serve(options: Options) -> int:
    entry.put_started_folder_first()
    try:
        worker = Worker(options, entry.load(options.entry))
        return worker.serve()
    except (entry.BadEntry, binding.Unusable) as exc:
        argv.warn(str(exc))
    # the plugin's own code, while it was imported and made: for its author
    except BaseException as exc:
        tags.print_exception(exc)
    return 1


class Worker:
    """The parts of one worker, put together."""

    def __init__(self, options: Options, plugin: Any) -> None:
        self._options = options
        self._runtime = Runtime(plugin)
        self._runner = Runner(plugin, options.state_root, self._call_soon)
        parts = Parts(
            options.plugin_id, plugin, self._runner, self._runtime, options.keepalive_s
        )
        self._server = server_of(guarded(application(parts), options.token))
        self._place: Binding | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._departure: Departure | None = None
        self._status = BROKEN
        self._answering = threading.Event()
        self._left = threading.Event()

    def serve(self) -> int:
        """Answer until it is time to leave; the exit status. Raises Unusable."""
        bell = signals.Bell(self._told_to_stop, self._leave_at_once)
        bell.close_in_forks(self._descriptors)
        bell.take()
        self._place = _bind(self._options)
        threading.Thread(target=self._run_loop, name="loop", daemon=True).start()
        self._answering.wait()
        up = self._runtime.initialise()
        # the plugin may have taken them while it came up; before a job can run
        bell.take()
        self._runner.runtime_is_up(up)
        self._left.wait()
        if self._status == 0:
            self._runtime.shut_down()
        return self._status

    # --- the loop's thread

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._answer())
        except BaseException as exc:  # nobody would be answered any more: end all of it
            tags.print_exception(exc)
        self._remove_path()
        self._answering.set()
        self._left.set()
        # the main thread may be in a long call: status 3 is there to free the device
        if self._status != 0 or self._runtime.state == "starting":
            os._exit(self._status)

    async def _answer(self) -> None:
        assert self._place is not None
        self._loop = asyncio.get_running_loop()
        grace_s = self._options.grace_s
        self._departure = Departure(self._runner, grace_s, self._leave, self._say)
        if self._options.lifeline_fd is not None:
            owner.watch(self._options.lifeline_fd, self._departure.orphan)
        self._say(f"listening on {self._place.where}")
        self._tell_ready()
        self._answering.set()
        await serve(self._server, self._place.listener)

    def _leave(self, status: int) -> None:
        """Let nobody in any more; streams have a moment for their terminal event."""
        self._status = status
        self._remove_path()
        quieten()
        self._server.should_exit = True

    def _tell_ready(self) -> None:
        fd = self._options.ready_fd
        if fd is not None and self._place is not None:
            line = {"ready": True, "pid": os.getpid(), "port": self._place.port}
            with contextlib.suppress(OSError):
                os.write(fd, f"{json.dumps(line)}\n".encode())
            os.close(fd)

    # --- any thread

    def _call_soon(self, do: Callable[[], object]) -> None:
        # a loop that has ended has nobody to tell
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(do)

    def _told_to_stop(self, why: str) -> None:
        self._answering.wait()
        if self._departure is not None:
            self._call_soon(functools.partial(self._departure.stop, why))

    def _leave_at_once(self, status: int) -> None:
        self._remove_path()
        os._exit(status)

    def _remove_path(self) -> None:
        if self._place is not None:
            self._place.remove()

    def _descriptors(self) -> list[int]:
        if self._place is None:
            return []
        return descriptors(self._server, self._place.listener)

    def _say(self, text: str) -> None:
        now = time.strftime("%H:%M:%S")
        tags.write(f"{now} job worker {self._options.plugin_id}: {text}\n")


def _bind(options: Options) -> Binding:
    if options.socket is not None:
        return binding.on_path(options.socket)
    return binding.on_address(options.host or "", options.port)


def _leave(status: int) -> NoReturn:
    """End the process after the plugin's exit handlers.

    Not the interpreter's way out: it waits for threads for ever, and the destructors of
    a compiled stack can turn a clean end into a crash.
    """
    late = threading.Timer(EXIT_S, os._exit, [status])
    late.daemon = True
    late.start()
    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(status)
