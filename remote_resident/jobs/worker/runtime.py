"""The plugin's runtime: how it stands, and its hooks."""

from __future__ import annotations

from typing import Any

from . import entry, tags
from .encoding import error_text


class Runtime:
    """`initialise_runtime` and `shutdown_runtime`, called in the main thread."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self.state = "starting"
        """starting, ready, failed or stopping."""
        self.fault: str | None = None
        """Why it did not come up; None: it did, or has not yet."""
        self._initialised = False

    def initialise(self) -> str | None:
        """Bring it up; the reason where it did not come."""
        try:
            self._call("initialise_runtime")
        # also SystemExit: the worker stays to tell the reason
        except BaseException as exc:
            tags.print_exception(exc)
            self.fault = f"initialise_runtime: {error_text(exc)}"
            self.state = "failed"
            return self.fault
        self._initialised = True
        if self.state == "starting":
            self.state = "ready"
        return None

    def shut_down(self) -> None:
        """Take it down; what is raised is told and changes nothing."""
        if not self._initialised:
            return
        try:
            self._call("shutdown_runtime")
        # as above: the process leaves in any case
        except BaseException as exc:
            tags.print_exception(exc)

    def _call(self, name: str) -> None:
        hook = getattr(self._plugin, name, None)
        if hook is not None:
            entry.call(hook)
