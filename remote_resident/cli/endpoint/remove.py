"""`tu remote endpoint remove`: stop a service and forget the endpoint."""

from shlex import quote
from typing import Any

from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.endpoint.confirm import confirm


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="which endpoint")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(asked: Asked) -> Answer:
    """Ask, then stop and forget it; its cache and its approvals stay."""
    from remote_resident.endpoints import client

    command = f"tu remote endpoint remove {quote(asked.name)}"
    confirm(asked, f"Stop {asked.name} and forget it?", command)
    return Answer(document=client.remove(asked.name), text=f"removed {asked.name}")
