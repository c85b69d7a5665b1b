"""Laws about seconds, told apart from a machine that was busy for a moment."""


class TooLate(AssertionError):
    """More seconds than a law allows: the one failure that a test is run again for."""


def within(limit_s: float, took_s: float) -> None:
    """Hold what was measured to a limit. Raises TooLate."""
    if took_s >= limit_s:
        raise TooLate(f"{took_s!r} s found, less than {limit_s!r} s wanted")
