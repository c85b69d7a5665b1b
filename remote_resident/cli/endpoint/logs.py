"""`tu remote endpoint logs`: what an endpoint's scripts and service wrote."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="which endpoint")


def run(asked: Asked) -> Answer:
    """Show the transcript, credentials taken out, safe on a terminal."""
    from remote_resident.endpoints import client
    from remote_resident.endpoints.card import escaped

    found = client.logs(asked.name)
    lines = [escaped(line) for line in found["text"].split("\n")]
    return Answer(document=found, text="\n".join(lines).rstrip("\n"))
