"""Every thread's stack, written down: on a signal, and for who asks.

SIGUSR1 is for a thread of ours to hear. It reads the stacks under the interpreter's lock,
where nothing that is read can run. SIGUSR2 is faulthandler's own, and answered also where
a thread holds that lock for good; but the frames that it reads may go while it reads
them, which can end the process. So whoever asks tries it second.
"""

# pathlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH108

from __future__ import annotations

import faulthandler
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal

LIMIT_BYTES = 1 << 20


def take(fd: int, heard: Callable[[int, object], object]) -> None:
    """Have both signals answered, the second on `fd`.

    Again where the model may have taken them. `heard` is called for the first, late where
    the main thread is in compiled code: a wakeup descriptor is told of it at once.
    """
    signal.signal(signal.SIGUSR1, heard)
    # Python knows nothing of faulthandler's: what it knows of is the model's
    if signal.getsignal(signal.SIGUSR2) != signal.SIG_DFL:
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR2, fd, all_threads=True)


def are_taken(heard: Callable[[int, object], object]) -> bool:
    """Say whether nobody else has taken the signals since."""
    return (
        signal.getsignal(signal.SIGUSR1) == heard
        and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    )


def write(fd: int) -> None:
    """Write every thread's stack down, under the interpreter's lock."""
    faulthandler.dump_traceback(fd, all_threads=True)


def text(folder: str) -> str:
    """Give every thread's stack, by way of a file in `folder` that nobody else sees."""
    path = f"{folder}/.{os.urandom(6).hex()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.unlink(path)
        write(fd)
        return os.pread(fd, LIMIT_BYTES, 0).decode(errors="replace")
    finally:
        os.close(fd)
