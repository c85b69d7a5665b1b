"""`tu remote endpoint compose`: write a container's start and stop script."""

from pathlib import Path
from typing import Any

from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import UsageError


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    add = parser.add_argument
    add("--image", metavar="I", required=True)
    add("--port", type=int, metavar="N", required=True, help="the service's, inside")
    add("--cache", metavar="DIR", help="inside, kept in the service's directory")
    add("--user", default="auto", metavar="U", help="auto, or UID[:GID] (auto)")
    add("--engine", choices=("docker", "podman"), default="docker", help="(docker)")
    add("--name", help="the endpoint; else what the service's directory is called")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    add(
        "--credential-as",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name of the credential inside, repeatable",
    )
    add("--login", metavar="REGISTRY", help="log in with the credential before a pull")
    add("--login-user", default="$oauthtoken", metavar="U", help="($oauthtoken)")
    add("--gpus", metavar="WHICH", help="all, or as the engine names them")
    add("--shm-size", metavar="SIZE", help="as the engine writes it: 8g")
    add("--stop-grace-s", type=int, default=30, metavar="N", help="(30)")
    add("--start", default="start.sh", metavar="FILE", help="to write (start.sh)")
    add("--stop", default="stop.sh", metavar="FILE", help="to write (stop.sh)")
    add("words", nargs="*", metavar="-- ARG", help="what the image is told")


_OPTIONS = (
    "image port cache user engine name login login_user gpus shm_size "
    "stop_grace_s".split()
)


def run(asked: Asked) -> Answer:
    """Write both scripts; a file that is another script stays as it is."""
    from remote_resident.endpoints import compose

    options = vars(asked)
    wanted = compose.Composition(
        **{key: options[key] for key in _OPTIONS},
        env=tuple(asked.env),
        credential_as=tuple(asked.credential_as),
        arguments=tuple(asked.words),
    )
    scripts = compose.compose(wanted)
    start, stop = Path(asked.start), Path(asked.stop)
    if start.resolve() == stop.resolve():
        raise UsageError(
            f"--stop: {stop} found, which is --start's, another file wanted",
            reason="bad_request",
            next="tu remote endpoint compose --help",
        )
    told = {True: "written", False: "was there already"}
    lines = [
        f"{path}: {told[compose.write(path, script)]}"
        for path, script in ((start, scripts.start), (stop, scripts.stop))
    ]
    document = {"ok": True, "start": str(start), "stop": str(stop)}
    return Answer(document=document, text="\n".join(lines))
