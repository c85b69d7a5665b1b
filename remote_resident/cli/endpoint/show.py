"""`tu remote endpoint show`: all that is registered of an endpoint."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.endpoint.listing import moment

_SHOWN = ("state", "since", "cause")


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="which endpoint")


def run(asked: Asked) -> Answer:
    """Show its state and its card."""
    from remote_resident.endpoints import client

    row = client.show(asked.name)
    return Answer(document=row, text=_text(row))


def _text(row: dict[str, Any]) -> str:
    from remote_resident.endpoints import card, lint
    from remote_resident.endpoints.record import Endpoint

    told = {**row, "since": moment(row["since"])}
    lines = [
        f"{key:<18} {card.escaped(str(told[key]))}"
        for key in _SHOWN
        if told[key] is not None
    ]
    fields = Endpoint.__dataclass_fields__
    if row.get("url") is not None:
        known = {key: row[key] for key in fields if row.get(key) is not None}
        endpoint = Endpoint.from_dict(known)
        lines.append(card.card(endpoint, lint.lint_endpoint(endpoint)))
    return "\n".join(lines)
