"""What wakes the attendant: the main thread's ring, and the signals of this process.

The kernel's number of a signal is written to the bell by the C handler at once, also while
the main thread is inside a long call into C; a Python handler would wait for its end.
"""

from __future__ import annotations

import _thread
import errno
import os

from . import stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any
else:
    import _signal as signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
NUMBERS: tuple[int, ...] = (signal.SIGUSR1, *STOP_SIGNALS)


class Bell:
    """A pipe that the attendant waits on, and how often each signal came.

    Signals are counted by what comes on the pipe, and by Python's handlers: the model
    may have taken either way of hearing away.
    """

    def __init__(self, log_fd: int) -> None:
        self.fd, self._ring_fd = pipe()
        self._log_fd = log_fd
        self._rung = dict.fromkeys(NUMBERS, 0)
        self._handled = dict.fromkeys(NUMBERS, 0)
        self._given = dict.fromkeys(NUMBERS, 0)
        self._taken: tuple[int, ...] = ()
        self._masks: dict[int, Any] = {}
        # one object: a method is another one each time that it is looked up
        self._handler: Callable[[int, object], object] = self._on_signal

    def ring(self) -> None:
        """Wake the attendant."""
        ring(self._ring_fd)

    def heard(self) -> Iterator[int]:
        """Give each signal that came, once."""
        for number in os.read(self.fd, 4096):
            if number in self._taken:
                self._rung[number] += 1
        for number in NUMBERS:
            came = max(self._rung[number], self._handled[number])
            while self._given[number] < came:
                self._given[number] += 1
                yield number

    def take_stacks(self) -> None:
        """Have stacks told on a signal, from before the model is there."""
        self._take(())

    def take_all(self) -> None:
        """Install all our handlers, after the model's."""
        self._take(STOP_SIGNALS)

    def keep(self) -> None:
        """Take back what a prediction took."""
        if (
            stacks.are_taken(self._handler)
            and signal.getsignal(signal.SIGTERM) is self._handler
            and signal.getsignal(signal.SIGINT) is self._handler
        ):
            return
        self.take_all()

    def _take(self, stops: tuple[int, ...]) -> None:
        self._taken = (signal.SIGUSR1, *stops)
        signal.set_wakeup_fd(self._ring_fd, warn_on_full_buffer=False)
        for number in stops:
            signal.signal(number, self._handler)
        stacks.take(self._log_fd, self._handler)

    def _on_signal(self, number: int, frame: object) -> None:
        self._handled[number] += 1
        self.ring()

    # --- forks of the model

    def hold_back(self) -> None:
        """Hold signals back before a fork: one that comes before the child is rid of
        our handlers would ring our bell."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
        self._masks[_thread.get_ident()] = mask

    def let_come(self) -> None:
        """Let them come again, in this process and in its child."""
        mask: Any = self._masks.pop(_thread.get_ident(), ())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forget(self) -> None:
        """Let a forked child have its own signals, but for its stacks."""
        for number in NUMBERS:
            if signal.getsignal(number) is self._handler:
                signal.set_wakeup_fd(-1)
                is_stop = number in STOP_SIGNALS
                signal.signal(number, signal.SIG_DFL if is_stop else self._tell_own)

    def _tell_own(self, number: int, frame: object) -> None:
        stacks.write(self._log_fd)


def pipe() -> tuple[int, int]:
    """Make a pipe that nobody waits on to write."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def ring(fd: int) -> None:
    """Wake whoever waits on a pipe."""
    try:
        os.write(fd, b"\0")
    except OSError as exc:
        # full: it rings already; closed by the model: the main thread notices
        if exc.errno not in (errno.EAGAIN, errno.EBADF):
            raise
