"""`tu remote daemon`: the host daemon in the foreground."""

import contextlib
import json
import os
import sys
import time
from typing import Any

from remote_resident.cli.answer import Answer, Asked, write_line
from remote_resident.errors import ProviderError

_END_S = 600.0


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    from remote_resident.daemon.__main__ import options

    options(parser)


def run(asked: Asked) -> Answer:
    """Serve until SIGTERM or Ctrl-C; with `--stop-services` end what runs already."""
    from remote_resident.daemon.__main__ import serve
    from remote_resident.daemon.client import connect
    from remote_resident.daemon.server import Places

    places = Places.of_host()

    def ready() -> None:
        if not asked.quiet:
            write_line(sys.stderr, f"pid {os.getpid()} accepts on {places.socket}")
        if asked.json:
            document = {"ready": True, "pid": os.getpid(), "socket": str(places.socket)}
            write_line(asked.stdout, json.dumps(document))

    if asked.stop_services and _is_left():
        # one takes it up, and is ended below with it
        connect()
    try:
        code = serve(asked, ready)
    except ProviderError as exc:
        if exc.reason == "locked" and asked.stop_services:
            return _ended(exc)
        raise
    return Answer(document={"ok": True, "ended": os.getpid()}, code=code)


def _is_left() -> bool:
    """Say whether none runs, and an earlier one left services or jobs."""
    from remote_resident import places
    from remote_resident.daemon.client import connect
    from remote_resident.endpoints import notes
    from remote_resident.endpoints.store import Store
    from remote_resident.endpoints.swap import State
    from remote_resident.jobs.records import Records

    with contextlib.suppress(ProviderError):
        connect(start=False)
        return False
    records = places.state_dir() / "jobs.sqlite"
    if records.exists() and Records(records).live():
        return True
    store = Store()
    for endpoint in store.registrations().endpoints.values():
        phase, service = notes.adopted(store, endpoint)
        if phase.state in (State.STARTING, State.STOPPING):
            return True
        if service is not None and service.listener is not None:
            return True
    return False


def _ended(locked: ProviderError) -> Answer:
    """Have the daemon that runs end, its services with it, and wait for that."""
    from remote_resident.caller_side.held import wait_pid
    from remote_resident.daemon.client import connect

    try:
        client = connect(start=False)
    except ProviderError:
        # it holds the lock and does not accept: just starting or ending
        raise locked from None
    pid = client.call("POST", "/v1/end", {"stop_services": True})["pid"]
    began = time.monotonic()
    if not wait_pid(pid, _END_S):
        raise ProviderError(
            f"pid {pid}: still there {time.monotonic() - began:.1f} s after it was "
            "asked to end with its services, its end wanted",
            reason="stop_failed",
            next="tu remote endpoint list",
        )
    return Answer(document={"ok": True, "ended": pid}, text=f"ended {pid}")
