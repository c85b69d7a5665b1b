"""The routes over real HTTP: what each answers, whom it refuses, and how."""

import concurrent.futures
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_job_worker import (
    TOKEN,
    JobWorker,
    Start,
    job_workers,
    terminal,
)

MIB10 = 10 << 20
NOT_IDS = [
    "a%0A",
    "%20a",
    "a%20",
    "a.b",
    "..",
    "a%2Fb",
    "%2E%2E%2Fx",
    "",
    "%00",
    "x" * 65,
    "%C3%A9",
    "run",
    "health",
    "cancel",
    "events",
    "cancel-all",
    "jobs",
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with job_workers(tmp_path_factory.mktemp("routes")) as start:
        yield start


@pytest.fixture(scope="module", params=["unix", "tcp"])
def worker(start: Start, request: pytest.FixtureRequest) -> JobWorker:
    return start(transport=request.param)


@pytest.fixture(scope="module")
def guarded(start: Start) -> JobWorker:
    return start("has_routes:Job", env={"TU_JOB_TOKEN": TOKEN})


def state_root(worker: JobWorker) -> Path:
    return worker.log_path.parent / "state"


def test_health_says_who_answers_and_how_it_stands(worker: JobWorker) -> None:
    answer = worker.ask("GET", "/health")

    assert answer.status == 200
    assert answer.json == {
        "ok": True,
        "plugin": "plugin",
        "protocol": 1,
        "state": "ready",
        "detail": "",
    }


def test_ui_is_the_plugins_fragment(worker: JobWorker) -> None:
    answer = worker.ask("GET", "/ui")

    assert (answer.status, answer.body) == (200, b"<p>choose</p>")
    assert answer.headers["content-type"].startswith("text/html")


def test_compute_gets_query_values_as_texts(worker: JobWorker) -> None:
    answer = worker.ask("GET", "/compute?a=1&b=&c=x%20y")

    assert answer.status == 200
    assert answer.json == {"given": {"a": "1", "b": "", "c": "x y"}}


def test_what_compute_raises_is_told_and_the_worker_stays(worker: JobWorker) -> None:
    answer = worker.ask("GET", "/compute?raise=1")

    assert answer.status == 500
    assert answer.json == {
        "ok": False,
        "reason": "internal",
        "error": "ValueError: no such thing",
    }
    assert worker.get("/compute?nan=1") == {"x": None}


def test_reclaim_without_a_framework_releases_nothing(worker: JobWorker) -> None:
    answer = worker.ask("POST", "/reclaim")

    assert (answer.status, answer.json) == (
        200,
        {"released": False, "plugin_id": "plugin"},
    )


def test_a_run_streams_events_of_which_each_has_its_fields(worker: JobWorker) -> None:
    with worker.run("shapes", "says_everything") as stream:
        assert stream.status == 201
        assert stream.headers["content-type"] == "application/x-ndjson"
        events = list(stream)

    job = {"job_id": "shapes"}
    timing = {"eta_s": 3}
    said = 'a "quoted" line\nand another'
    payload = {"chain": "A", "residues": [1, 2]}
    assert events == [
        {
            "event": "progress",
            "seq": 1,
            "percent": -1,
            "label": "",
            "timing": None,
            **job,
        },
        {
            "event": "progress",
            "seq": 2,
            "percent": 12.5,
            "label": "folding",
            "timing": timing,
            **job,
        },
        {"event": "metric", "seq": 3, "label": "loss", "value": 0.25, **job},
        {"event": "log", "seq": 4, "message": said, **job},
        {"event": "custom", "seq": 5, "name": "structure", "payload": payload, **job},
        {"event": "custom", "seq": 6, "name": "nothing", "payload": None, **job},
        {"event": "result", "seq": 7, "run_url": "file:///out/1", **job},
        {"event": "done", "seq": 8, "status": "completed", **job},
    ]


def test_the_status_of_a_job_stays_after_its_end(worker: JobWorker) -> None:
    events = worker.events("told", "says_everything")
    status = worker.get("/jobs/told")

    assert status["state"] == "completed"
    assert status["events"] == 8
    assert status["progress"] == events[1]
    assert status["terminal"] == events[-1]
    assert status["ended"] >= status["began"] > 0


def test_an_unknown_job_is_not_found(worker: JobWorker) -> None:
    asked = [
        worker.ask("GET", "/jobs/nobody"),
        worker.ask("GET", "/jobs/nobody/events"),
    ]

    for answer in asked:
        assert answer.status == 404
        assert answer.json == {
            "ok": False,
            "reason": "unknown_name",
            "error": "job nobody: none found of that id",
        }


def test_a_cancel_of_a_job_that_does_not_live_is_404(worker: JobWorker) -> None:
    answer = worker.cancel("nobody")

    assert (answer.status, answer.json) == (
        404,
        {"cancelling": False, "job_id": "nobody"},
    )


@pytest.mark.parametrize("job_id", NOT_IDS)
def test_a_bad_id_is_refused_and_leaves_no_directory(
    worker: JobWorker, job_id: str
) -> None:
    for method, path in [("POST", "/run"), ("GET", "/events"), ("POST", "/cancel")]:
        answer = worker.ask(method, f"/jobs/{job_id}{path}", {"job": "returns"})

        assert (answer.status, answer.json["reason"]) == (400, "bad_job_id")
    names = [path.name for path in state_root(worker).glob("**/*")]
    assert not {job_id, job_id.strip(), "b", "x", "a"} & set(names)


@pytest.mark.parametrize("job_id", ["a", "A-Z_09", "x" * 64, "-", "__"])
def test_a_good_id_is_taken_as_it_is(worker: JobWorker, job_id: str) -> None:
    assert terminal(worker.events(job_id, "returns"))["job_id"] == job_id


@pytest.mark.parametrize("body", [b"[1]", b"nonsense", b'"x"', b'{"x": NaN}', b"\xff"])
def test_a_body_that_is_no_object_runs_nothing(worker: JobWorker, body: bytes) -> None:
    answer = worker.ask("POST", "/jobs/no-body/run", body)

    assert (answer.status, answer.json["reason"]) == (400, "bad_request")
    assert worker.ask("GET", "/jobs/no-body").status == 404


def test_an_empty_body_is_an_empty_object(worker: JobWorker) -> None:
    events = worker.ask("POST", "/jobs/empty/run").events

    assert terminal(events)["message"] == "KeyError: 'job'"


def padded(size: int) -> bytes:
    body = json.dumps({"job": "returns", "pad": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


def test_a_body_of_ten_mebibytes_is_read_and_one_more_byte_is_not(
    worker: JobWorker,
) -> None:
    assert worker.ask("POST", "/jobs/most/run", padded(MIB10)).status == 201
    answer = worker.ask("POST", "/jobs/more/run", padded(MIB10 + 1))

    assert (answer.status, answer.json["reason"]) == (413, "too_large")
    assert str(MIB10) in answer.json["error"]
    assert worker.ask("GET", "/jobs/more").status == 404


def test_a_body_of_unknown_length_is_cut_off_too(worker: JobWorker) -> None:
    with contextlib.closing(worker.connect()) as connection:
        connection.putrequest("POST", "/jobs/chunked/run")
        connection.putheader("Transfer-Encoding", "chunked")
        for name, value in worker.authorization.items():
            connection.putheader(name, value)
        connection.endheaders()
        for _ in range(11):
            connection.send(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        connection.send(b"0\r\n\r\n")

        assert connection.getresponse().status == 413


def test_of_many_runs_of_one_id_exactly_one_is_taken(worker: JobWorker) -> None:
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        streams = list(pool.map(lambda _: worker.run("one", "waits"), range(24)))
    taken = [stream for stream in streams if stream.status == 201]
    refused = [stream.status for stream in streams if stream.status != 201]

    assert (len(taken), refused) == (1, [409] * 23)
    taken[0].until("log", message="waiting")
    worker.cancel("one")
    assert terminal(list(taken[0]))["status"] == "cancelled"
    for stream in streams:
        stream.close()


def test_a_finished_id_is_free_once_its_terminal_event_is_read(
    worker: JobWorker,
) -> None:
    for _ in range(20):
        with worker.run("again", "returns") as stream:
            assert stream.status == 201
            stream.until("done")
            assert worker.get("/busy") == {"active_jobs": 0}


def test_who_asked_reaches_the_job_and_not_its_params(worker: JobWorker) -> None:
    identity = {"user_id": "u1", "org_id": "o1", "project_id": "p1"}
    events = worker.events("who", "says_who", x=1, _identity=identity)

    assert events[0]["payload"] == {
        "job_id": "who",
        "params": {"job": "says_who", "x": 1},
        "identity": identity,
        "user": "u1",
        "state_dir": str(state_root(worker) / "who"),
        "made": True,
    }


def aliases(*pairs: tuple[str, object]) -> dict[str, object]:
    overrides = [{"token": token, "path": path} for token, path in pairs]
    return {"enabled": True, "overrides": overrides}


def test_aliases_hold_for_one_job_each_also_when_jobs_overlap(
    worker: JobWorker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    urls = ["<DATA>/x", "<OUT>/y", "<ELSE>/z"]
    rest = {"job": "resolves", "urls": urls, "until": str(go)}
    with (
        worker.run(
            "alias-1", **rest, _alias_overrides=aliases(("DATA", "/one"), ("OUT", "/o"))
        ) as one,
        worker.run(
            "alias-2", **rest, _alias_overrides=aliases(("DATA", "/two"))
        ) as two,
        worker.run("alias-3", **rest) as three,
    ):
        for stream in (one, two, three):
            stream.until("log", message="resolving")
        go.touch()
        found = [stream.until("custom")["payload"] for stream in (one, two, three)]

    assert found == [
        ["/one/x", "/o/y", "<ELSE>/z"],
        ["/two/x", "<OUT>/y", "<ELSE>/z"],
        urls,
    ]


def test_applied_aliases_are_told_before_the_jobs_own_events(worker: JobWorker) -> None:
    overrides = aliases(("A", "/a"), ("B", "/b"), ("C", None))
    events = worker.events("told-1", "returns", _alias_overrides=overrides)
    none = worker.events("told-2", "returns", _alias_overrides=aliases(("C", None)))

    assert [event.get("message") for event in events[:2]] == [
        "Applied 2 alias override(s)",
        "here",
    ]
    assert none[0]["message"] == "here"


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "", "+1", "%C2%B2", "9" * 30])
def test_an_after_that_is_no_number_is_refused(worker: JobWorker, after: str) -> None:
    worker.events("numbered", "returns")
    answer = worker.ask("GET", f"/jobs/numbered/events?after={after}")

    assert (answer.status, answer.json["reason"]) == (400, "bad_request")


def test_there_are_no_other_routes(worker: JobWorker) -> None:
    for path in ("/", "/schema", "/schema/openapi.json", "/docs", "/jobs", "/nope"):
        assert worker.ask("GET", path).status == 404, path
    for method, path in (
        ("GET", "/reclaim"),
        ("POST", "/health"),
        ("PUT", "/jobs/x/run"),
    ):
        assert worker.ask(method, path).status == 405, path


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": TOKEN},
        {"Authorization": f"bearer {TOKEN}"},
        {"Authorization": f"Bearer  {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"X-Authorization": f"Bearer {TOKEN}"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("GET", f"/busy?token={TOKEN}"),
        ("POST", "/jobs/x/run"),
        ("POST", "/jobs/not%20an%20id/run"),
        ("GET", "/of-my-own"),
        ("GET", "/no-such-route"),
    ],
)
def test_without_exactly_the_token_every_route_is_401(
    guarded: JobWorker, method: str, path: str, header: dict[str, str]
) -> None:
    answer = guarded.ask(method, path, headers=header)

    assert (answer.status, answer.json["reason"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_token_opens_every_route(guarded: JobWorker) -> None:
    assert guarded.get("/health")["ok"]
    assert guarded.get("/of-my-own") == {"mine": "yes"}
    assert guarded.ask("GET", "/no-such-route").status == 404


def test_two_authorizations_are_none(guarded: JobWorker) -> None:
    with contextlib.closing(guarded.connect()) as connection:
        connection.putrequest("GET", "/health")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Authorization", "Bearer other")
        connection.endheaders()

        assert connection.getresponse().status == 401


def test_401_comes_before_the_body_is_asked_for(guarded: JobWorker) -> None:
    with contextlib.closing(guarded.connect()) as connection:
        connection.connect()
        sock: socket.socket = connection.sock
        sock.sendall(
            b"POST /no-such-route HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )

        assert sock.recv(64).startswith(b"HTTP/1.1 401 ")
