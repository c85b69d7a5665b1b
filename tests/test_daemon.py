"""The host daemon: one per user, which nothing that a client does can end."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import small_daemon
from small_provider import until

from remote_resident.daemon import client
from remote_resident.daemon.client import DaemonClient, connect
from remote_resident.errors import ProviderError, UsageError

WAIT_S = 60.0


@pytest.fixture
def run(home: Path) -> Path:
    return home / "run"


@pytest.fixture
def started(home: Path) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Collect the daemons that a test starts, and end them."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def tiny(
    home: Path, run: Path, started: "list[subprocess.Popen[bytes]]"
) -> DaemonClient:
    with (home / "said").open("wb") as said:
        started.append(small_daemon.start(home, stderr=said))
    return DaemonClient(run / "daemon.sock")


@pytest.fixture
def real(home: Path) -> Iterator[None]:
    """End the daemon that `connect` started in this test."""
    yield
    with suppress(ProviderError):
        pid = connect(start=False).call("GET", "/v1/health")["pid"]
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def raw(run: Path, sent: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(run / "daemon.sock"))
        with suppress(BrokenPipeError):
            sock.sendall(sent)
        got = b""
        while more := sock.recv(65536):
            got += more
        return got


def test_a_request_reaches_its_handler_with_its_names_decoded(
    tiny: DaemonClient,
) -> None:
    got = tiny.call("POST", "/v1/tiny/x%2Fy/b/%C3%A4?q=1&r=a%20b", {"k": [1]})

    assert got == {
        "names": {"a": "x/y", "c": "ä"},
        "query": {"q": "1", "r": "a b"},
        "body": {"k": [1]},
    }


def test_health_says_who_it_is(
    tiny: DaemonClient, started: "list[subprocess.Popen[bytes]]"
) -> None:
    got = tiny.call("GET", "/v1/health")

    assert (got["ok"], got["pid"]) == (True, started[0].pid)
    assert got["tenants"] == ["tiny"]


def test_a_refusal_arrives_as_it_was_raised(tiny: DaemonClient) -> None:
    with pytest.raises(ProviderError) as caught:
        tiny.call("GET", "/v1/tiny/refusal")

    exc = caught.value
    assert (str(exc), exc.reason, exc.next) == ("it is full", "no_room", "tu y")
    assert exc.problems == [small_daemon.PROBLEM]
    assert exc.exit_code == 1


def test_a_bug_is_500_in_the_log_and_no_end(tiny: DaemonClient, home: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        tiny.call("GET", "/v1/tiny/bug")

    assert (caught.value.reason, caught.value.exit_code) == ("internal", 2)
    assert "ZeroDivisionError: of the tenant" in (home / "said").read_text()
    assert tiny.call("GET", "/v1/health")["ok"]


def test_a_log_on_a_full_disk_ends_nothing(
    home: Path, run: Path, started: "list[subprocess.Popen[bytes]]"
) -> None:
    with Path("/dev/full").open("wb") as full:
        started.append(small_daemon.start(home, stderr=full))
    daemon = DaemonClient(run / "daemon.sock")

    for _ in range(3):
        with pytest.raises(ProviderError):
            daemon.call("GET", "/v1/tiny/bug")

    assert daemon.call("GET", "/v1/health")["ok"]


def test_what_names_nothing_is_a_usage_error(tiny: DaemonClient) -> None:
    with pytest.raises(UsageError) as caught:
        tiny.call("GET", "/v1/nothing")

    assert str(caught.value) == "GET /v1/nothing: no such route"
    assert caught.value.reason == "unknown_name"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/end HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]", 400),
        (b"POST /v1/end HTTP/1.1\r\nContent-Length: 1\r\n\r\n{", 400),
        (b"POST /v1/end HTTP/1.1\r\nContent-Length: 2\r\n\r\n\xff\xff", 400),
        (b"POST /v1/end HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /v1/end HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"POST /v1/end HTTP/1.1\r\nContent-Length: 10485761\r\n\r\n", 413),
    ],
)
def test_what_is_no_request_is_refused_in_the_shape_of_every_failure(
    tiny: DaemonClient, run: Path, sent: bytes, status: int
) -> None:
    body = b"x" * 10485761 if status == 413 else b""
    got = raw(run, sent + body)

    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert b'{"ok": false, "reason": "' in got
    assert tiny.call("GET", "/v1/health")["ok"]


def test_a_body_at_the_limit_is_taken(tiny: DaemonClient) -> None:
    body = {"k": "x" * (10 * 2**20 - 9)}

    assert tiny.call("POST", "/v1/tiny/a/b/c", body)["body"] == body


def test_three_hundred_at_once_and_those_who_stall_keep_nobody_out(
    tiny: DaemonClient, run: Path
) -> None:
    stalled = []
    for _ in range(100):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(run / "daemon.sock"))
        sock.sendall(b"POST /v1/end HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        stalled.append(sock)
    try:
        with ThreadPoolExecutor(300) as pool:
            asks = [pool.submit(tiny.call, "GET", "/v1/health") for _ in range(300)]
            assert all(ask.result(WAIT_S)["ok"] for ask in asks)
    finally:
        for sock in stalled:
            sock.close()


def test_a_stream_is_closed_when_its_reader_leaves(
    tiny: DaemonClient, run: Path
) -> None:
    lines = tiny.stream("GET", "/v1/tiny/stream")
    assert next(lines) == {"n": 1}
    assert not (run / "closed").exists()

    lines.close()  # type: ignore[attr-defined]

    until((run / "closed").exists, "the iterator is closed")


def test_what_breaks_half_way_is_raised_after_what_came(tiny: DaemonClient) -> None:
    got = []
    with pytest.raises(ProviderError) as caught:
        got.extend(tiny.stream("GET", "/v1/tiny/broken"))
    lines = tiny.stream("GET", "/v1/tiny/broken")

    assert (str(caught.value), caught.value.reason) == ("half way", "lost")
    assert next(lines) == {"n": 1}


def test_a_stream_that_a_killed_daemon_cut_is_no_end(
    tiny: DaemonClient, started: "list[subprocess.Popen[bytes]]"
) -> None:
    lines = tiny.stream("GET", "/v1/tiny/stream")
    assert next(lines) == {"n": 1}

    started[0].kill()
    with pytest.raises(ProviderError) as caught:
        next(lines)

    assert caught.value.reason == "not_running"


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(
    tiny: DaemonClient,
    home: Path,
    run: Path,
    started: "list[subprocess.Popen[bytes]]",
) -> None:
    started.append(small_daemon.start(home))
    second = started[1]

    assert second.wait(WAIT_S) == 1
    assert second.said == {  # type: ignore[attr-defined]
        "error": f"{run}/daemon.lock: a daemon that runs already found "
        f"(pid {started[0].pid}), none wanted",
        "reason": "locked",
        "next": f"kill {started[0].pid}",
    }
    assert tiny.call("GET", "/v1/health")["pid"] == started[0].pid


def test_the_socket_is_for_its_owner_alone(tiny: DaemonClient, run: Path) -> None:
    assert stat.S_IMODE((run / "daemon.sock").stat().st_mode) == 0o600
    assert sorted(path.name for path in run.glob("daemon.sock*")) == ["daemon.sock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_peer_of_another_user_is_refused(tiny: DaemonClient, run: Path) -> None:
    (run / "daemon.sock").chmod(0o666)
    script = (
        "import os, socket; s = socket.socket(socket.AF_UNIX); os.setuid(65534);"
        "s.connect('daemon.sock'); s.sendall(b'GET /v1/health HTTP/1.0\\r\\n\\r\\n');"
        "print(s.recv(10))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=run, capture_output=True, check=False
    )

    assert b"HTTP" not in told.stdout
    assert tiny.call("GET", "/v1/health")["ok"]


@pytest.mark.parametrize("words", [(), ("--stop-services",)])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(
    home: Path,
    run: Path,
    started: "list[subprocess.Popen[bytes]]",
    words: tuple[str, ...],
    signum: signal.Signals,
) -> None:
    started.append(small_daemon.start(home, *words))

    started[0].send_signal(signum)

    assert started[0].wait(WAIT_S) == 0
    assert (run / "ended").read_text() == str(bool(words))
    assert not (run / "daemon.sock").exists()


def test_the_next_daemon_takes_the_place_of_a_killed_one(
    tiny: DaemonClient, home: Path, started: "list[subprocess.Popen[bytes]]"
) -> None:
    started[0].kill()
    started[0].wait()
    started.append(small_daemon.start(home))

    assert tiny.call("GET", "/v1/health")["pid"] == started[1].pid


def test_a_file_in_the_sockets_place_is_kept_and_named(home: Path, run: Path) -> None:
    run.mkdir(0o700)
    (run / "daemon.sock").write_text("mine")
    process = small_daemon.start(home)
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(WAIT_S) == 1
    assert process.said["reason"] == "socket_path"  # type: ignore[attr-defined]
    assert (run / "daemon.sock").read_text() == "mine"


def test_an_orphan_is_reaped_and_a_childs_status_is_kept(
    tiny: DaemonClient, started: "list[subprocess.Popen[bytes]]"
) -> None:
    child = tiny.call("POST", "/v1/tiny/child")["pid"]
    orphan = tiny.call("POST", "/v1/tiny/orphan")["pid"]

    # a child that nobody waits for is reaped too: a zombie would be looked for for ever
    until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in (orphan, child)),
        "both are reaped",
    )

    assert tiny.call("GET", "/v1/tiny/child") == {"status": 7}


def test_who_only_asks_starts_none(run: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        connect(start=False)

    assert caught.value.reason == "not_running"
    assert str(caught.value) == f"{run}/daemon.sock: no daemon found, one wanted"


@pytest.mark.usefixtures("real")
def test_those_who_start_at_once_share_one(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda _: connect(), range(8)))

    pids = {daemon.call("GET", "/v1/health")["pid"] for daemon in clients}
    assert len(pids) == 1
    assert os.getsid(pids.copy().pop()) == pids.pop()
    assert "refused" not in (home / "cache/logs/daemon.log").read_text()


@pytest.mark.usefixtures("real", "home")
def test_a_daemon_does_not_end_with_the_worker_that_a_command_ran_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TU_RESIDENT_INSTANCE", "of-a-worker")

    pid = connect().call("GET", "/v1/health")["pid"]

    carried = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert not [one for one in carried if one.startswith(b"TU_RESIDENT_")]


def test_a_daemon_that_cannot_start_says_why(home: Path, run: Path) -> None:
    run.mkdir(0o700)
    (run / "daemon.sock").write_text("mine")

    with pytest.raises(ProviderError) as caught:
        client.connect()

    assert caught.value.reason == "socket_path"
    assert "no socket found there" in str(caught.value)


def tu_daemon(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "remote_resident", "remote", "daemon", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("real")
def test_the_command_runs_one_in_front_refuses_a_second_and_ends_it(run: Path) -> None:
    first = tu_daemon()
    assert first.stdout is not None
    ready = json.loads(first.stdout.readline())
    second, second_said = ended(tu_daemon())
    ending, ending_said = ended(tu_daemon("--stop-services"))
    status, said = ended(first)

    assert ready == {
        "ready": True,
        "pid": first.pid,
        "socket": str(run / "daemon.sock"),
    }
    assert (second, second_said["reason"]) == (1, "locked")
    assert f"(pid {first.pid})" in second_said["error"]
    assert (ending, ending_said) == (0, {"ok": True, "ended": first.pid})
    assert (status, said) == (0, {"ok": True, "ended": first.pid})


def ended(process: "subprocess.Popen[str]") -> tuple[int, dict[str, object]]:
    out, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, json.loads(out)
