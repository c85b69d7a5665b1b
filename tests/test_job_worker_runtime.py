"""The runtime of a plugin: jobs wait while it comes up, and are told when it does not."""

from pathlib import Path

import pytest
from small_job_worker import Start, start, terminal, until

__all__ = ["start"]


def test_health_answers_while_the_runtime_comes_up_and_jobs_wait(
    start: Start, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    worker = start("initialises:Job", env={"UP": str(up)})
    assert worker.get("/health")["state"] == "starting"
    with worker.run("early") as early, worker.run("dropped") as dropped:
        worker.cancel("dropped")
        assert terminal(list(dropped))["status"] == "cancelled"
        up.touch()
        events = list(early)
    worker.process.terminate()

    assert [event.get("message") for event in events] == ["up: True", None]
    assert worker.wait() == 0
    assert "coming up in MainThread" in worker.log
    assert "taken down in MainThread" in worker.log


@pytest.mark.parametrize(
    ("entry", "reason"),
    [("Raises", "OSError: weights are gone"), ("Exits", "SystemExit: no card")],
)
def test_a_runtime_that_does_not_come_up_is_told(
    start: Start, entry: str, reason: str
) -> None:
    worker = start(f"fails_to_initialise:{entry}")
    until(lambda: worker.get("/health")["state"] == "failed", "it fails")
    health = worker.get("/health")
    end = terminal(worker.events("no", "any"))
    worker.process.terminate()

    assert (health["ok"], health["detail"]) == (False, f"initialise_runtime: {reason}")
    assert (end["event"], end["message"]) == ("error", f"initialise_runtime: {reason}")
    assert worker.wait() == 0
    assert "never to be" not in worker.log
