"""Managed endpoints as a tenant of the host daemon: the routes, and what they mean."""

from collections.abc import Callable

from remote_resident.daemon.tenant import Document, Lines, Request, Route
from remote_resident.endpoints import (
    cell,
    compute,
    credentials,
    dispatch,
    panel,
    register,
)
from remote_resident.endpoints.changes import Changes
from remote_resident.endpoints.owner import Owner
from remote_resident.endpoints.record import CREDENTIALS
from remote_resident.endpoints.store import Settings, Store
from remote_resident.errors import ProviderError, UsageError


class Endpoints:
    """The endpoints of this host."""

    name = "endpoints"

    def __init__(self, *, overtake_s: float, by_memory: bool) -> None:
        self._store = Store()
        self._owner = Owner(self._store, overtake_s=overtake_s, by_memory=by_memory)
        self._changes = Changes(self._owner)

    def routes(self) -> list[Route]:
        """Give the routes."""
        of: Callable[[str], str] = "/v1/endpoints{}".format
        return [
            ("POST", of("/connect"), self.connect),
            ("POST", of("/disconnect"), self.disconnect),
            ("POST", of(""), self.register),
            ("GET", of(""), self.rows),
            ("GET", of("/{name}"), self.show),
            ("POST", of("/{name}/stop"), self.stop),
            ("POST", of("/{name}/remove"), self.remove),
            ("GET", of("/{name}/logs"), self.logs),
            ("GET", "/v1/compute", self.compute),
            ("POST", "/v1/dispatch", self.dispatch),
        ]

    def begin(self) -> None:
        """End the cells of a daemon that is gone, adopt the services that still run."""
        cell.end_strays()
        self._owner.begin()

    def end(self, stop_services: bool) -> None:
        """End every cell; services run on for the next daemon, or are stopped."""
        self._owner.end(stop_services=stop_services)

    def connect(self, request: Request) -> Document:
        """Enable endpoints of one mode, in the place of what was enabled."""
        mode, host = request.body.get("mode"), request.body.get("host")
        register.refuse_unfit(mode, host)
        name = CREDENTIALS[0]
        if credentials.load(name) is None:
            raise UsageError(
                f"{name}: no credential found, --credential-file FILE wanted",
                reason="bad_request",
                next="tu remote endpoint connect --help",
            )
        self._store.connect(Settings(mode=mode, host=host))
        return {"ok": True, "mode": mode, "host": host, "credential": name}

    def disconnect(self, request: Request) -> Document:
        """Stop every local service by its own stop, and forget every registration.

        One whose stop fails keeps its row, and is named.
        """
        removed, kept = [], []
        for name in self._names():
            try:
                with self._changes.turn(name):
                    self._changes.remove(name)
                removed.append(name)
            except ProviderError as exc:
                if exc.reason != "unknown_name":
                    why = {"reason": exc.reason, "error": str(exc), "next": exc.next}
                    kept.append({"name": name, **why})
        self._store.disconnect()
        return {"ok": not kept, "removed": removed, "kept": kept}

    def register(self, request: Request) -> Document:
        """Register an endpoint whose bytes are approved; give its row."""
        fields = {k: v for k, v in request.body.items() if k != "approve"}
        approve = request.body.get("approve")
        if not isinstance(approve, str | None):
            raise UsageError(
                "approve: a digest of 64 hex digits wanted", reason="bad_request"
            )
        with self._changes.turn(str(fields.get("name"))):
            judged = register.decide(self._store, fields, approve)
            if isinstance(judged, register.NeedsApproval):
                raise judged.refusal()
            self._changes.register(judged)
        return self._row(judged.name)

    def rows(self, request: Request) -> Document:
        """Give the row of every endpoint."""
        return {"endpoints": [self._row(name) for name in self._names()]}

    def show(self, request: Request) -> Document:
        """Give one endpoint's row."""
        return self._row(request.names["name"])

    def stop(self, request: Request) -> Document:
        """Stop an endpoint's service once its cells have ended; `now` ends them."""
        name = request.names["name"]
        self._changes.stop(name, now=request.body.get("now") is True)
        return self._row(name)

    def remove(self, request: Request) -> Document:
        """Stop an endpoint's service and forget its registration."""
        name = request.names["name"]
        row = self._row(name)
        with self._changes.turn(name):
            self._changes.remove(name)
        return {**row, "state": "stopped", "removed": True}

    def logs(self, request: Request) -> Document:
        """Give the last lines of what an endpoint's scripts and service printed."""
        name = request.names["name"]
        self._changes.known(name)
        lines = panel.shown(name)
        return {
            "name": name,
            "path": str(panel.path_of(name)),
            "text": "".join(f"{line}\n" for line in lines),
        }

    def compute(self, request: Request) -> Document:
        """Give every endpoint, and every provider of the tree, where it is and how."""
        rows = [self._row(name) for name in self._names()]
        tree = request.query.get("tree")
        found = [compute.of_endpoint(row) for row in rows]
        return {"compute": [*found, *(compute.of_tree(tree) if tree else [])]}

    def dispatch(self, request: Request) -> Lines:
        """Run a cell on an endpoint: its phases, its output, its result."""
        name, work = dispatch.wanted(request.body)
        endpoint = self._changes.known(name)
        if endpoint is None:
            raise self._owner.damaged[name]
        if endpoint.location == "remote":
            return Lines(dispatch.on_remote(endpoint, work))
        return Lines(dispatch.on_local(self._owner, endpoint, work))

    def _names(self) -> list[str]:
        with self._owner.lock:
            for name in list(self._owner.damaged):
                self._changes.look_again(name)
            return sorted({*self._owner.endpoints, *self._owner.damaged})

    def _row(self, name: str) -> Document:
        endpoint = self._changes.known(name)
        if endpoint is None:
            return _damaged_row(name, self._owner.damaged.get(name))
        if endpoint.location == "remote":
            return {**register.row(endpoint, "ready"), **_IDLE}
        phase, since, work = self._owner.state(name)
        row = register.row(
            endpoint,
            phase.state.value,
            since=since,
            cause=None if phase.failure is None else phase.failure.text,
        )
        return {**row, **work}


_IDLE = {"cells": 0, "waiting": 0, "limit_s": None}


def _damaged_row(name: str, why: ProviderError | None) -> Document:
    fields = (
        "url port location digest credential skill start stop live service_dir since"
    )
    known = {"name": name, "state": "failed", "cause": str(why), "lint": []}
    return {**dict.fromkeys(fields.split()), **known, **_IDLE}
