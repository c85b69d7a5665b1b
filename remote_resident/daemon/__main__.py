"""`python -m remote_resident.daemon`: the one place that puts the tenants together."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from remote_resident.daemon import failures
from remote_resident.daemon.server import Places, run
from remote_resident.daemon.tenant import Tenant
from remote_resident.endpoints.swap import OVERTAKE_S
from remote_resident.errors import ProviderError


def options(parser: argparse.ArgumentParser) -> None:
    """Say what may be typed, here and after `tu remote daemon`."""
    parser.add_argument(
        "--stop-services",
        action="store_true",
        help="end the services with the daemon; ends one that runs already, and what "
        "an earlier one left",
    )
    parser.add_argument(
        "--overtake-s",
        type=float,
        default=OVERTAKE_S,
        metavar="S",
        help="how long work for the resident endpoint may overtake others "
        f"({OVERTAKE_S:g})",
    )
    parser.add_argument(
        "--by-memory",
        action="store_true",
        help="as many endpoints at once as admission allows, budgets given",
    )


def serve(asked: Any, ready: Callable[[], None]) -> int:
    """Run the daemon in this process until it is told to end. Raises as `run`."""
    tenants: list[Tenant] = [*_tenants(asked)]
    return run(
        tenants,
        places=Places.of_host(),
        stop_services=asked.stop_services,
        ready=ready,
    )


def _tenants(asked: Any) -> Sequence[Tenant]:
    from remote_resident.endpoints.daemon import Endpoints
    from remote_resident.jobs.tenant import Jobs

    return [Jobs(), Endpoints(overtake_s=asked.overtake_s, by_memory=asked.by_memory)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a daemon for a client that waits for its word on `--ready-fd`."""
    parser = argparse.ArgumentParser(prog="python -m remote_resident.daemon")
    options(parser)
    parser.add_argument("--ready-fd", type=int)
    asked = parser.parse_args(argv)

    def say(document: dict[str, Any]) -> None:
        if asked.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(asked.ready_fd, json.dumps(document).encode() + b"\n")
                os.close(asked.ready_fd)
            asked.ready_fd = None

    if asked.ready_fd is not None:
        # held open by a worker it would look like a start that never ends
        os.set_inheritable(asked.ready_fd, False)
    try:
        return serve(asked, lambda: say({"ready": True, "pid": os.getpid()}))
    except ProviderError as exc:
        say(failures.document_of(exc))
        print(f"{exc}", file=sys.stderr)
        return exc.exit_code


if __name__ == "__main__":
    sys.exit(main())
