"""What the host asks a job worker, over its socket."""

import os
from pathlib import Path
from typing import Any

from remote_resident import processes
from remote_resident.caller_side.found import Found
from remote_resident.unix_http import NoAnswer, UnixConnection, ask

INPUTS_VARIABLE = "TU_RESIDENT_INPUTS"
"""The digest of what a job worker was started from, in its environment."""
RECLAIM_S = 2.0


def health(path: Path, timeout_s: float) -> dict[str, Any] | None:
    """Give what a worker says of itself; None: no answer in time."""
    try:
        status, said = ask(path, "GET", "/health", timeout_s=timeout_s)
    except NoAnswer:
        return None
    return said if status == 200 and isinstance(said, dict) else None


def active_jobs(path: Path, timeout_s: float) -> int | None:
    """Give how many jobs live in a worker; None: no answer in time."""
    try:
        status, said = ask(path, "GET", "/busy", timeout_s=timeout_s)
    except NoAnswer:
        return None
    found = said.get("active_jobs") if isinstance(said, dict) else None
    return found if status == 200 and isinstance(found, int) else None


def reclaim(path: Path) -> bool:
    """Have a worker give cached device memory back; False: no answer in time."""
    try:
        ask(path, "POST", "/reclaim", timeout_s=RECLAIM_S)
    except NoAnswer:
        return False
    return True


def cancel(path: Path, job_id: str, timeout_s: float) -> bool:
    """Ask a job to end; False: it does not live there, or no answer in time."""
    try:
        status, _ = ask(path, "POST", f"/jobs/{job_id}/cancel", timeout_s=timeout_s)
    except NoAnswer:
        return False
    return status == 200


def peer(path: Path) -> int | None:
    """Give the pid of who accepts on a socket, by the kernel's word; None: nobody."""
    connection = UnixConnection(path, 1.0)
    try:
        connection.connect()
        return connection.peer()
    except OSError:
        return None
    finally:
        connection.close()


def find(path: Path, timeout_s: float) -> Found | None:
    """Say who accepts on a socket, by the kernel's word; None: nobody does."""
    connection = UnixConnection(path, timeout_s)
    try:
        connection.connect()
        pid = connection.peer()
    except OSError:
        return None
    finally:
        connection.close()
    marks = {} if pid is None else processes.marks(pid)
    active = active_jobs(path, timeout_s)
    return Found(
        slug=marks.get("resident-slug"),
        tree=marks.get("resident-tree"),
        instance=marks.get("resident-instance"),
        inputs=None if pid is None else _variable(pid, INPUTS_VARIABLE),
        pid=pid,
        busy=active != 0,
        # a stopped process answers nothing until somebody lets it go on
        leaving=pid is not None and state_of(pid) in (None, "T", "Z"),
        confirmed=active is not None,
    )


def state_of(pid: int) -> str | None:
    """Give a process's state letter; None: it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return stat[stat.rfind(")") + 2]


def device_of(pid: int) -> str | None:
    """Give the device that a worker was started on; None: none was chosen."""
    return _variable(pid, "CUDA_VISIBLE_DEVICES")


def _variable(pid: int, name: str) -> str | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    head = f"{name}=".encode()
    return next(
        (os.fsdecode(v[len(head) :]) for v in environ if v.startswith(head)), None
    )
