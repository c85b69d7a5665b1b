"""A storm of callers over three endpoints that come and go, die and are stopped."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from small_endpoint import DEADLINE_S, Host, endpoint, start_script, wait_for

from remote_resident import processes
from remote_resident.endpoints import listener
from remote_resident.endpoints.cell import prefix
from remote_resident.errors import ProviderError

CALLERS = 6
EXPECTED = frozenset({"worker_died", "cell_timeout", "stopping"})
SLACK_S = 30.0


class Storm:
    """Callers at random until the time is over; what they saw."""

    def __init__(self, host: Host, seconds: float) -> None:
        self.host = host
        self.until = time.monotonic() + seconds
        self.answered = self.left = self.refused = 0
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def blow(self) -> None:
        threads = [threading.Thread(target=self.caller) for _ in range(CALLERS)]
        threads.append(threading.Thread(target=self.fate))
        for thread in threads:
            thread.start()
        for thread in threads:
            left = max(0.0, self.until - time.monotonic())
            thread.join(left + 2 * DEADLINE_S + SLACK_S)
            assert not thread.is_alive(), "a call past every bound"

    def caller(self) -> None:
        # a slow machine gets the time for some answers
        while (now := time.monotonic()) < self.until or (
            self.answered < CALLERS and now < self.until + DEADLINE_S
        ):
            try:
                self.call(random.choice("abc"))
            except ProviderError as exc:
                with self._lock:
                    self.refused += 1
                    if exc.reason not in EXPECTED:
                        self.faults.append(f"{exc.reason}: {exc}")
            except Exception as exc:
                self.faults.append(repr(exc))

    def call(self, name: str) -> None:
        too_long = random.random() < 0.1
        leaves_at = time.monotonic() + random.uniform(0.0, 1.0)
        leaves = random.random() < 0.3
        argv = ["sleep", "1000" if too_long else str(random.uniform(0.0, 0.3))]
        lines = self.host.lines(
            name, argv=argv, timeout_s=0.3 if too_long else DEADLINE_S
        )
        due = time.monotonic() + DEADLINE_S
        for line in lines:
            now = time.monotonic()
            if now > due + SLACK_S:
                self.faults.append(f"{name}: {now - due} s after its bound: {line}")
            due = now + (line.get("limit_s") or DEADLINE_S)
            if leaves and now > leaves_at:
                lines.close()  # type: ignore[attr-defined]
                with self._lock:
                    self.left += 1
                return
            if line["type"] == "result":
                with self._lock:
                    self.answered += 1
                return
        self.faults.append(f"{name}: no result")

    def fate(self) -> None:
        """Kill a service or stop an endpoint now and then."""
        while time.monotonic() < self.until:
            time.sleep(random.uniform(0.5, 1.5))  # part of the storm
            name = random.choice("abc")
            if random.random() < 0.5:
                self.host.changes.stop(f"{name}-service", now=random.random() < 0.5)
            elif self.host.state(name) == "ready":
                for pid in processes.members(self.host.service(name).instance):
                    kill(pid)


def kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


def storm(tmp_path: Path, seconds: float) -> Storm:
    # dies with SIGKILL at times: the kernel gives the lock back, a file would stay
    start = start_script(alone=tmp_path / "alone")
    endpoints = [endpoint(name, start=start) for name in "abc"]
    host = Host(*endpoints, overtake_s=0.5)
    blown = Storm(host, seconds)
    try:
        blown.blow()
        assert blown.faults == []
        assert not (tmp_path / "alone.two").exists()
        for name in "abc":
            host.changes.stop(f"{name}-service")
            assert processes.members(host.service(name).instance) == []
        assert [e.name for e in endpoints if listener.is_open(e.port or 0)] == []
        wait_for(lambda: not host.owner.schedule.running)
        table = processes.process_table().values()
        assert [p for p in table if (p.instance or "").startswith(prefix())] == []
        assert host.owner.schedule.waiting == []
    finally:
        host.close()
    return blown


def test_a_storm_of_callers_meets_never_two_residents_and_loses_no_call(
    tmp_path: Path,
) -> None:
    blown = storm(tmp_path, 4.0)

    assert blown.answered > 0


@pytest.mark.long
def test_a_long_storm(tmp_path: Path) -> None:
    blown = storm(tmp_path, 180.0)

    assert blown.answered > 100
