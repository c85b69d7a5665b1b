"""Numbers that are typed: what has no meaning is wrong usage, told before anything starts."""

import argparse

_MOST = 2**31 - 1


def seconds(text: str) -> float:
    """Take a time to wait, in seconds."""
    from remote_resident.manifest_rules import LONGEST_S

    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} found, seconds above 0 and at most {LONGEST_S} wanted"
        )
    return found


def lines(text: str) -> int:
    """Take how many lines to show."""
    try:
        found = int(text)
    except ValueError:
        found = -1
    if not 0 <= found <= _MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r} found, an integer from 0 to {_MOST} wanted"
        )
    return found
