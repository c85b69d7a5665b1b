"""What somebody else wrote, as text that steers no terminal."""

import re

_SEQUENCES = (
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and links
    r"|[@-Z\\^_])"
)


def escaped(text: str, kept: str = "\t\n") -> str:
    """Give a text whose control codes can be read and move nothing; `kept` ones stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def plain(text: str, kept: str = "\t") -> str:
    """Give the same without the sequences that a program writes for a terminal."""
    if "\x1b" in text:
        text = re.sub(_SEQUENCES, "", text)
    return escaped(text, kept)
