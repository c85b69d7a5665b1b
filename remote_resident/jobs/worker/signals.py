"""Signals: heard at once, also while the main thread is inside a long call into C."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Callable

from .beside import stacks

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STACKS_FD = 2
"""Not the tagged stream: a C handler needs a descriptor."""


def tell_stacks() -> None:
    """Have every thread's stack written to the standard error, before there is a bell."""
    faulthandler.enable(STACKS_FD)
    stacks.take(STACKS_FD, _write_stacks)


class Bell:
    """Hears the stop signals in a thread of its own.

    The kernel's number is written to a pipe by the C handler; a Python handler would
    wait for the main thread to come back from C.
    """

    def __init__(
        self, first: Callable[[str], object], second: Callable[[int], object]
    ) -> None:
        self._first = first
        self._second = second
        self._heard, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        self._inherited: Callable[[], list[int]] = list
        threading.Thread(target=self._listen, name="bell", daemon=True).start()
        self._masks: dict[int, set[int]] = {}
        os.register_at_fork(
            before=self._hold_back,
            after_in_parent=self._let_come,
            after_in_child=self._after_fork,
        )

    def take(self) -> None:
        """Take the signals over; again after the plugin may have taken them."""
        for number in STOP_SIGNALS:
            signal.signal(number, _nothing)
        stacks.take(STACKS_FD, _nothing)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)

    def close_in_forks(self, descriptors: Callable[[], list[int]]) -> None:
        """Name what a forked child of a job must not hold open: connections of ours."""
        self._inherited = descriptors

    def _listen(self) -> None:
        told = False
        while True:
            for number in os.read(self._heard, 64):
                if number == signal.SIGUSR1:
                    stacks.write(STACKS_FD)
                if number not in STOP_SIGNALS:
                    continue
                if told:
                    self._second(128 + number)
                told = True
                self._first(f"told to stop by {signal.Signals(number).name}")

    def _hold_back(self) -> None:
        """Hold signals back before a fork: one that comes before the child is rid of
        our handlers would ring our bell."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, *STOP_SIGNALS))
        self._masks[threading.get_ident()] = mask

    def _let_come(self) -> None:
        mask = self._masks.pop(threading.get_ident(), set())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _after_fork(self) -> None:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, _write_stacks)
        for descriptor in self._inherited():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._let_come()


def _write_stacks(number: int, frame: object) -> None:
    stacks.write(STACKS_FD)


def _nothing(number: int, frame: object) -> None:
    """Leave it to the bell; without a handler the wakeup descriptor is not written."""
