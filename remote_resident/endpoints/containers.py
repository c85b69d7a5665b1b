"""An endpoint's container: asked of the engine that its scripts use, as they ask it."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from shutil import which

from remote_resident.endpoints.engine import ENGINES
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.scripts import PATH

_ASK_S = 20.0
_FORMAT = (
    "{{.Id}} {{.State.Running}} {{.State.Paused}} {{.State.Pid}} {{.State.StartedAt}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container named as the endpoint."""

    engine: str
    running: bool | None
    """None: the engine did not say. One that is paused has all that it had."""
    paused: bool = False
    identity: str = ""
    """Its id and when it was started."""
    pid: int | None = None
    """Its first process, as this host counts; None: not known."""
    said: str = ""
    """What the engine said where it did not answer."""


def engines(endpoint: Endpoint) -> list[str]:
    """List the engines that the scripts name and that are there; mostly one or none."""
    text = f"{endpoint.start}\n{endpoint.stop}"
    return [
        found
        for name in sorted(ENGINES)
        if re.search(rf"\b{name}\b", text) and (found := which(name, path=PATH))
    ]


def find(endpoint: Endpoint, env: Mapping[str, str]) -> list[Container]:
    """Find the containers named as the endpoint, running or not."""
    found = [_inspect(engine, endpoint.name, env) for engine in engines(endpoint)]
    return [one for one in found if one is not None]


def publishing(endpoint: Endpoint, env: Mapping[str, str]) -> Container | None:
    """Give the running container whose published port the engine confirms."""
    for container in find(endpoint, env):
        if container.running and _publishes(container.engine, endpoint, env):
            return container
    return None


def _inspect(engine: str, name: str, env: Mapping[str, str]) -> Container | None:
    argv = [engine, "container", "inspect", "--format", _FORMAT, name]
    status, out, err = _ask(argv, env)
    words = out.split(None, 4)
    if status == 0 and len(words) == 5:
        pid = int(words[3]) if words[3].isdecimal() else 0
        is_paused = words[2] == "true"
        return Container(
            engine=engine,
            running=words[1] == "true" or is_paused,
            paused=is_paused,
            identity=f"{words[0]} {words[4].strip()}",
            pid=pid or None,
        )
    if "no such" in err.lower():
        return None
    said = err.strip().splitlines()[-1:] or [f"exit status {status}"]
    return Container(engine=engine, running=None, said=said[0])


def _publishes(engine: str, endpoint: Endpoint, env: Mapping[str, str]) -> bool:
    _, out, _ = _ask([engine, "port", endpoint.name], env)
    wanted = {f"127.0.0.1:{endpoint.port}", f"0.0.0.0:{endpoint.port}"}
    # "8000/tcp -> 127.0.0.1:20001"
    return any(
        line.partition("->")[2].strip() in wanted and "/tcp" in line
        for line in out.splitlines()
    )


def _ask(argv: list[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(env),
            cwd="/",
            timeout=_ASK_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return -1, "", f"no answer within {_ASK_S} s"
    except OSError as exc:
        return -1, "", exc.strerror or str(exc)
    return done.returncode, done.stdout, done.stderr
