"""Where directories really are, each resolved once."""

import os

_REAL: dict[str, str] = {}
_MOST = 8192


def real_directory(path: str) -> str:
    """Resolve a directory's path; the answer stands until `forget`.

    For whoever asks for a thousand directories side by side, and can bear that one is
    led elsewhere meanwhile.
    """
    known = _REAL.get(path)
    if known is None:
        if len(_REAL) >= _MOST:
            _REAL.clear()
        known = _REAL[path] = _resolved(path)
    return known


def plain(path: str) -> None:
    """Take note that a path's last part is no symlink, as a listing said just now."""
    head, _, tail = path.rpartition("/")
    if head and len(_REAL) < _MOST:
        _REAL[path] = f"{real_directory(head).rstrip('/')}/{tail}"


def _resolved(path: str) -> str:
    head, _, tail = path.rpartition("/")
    if not tail or not path.startswith("/"):
        return os.path.realpath(path)
    whole = f"{real_directory(head).rstrip('/')}/{tail}" if head else path
    # also what has no dots: a path that goes up is not the text that it seems
    plain = tail not in (".", "..") and not os.path.islink(whole)  # noqa: PTH114
    return whole if plain else os.path.realpath(path)


def forget() -> None:
    """Resolve directories anew."""
    _REAL.clear()
