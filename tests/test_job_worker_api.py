"""The OpenAPI document: what the worker says of its routes is what they do."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from small_job_worker import (
    DEADLINE_S,
    JOBS,
    JobWorker,
    Start,
    command,
    job_workers,
)

ROUTES = {
    "/health": {"get"},
    "/busy": {"get"},
    "/reclaim": {"post"},
    "/ui": {"get"},
    "/compute": {"get"},
    "/jobs/{job_id}/run": {"post"},
    "/jobs/{job_id}": {"get"},
    "/jobs/{job_id}/events": {"get"},
    "/jobs/{job_id}/cancel": {"post"},
    "/jobs/cancel-all": {"post"},
}


def openapi(*options: str) -> dict[str, Any]:
    argv = [*command("", "--openapi")[:2], "--openapi", *options]
    ended = subprocess.run(
        argv, cwd=JOBS, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with job_workers(tmp_path_factory.mktemp("api")) as start:
        yield start


def test_the_document_has_exactly_the_routes(document: dict[str, Any]) -> None:
    paths = {path: set(item) for path, item in document["paths"].items()}

    assert paths == ROUTES


def test_the_document_says_how_a_run_streams(document: dict[str, Any]) -> None:
    run = document["paths"]["/jobs/{job_id}/run"]["post"]

    assert set(run["responses"]) == {"201", "400", "401", "409", "413", "503"}
    assert set(run["responses"]["201"]["content"]) == {"application/x-ndjson"}
    assert set(run["requestBody"]["content"]) == {"application/json"}


def test_the_plugins_own_routes_are_in_its_document() -> None:
    paths = openapi("--entry", "prints_at_import:Job", "--id", "x")["paths"]

    assert set(paths) == {*ROUTES, "/of-my-own"}


@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.long)])
def test_no_request_gets_what_the_document_does_not_say(
    start: Start, document: dict[str, Any], examples: int
) -> None:
    import schemathesis

    worker: JobWorker = start("returns:Job", transport="tcp")
    schema = schemathesis.openapi.from_dict(document)
    schema.config.base_url = f"http://127.0.0.1:{worker.port}"

    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.seed(20)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def conforms(case: Any) -> None:
            case.call_and_validate(headers=worker.authorization, timeout=DEADLINE_S)

        conforms()
    assert worker.get("/health")["ok"]
