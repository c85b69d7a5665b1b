"""`tu remote endpoint stop`: stop an endpoint's service."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="which endpoint")
    parser.add_argument(
        "--now", action="store_true", help="end the cell in hand, do not wait for it"
    )


def run(asked: Asked) -> Answer:
    """Wait for the cell in hand, then run the stop script; clears a failure."""
    from remote_resident.endpoints import client

    row = client.stop(asked.name, now=asked.now)
    return Answer(document=row, text=f"{asked.name}: {row.get('state', 'stopped')}")
