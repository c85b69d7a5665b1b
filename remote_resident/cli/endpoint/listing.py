"""`tu remote endpoint list`: every endpoint in a line."""

import time
from typing import Any

from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed: nothing of its own."""


def run(asked: Asked) -> Answer:
    """List the endpoints."""
    from remote_resident.cli import tree
    from remote_resident.endpoints import client

    rows = client.rows()
    lines = [("NAME", "STATE", "SINCE", "LOCATION", "URL", "CAUSE"), *map(_line, rows)]
    text = tree.columns(lines) if rows else "no endpoint is registered"
    return Answer(document={"endpoints": rows}, text=text)


def moment(since: object) -> str:
    """Write a time, in seconds since the epoch, as people read it; None as a dash."""
    if not isinstance(since, int | float):
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    from remote_resident.endpoints.card import escaped

    told = (row["name"], row["state"], moment(row["since"]), row["location"])
    last = (row["url"], row["cause"] or "")
    # of a damaged registration little is known
    return tuple("-" if cell is None else escaped(str(cell)) for cell in (*told, *last))
