"""`tu remote endpoint disconnect`: the full tear-down."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.endpoint.confirm import confirm
from remote_resident.errors import OK, REFUSED


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(asked: Asked) -> Answer:
    """Ask, then stop and forget everything but caches and approvals."""
    from remote_resident.endpoints import client

    question = "Stop every service of this host and forget every endpoint?"
    confirm(asked, question, "tu remote endpoint disconnect")
    done = client.disconnect()
    kept = [f"tu: {row['error']}\nnext: {row['next']}" for row in done["kept"]]
    return Answer(
        document=done,
        text=f"disconnected, {len(done['removed'])} endpoints removed",
        notes="\n".join(kept),
        code=REFUSED if kept else OK,
    )
