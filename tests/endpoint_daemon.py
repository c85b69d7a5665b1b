"""The end of a daemon that a test's commands have started, and of its services."""

import json
import os
import select
import signal
from contextlib import suppress

from small_provider import DEADLINE_S

from remote_resident import processes
from remote_resident.daemon.client import connect
from remote_resident.endpoints.store import Store
from remote_resident.errors import ProviderError


def end_daemon() -> None:
    """End the daemon of this test's home, where one runs, and what its scripts left."""
    with suppress(ProviderError):
        pid = connect(start=False).call("GET", "/v1/health")["pid"]
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], DEADLINE_S)
        os.close(pidfd)
    for path in (Store().root / "notes").glob("*.json"):
        if instance := json.loads(path.read_text()).get("instance"):
            processes.end_all(instance, grace_s=0.0)
