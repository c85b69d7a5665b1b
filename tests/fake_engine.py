#!/usr/bin/env python3
"""A container program of one container, kept in the directory FAKE; writes down every call.

Files in FAKE set what goes wrong: `unpublished` holds how many runs publish nothing,
`down` lets every call fail, `run_fails` every run, `start_fails` every start.
"""

import json
import os
import sys
from pathlib import Path

HOME = Path(os.environ.get("FAKE") or Path(__file__).parent)
CONTAINER = HOME / "container.json"


def read() -> dict:
    return json.loads(CONTAINER.read_text()) if CONTAINER.exists() else {}


def note(words: list[str]) -> None:
    stdin = sys.stdin.read() if "--password-stdin" in words else None
    variables = {
        k: v for k, v in os.environ.items() if k.startswith(("DOCKER_", "REG"))
    }
    with (HOME / "calls").open("a") as file:
        call = {"argv": words, "stdin": stdin, "env": variables}
        file.write(json.dumps(call) + "\n")


def run(words: list[str]) -> int:
    if "--rm" in words:
        return 0
    if (HOME / "run_fails").exists() or CONTAINER.exists():
        print("the name is in use, or worse", file=sys.stderr)
        return 125
    left = HOME / "unpublished"
    count = int(left.read_text()) if left.exists() else 0
    left.write_text(str(max(0, count - 1)))
    host, port, inside = words[words.index("--publish") + 1].split(":")
    label = words[words.index("--label") + 1].partition("=")[2]
    bound = {f"{inside}/tcp": [{"HostIp": host, "HostPort": port}]}
    container = {
        "state": "running",
        "label": label,
        "bindings": json.dumps(bound, separators=(",", ":")),
        "published": "" if count else f"{host}:{port}",
        "name": words[words.index("--name") + 1],
        "env": {
            name: os.environ.get(name)
            for at, name in enumerate(words)
            if at and words[at - 1] == "-e" and "=" not in name
        },
    }
    CONTAINER.write_text(json.dumps(container))
    return 0


def inspect(words: list[str]) -> int:
    container = read()
    if not container:
        return 1
    known = {"State.Status": "state", "made-from": "label", "Bindings": "bindings"}
    print(next(container[key] for what, key in known.items() if what in words[1]))
    return 0


def change(state: str) -> int:
    container = read()
    if not container or (state == "running" and (HOME / "start_fails").exists()):
        return 1
    CONTAINER.write_text(json.dumps({**container, "state": state}))
    return 0


def port() -> int:
    container = read()
    if container.get("state") == "running" and container["published"]:
        print(container["published"])
        return 0
    return 1


def image(words: list[str]) -> int:
    if words[0] == "inspect" and not (HOME / "image").exists():
        return 1
    if "--format" in words:
        print("model")
    return 0


def main(words: list[str]) -> int:
    note(words)
    if (HOME / "down").exists():
        return 1
    verb, rest = words[0], words[1:]
    if verb == "rm":
        CONTAINER.unlink(missing_ok=True)
    elif verb == "pull":
        (HOME / "image").touch()
    elif verb == "ps" and CONTAINER.exists():
        print("0123456789ab")
    verbs = {
        "run": lambda: run(rest),
        "container": lambda: inspect(rest[1:]),
        "start": lambda: change("running"),
        "stop": lambda: change("exited"),
        "port": port,
        "image": lambda: image(rest),
    }
    return verbs.get(verb, lambda: 0)()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
