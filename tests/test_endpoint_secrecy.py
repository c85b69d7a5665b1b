"""A credential of a service: in its environment, and nowhere else."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from small_endpoint import CANARY, STOP, endpoint, host, refused, start_script, wait_for

from remote_resident.endpoints import panel

__all__ = ["host"]


def test_a_credential_is_in_nothing_that_is_written_started_or_said(
    host: Any, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f'echo "key $NVIDIA_API_KEY" >&2\n{start_script()}'
    stop = f'env > "$SERVICE_DIR/env"\n{STOP}'
    one = endpoint("a", start=script, stop=stop)
    here = host(one, endpoint("b", start=f"{script}exit 3"))
    here.run("a", "import urllib.request as u; u.urlopen(BASE_URL + '/env').read()")
    seen = json.dumps(here.run("a", "import os; print(dict(os.environ))"))
    argvs = [_argv(pid) for pid in _all_pids()]
    seen += str(refused(here, "b"))
    assert (Path(one.service_dir or "") / "env").exists()

    files = [
        p for p in home.rglob("*") if p.is_file() and p.parent.name != "credentials"
    ]
    assert len(files) > 5
    assert [p for p in files if CANARY.encode() in _content(p)] == []
    assert [argv for argv in argvs if CANARY.encode() in argv] == []
    assert CANARY not in seen
    assert CANARY not in "".join(capfd.readouterr())
    wait_for(lambda: "key [credential]" in panel.shown("a-service"))


def _all_pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        # a note that was being written stands under its own name by now
        return b""


def _argv(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
