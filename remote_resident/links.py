"""Where directories really are, each resolved once."""

import os
from functools import lru_cache


@lru_cache(maxsize=8192)
def real_directory(path: str) -> str:
    """Resolve a directory's path; the answer stands until `forget`.

    For whoever asks for a thousand directories side by side, and can bear that one is
    led elsewhere meanwhile.
    """
    head, _, tail = path.rpartition("/")
    if not tail or not path.startswith("/"):
        return os.path.realpath(path)
    whole = f"{real_directory(head).rstrip('/')}/{tail}" if head else path
    # also what has no dots: a path that goes up is not the text that it seems
    plain = tail not in (".", "..") and not os.path.islink(whole)  # noqa: PTH114
    return whole if plain else os.path.realpath(path)


def forget() -> None:
    """Resolve directories anew."""
    real_directory.cache_clear()
