"""`tu remote endpoint register`: show the card, ask, register."""

from pathlib import Path
from shlex import join
from typing import Any

from remote_resident.cli.answer import Answer, Asked, failure
from remote_resident.errors import ProviderError

_FILES = ("start", "stop")
_SECONDS = ("start_timeout_s", "stop_timeout_s", "ttl_s")
_BUDGETS = ("vram_budget_gb", "ram_budget_gb")
_FIELDS = ("url", "credential", "skill", "live")


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="the endpoint, <model>-service")
    parser.add_argument("--url", metavar="U", required=True)
    parser.add_argument("--credential", metavar="N", help="NVIDIA_API_KEY")
    parser.add_argument("--skill", metavar="S", help="the runbook of the scripts")
    parser.add_argument("--start", metavar="FILE", help="the start script")
    parser.add_argument("--stop", metavar="FILE", help="the stop script")
    parser.add_argument("--live", metavar="ROUTE", help="answers 200 when it is ready")
    for key in (*_SECONDS, *_BUDGETS):
        unit = "N" if key in _SECONDS else "GIB"
        parser.add_argument(f"--{key.replace('_', '-')}", type=float, metavar=unit)
    parser.add_argument(
        "--approve", metavar="DIGEST", help="the digest of the card that you read"
    )


def run(asked: Asked) -> Answer:
    """Register it, or show the card and how to approve it."""
    from remote_resident.endpoints import card, client

    fields = _fields(asked)
    try:
        row = client.register(fields, approve=asked.approve)
    except ProviderError as exc:
        shown = client.shown_card(exc)
        if shown is None:
            raise
        exc.next = f"{_typed(asked)} --approve {shown[1]}"
        answer = failure(exc)
        text = str(exc) if card.at_terminal() else f"{shown[0]}\n\ntu: {exc}"
        notes = f"{text}\nnext: {exc.next}"
        return Answer(document=answer.document, notes=notes, code=answer.code)
    return Answer(document=row, text=f"registered {asked.name}, {row['digest']}")


def _fields(asked: Asked) -> dict[str, Any]:
    from remote_resident.endpoints.host import script_text

    options = vars(asked)
    fields = {key: options[key] for key in (*_FIELDS, *_SECONDS, *_BUDGETS)}
    for key in _FILES:
        if options[key] is not None:
            fields[key] = script_text(Path(options[key]))
    return {"name": asked.name, **fields}


def _typed(asked: Asked) -> str:
    """Give what was typed, without an approval."""
    options = vars(asked)
    words = ["tu", "remote", "endpoint", "register", asked.name]
    for key in (*_FIELDS, *_FILES, *_SECONDS, *_BUDGETS):
        if options[key] is not None:
            words += [f"--{key.replace('_', '-')}", str(options[key])]
    return join(words)
