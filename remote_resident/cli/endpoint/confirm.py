"""Ask before something is taken away."""

from remote_resident.cli.answer import Asked
from remote_resident.errors import ProviderError, UsageError


def confirm(asked: Asked, question: str, command: str) -> None:
    """Return where --yes was typed, or a person at the terminal says yes.

    Raises UsageError (`bad_request`) where nobody can be asked, ProviderError
    (`interrupted`) for a no.
    """
    from remote_resident.endpoints import card

    if asked.yes:
        return
    if not card.at_terminal():
        raise UsageError(
            f"{command}: neither --yes nor a terminal to ask at found, one wanted",
            reason="bad_request",
            next=f"{command} --yes",
        )
    if not card.ask(question):
        raise ProviderError(
            f"{command}: no found, yes wanted; nothing was changed",
            reason="interrupted",
        )
