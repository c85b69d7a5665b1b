"""Which handler a method and a path mean."""

from collections.abc import Iterable
from urllib.parse import unquote

from remote_resident.daemon.tenant import Handler, Route


class Unanswerable(Exception):
    """What came reaches no handler; `closes`: the connection is of no use any more."""

    def __init__(
        self, status: int, reason: str, text: str, *, closes: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.closes = closes


class Table:
    """The routes of the daemon and of its tenants."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._routes: list[tuple[str, list[str], Handler]] = []
        self.add(routes)

    def add(self, routes: Iterable[Route]) -> None:
        """Add routes; of two that match, the one with fewer names is meant."""
        for method, pattern, handler in routes:
            self._routes.append((method, pattern.split("/"), handler))
        self._routes.sort(key=lambda route: sum(map(_is_name, route[1])))

    def find(self, method: str, path: str) -> tuple[Handler, dict[str, str]]:
        """Find the handler of a path as it was sent. Raises Unanswerable."""
        parts = path.split("/")
        allowed = []
        for its_method, pattern, handler in self._routes:
            names = _match(pattern, parts)
            if names is not None:
                if its_method == method:
                    return handler, names
                allowed.append(its_method)
        if allowed:
            wanted = " or ".join(sorted(set(allowed)))
            raise Unanswerable(
                405, "bad_request", f"{path}: {method} found, {wanted} wanted"
            )
        raise Unanswerable(404, "unknown_name", f"{method} {path}: no such route")


def _is_name(part: str) -> bool:
    return part.startswith("{") and part.endswith("}")


def _match(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names = {}
    for wanted, found in zip(pattern, parts, strict=True):
        if _is_name(wanted) and found:
            names[wanted[1:-1]] = unquote(found, errors="replace")
        elif wanted != unquote(found, errors="replace"):
            return None
    return names
