"""A file as it is declared, with its pin."""

from pathlib import Path
from typing import NamedTuple


class Wanted(NamedTuple):
    """A file as it is declared."""

    name: str
    path: str | Path
    size: int | None = None
    """Bytes; None: not declared."""
    sha256: str | None = None
    """64 hex; None: not pinned, so that to be there is enough."""
    unpacked_dir: str | Path | None = None
    """Where the archive's members must all be; None: it is used as it is."""
