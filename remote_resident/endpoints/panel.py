"""An endpoint's panel: what its scripts and its service print, credentials taken out.

The output goes through a small process of its own, which outlives the daemon as the
service does: a service whose output nobody read would stop at a full pipe, and one that
wrote to a file by itself would write credentials there.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

if __name__ == "__main__":
    # run by path, so that neither the directory nor a variable of the caller matters
    sys.path[0] = str(Path(__file__).parents[2])

from remote_resident.endpoints.redaction import Redaction

_CHUNK_BYTES = 65536
_LOOK_BYTES = 2**20
_SHOWN_LINES = 2000

writers: "list[subprocess.Popen[bytes]]" = []
"""Kept until they end, so that each is reaped: they outlast the scripts they were for."""


def path_of(name: str) -> Path:
    """Name the file of an endpoint's panel."""
    from remote_resident import places

    logs = places.log_path("endpoints", places.state_dir()).parent
    return logs / "endpoints" / f"{name}.log"


def shown(name: str, lines: int = _SHOWN_LINES) -> list[str]:
    """Give the last lines of a panel; empty where there is none."""
    from remote_resident.spawn import Log

    return Log(path_of(name)).tail(lines=lines)


def open_writer(
    name: str, secrets: Sequence[str]
) -> "tuple[int, subprocess.Popen[bytes]]":
    """Start a writer; give the descriptor to write to and its process.

    It ends when the last process that holds the descriptor has closed it.
    """
    import subprocess

    from remote_resident.spawn import Log

    path = path_of(name)
    with Log(path).open():
        # made here, where an error has somebody to tell
        pass
    config = os.memfd_create("panel")
    read_fd, write_fd = os.pipe()
    try:
        os.write(config, json.dumps({"path": str(path), "hide": [*secrets]}).encode())
        os.lseek(config, 0, os.SEEK_SET)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(config)],
            stdin=read_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=[config],
            start_new_session=True,
        )
    except BaseException:
        os.close(write_fd)
        raise
    finally:
        os.close(read_fd)
        os.close(config)
    writers[:] = [one for one in writers if one.poll() is None]
    writers.append(process)
    return write_fd, process


def main(config_fd: int) -> None:
    """Copy standard input to the panel until its end."""
    with open(config_fd, "rb") as file:
        config = json.loads(file.read())
    path, redaction = config["path"], Redaction(config["hide"])
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    since_look = 0
    while chunk := os.read(0, _CHUNK_BYTES):
        _write(fd, redaction.feed(chunk))
        since_look += len(chunk)
        if since_look >= _LOOK_BYTES:
            since_look = 0
            _rotate(path)
    _write(fd, redaction.end())


def _rotate(path: str) -> None:
    from remote_resident.spawn import Log

    Log(Path(path)).rotate()


def _write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        # a full disk must not stop the service: what it says now is lost
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
