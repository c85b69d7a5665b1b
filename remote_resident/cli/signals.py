"""How a run ends when somebody asks for its end: Ctrl-C, SIGTERM, a closed terminal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Cut(SystemExit):
    """A signal asked this process to end; nothing but its cleaning up may follow."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.exit_code = 128 + signum
        self.signum = signum
        self.name = signal.Signals(signum).name


def catch() -> dict[int, object]:
    """Raise Cut in the main thread on the first ending signal; give the old handlers.

    A signal that is ignored on entry stays ignored (nohup, a shell's background job).
    Does nothing outside the main thread, where Python delivers no signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    caught = [s for s in ENDING if signal.getsignal(s) is not signal.SIG_IGN]
    return {signum: signal.signal(signum, _cut) for signum in caught}


def restore(handlers: dict[int, object]) -> None:
    """Put back what `catch` found."""
    for signum, handler in handlers.items():
        # None: set by C code, not ours to name
        if handler is not None:
            signal.signal(signum, handler)  # type: ignore[arg-type]  # as it was given


@contextmanager
def caught() -> Iterator[None]:
    """Raise Cut on an ending signal within the block."""
    handlers = catch()
    try:
        yield
    finally:
        restore(handlers)


def _cut(signum: int, frame: FrameType | None) -> None:
    # one is enough: a second raise would tear the ending of the children
    for other in ENDING:
        if signal.getsignal(other) is _cut:
            signal.signal(other, _ending)
    raise Cut(signum)


def _ending(signum: int, frame: FrameType | None) -> None:
    """Let what is being ended end; a real handler, as SIG_IGN would be inherited."""
