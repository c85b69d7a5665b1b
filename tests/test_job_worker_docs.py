"""The page on jobs: its class runs as it says, and it names what there is."""

import json
import re
from pathlib import Path

from small_job_worker import Start, Stream, start

from remote_resident.jobs.worker.context import Context
from remote_resident.jobs.worker.events import NAMES

__all__ = ["start"]

PAGE = (Path(__file__).parents[1] / "docs/jobs.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_class_of_the_page_says_what_the_page_shows(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "anneal.py").write_text(block("python"))
    asked = re.search(r"-X POST http://worker(\S+) -d '(.*)'", block("sh"))
    assert asked is not None
    worker = start("anneal:Anneal", cwd=tmp_path)
    with Stream(worker.send("POST", asked[1], json.loads(asked[2]))) as stream:
        events = list(stream)
    state = (worker.log_path.parent / "state").as_uri()
    shown = block("json").replace("file:///srv/models/.plugin-state/anneal", state)

    assert events == [json.loads(line) for line in shown.splitlines()]
    assert (worker.log_path.parent / "state/first/best.txt").exists()


def test_the_page_names_every_event_and_all_that_ctx_has() -> None:
    methods = {name for name in dir(Context) if not name.startswith("_")} - {"cancel"}
    told = set(re.findall(r"`ctx\.(\w+)", PAGE))

    assert methods | {"job_id", "params", "state_dir", "identity"} == told
    assert set(re.findall(r"^\| `(\w+)` \| .*$", PAGE, re.MULTILINE)) >= NAMES
