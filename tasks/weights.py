"""The weights step: every declared file at its pin, fetched by the provider's own command.

Nothing is fetched while a file that is there is not at its pin: it is the evidence, and a
fetcher might write over it.
"""

import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.errors import ExecEnvironmentError, Problem
from tasks.step import Making, Progress, StepResult, failed, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_resident.manifest import ProviderManifest
    from tasks.child import Ended

STEP = "weights"

_SHOWN = 20
_LOOKED_AT = 10_000
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)
_USER_IN_ADDRESS = re.compile(r"//([^/@\s]+)@")


def problems(
    provider: "ProviderManifest",
    *,
    progress: "Callable[[int, int], object] | None" = None,
) -> list[Problem]:
    """Name every file that is not at its pin, with what to type.

    `progress(done_bytes, total_bytes)` is called while files are read that the memo does
    not know.
    """
    if not provider.weights_files:
        return []
    found = provider.check_weights(progress=progress)
    return cured(provider, found.problems)


def cured(provider: "ProviderManifest", found: list[Problem]) -> list[Problem]:
    """Give what is wrong with weights, each with what brings this provider's anew."""
    told = [_with_cure(provider, problem) for problem in found]
    setup = _setup(provider)
    first = _first(provider, told)
    return [replace(p, next=first) if p.next == setup else p for p in told]


def make(provider: "ProviderManifest") -> Making:
    """Fetch what is missing, once, unless something that is there is wrong."""
    if not provider.weights_files:
        return StepResult(STEP, "skipped", detail="no weights declared")
    found = yield from _checked(provider)
    extra = unexpected(provider)
    if not found:
        return StepResult(STEP, "present", detail=_detail(provider), lines=extra)
    wrong = [problem for problem in found if not _missing(problem)]
    if wrong and len(wrong) < len(found) and provider.weights_fetch:
        extra = ["nothing was fetched: a file that is there is not at its pin", *extra]
    if wrong or not provider.weights_fetch:
        return refused(STEP, found, lines=extra)
    try:
        argv, env = fetch_command(provider, os.environ)
    except ExecEnvironmentError as exc:
        return refused(
            STEP, [*found, exc.as_problem(STEP, f"{STEP}: fetch: {exc}")], lines=extra
        )
    ended = yield from _fetched(provider, argv, env)
    left = yield from _checked(provider)
    return _result(provider, ended, left)


def fetch_command(
    provider: "ProviderManifest", environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Build the argv and the environment of the declared fetch.

    The environment is the worker's with the way to the network (proxies, certificates)
    and the weights root under its variable, without the declared switches that keep a
    worker offline, and with the caller's own cache directories: a default root such as
    `~/.cache/...` is where the downloader puts things by itself. Raises
    ExecEnvironmentError where the model's interpreter or image is not there.
    """
    from remote_resident import exec_env, places

    root = provider.weights_root()
    binds = []
    contained = provider.env_kind != "venv"
    if contained and root is not None:
        # what is not there cannot be bound
        root.mkdir(parents=True, exist_ok=True)
        binds.append(exec_env.Bind(path=root, writable=True))
    where = exec_env.from_manifest(provider, binds)
    if where.contained:
        places.ensure(where.cache_dir())
        network = where.network if where.network != "none" else "host"
        where = replace(where, network=network)
    extra = _fetch_variables(provider, environ, root, contained=contained)
    if not contained:
        extra |= _own_caches(provider, environ, where.cache_env())
    env = exec_env.child_env(provider, environ, extra)
    return where.argv(provider.weights_fetch, env, environ)


def unexpected(provider: "ProviderManifest") -> list[str]:
    """List files below the weights root that are not declared, the first twenty.

    Empty where the root is a place that others share, such as an environment's packages.
    """
    root = provider.weights_root()
    if root is None or _shared(root, provider):
        return []
    declared, unpacked = _declared(provider)
    found = []
    for count, path in enumerate(_files(root, unpacked)):
        if count == _LOOKED_AT:
            found.append(f"{_LOOKED_AT} files looked at below {root}, not all")
            break
        if path not in declared:
            found.append(f"unexpected: {path}: {_size(path)} bytes, not declared")
    more = len(found) - _SHOWN
    return found if more <= 1 else [*found[:_SHOWN], f"unexpected: {more} more"]


def _checked(
    provider: "ProviderManifest",
) -> Generator[str | Progress, None, list[Problem]]:
    """Do what `problems` does, and yield its progress.

    The check runs in a thread: it calls back, and a generator cannot yield from there.
    """
    from queue import SimpleQueue
    from threading import Event, Thread

    told: SimpleQueue[tuple[int, int] | list[Problem] | BaseException] = SimpleQueue()
    stop = Event()

    def say(done: int, total: int) -> None:
        if stop.is_set():
            raise InterruptedError
        told.put((done, total))

    def check() -> None:
        try:
            told.put(problems(provider, progress=say))
        except BaseException as exc:  # raised where the result is waited for
            told.put(exc)

    thread = Thread(target=check, daemon=True)
    thread.start()
    try:
        while True:
            said = told.get()
            if isinstance(said, BaseException):
                raise said
            if isinstance(said, list):
                return said
            yield Progress("hashed", *said, unit="bytes")
    finally:
        stop.set()
        thread.join(timeout=2)


def _fetched(
    provider: "ProviderManifest", argv: list[str], env: dict[str, str]
) -> Generator[str | Progress, None, "Ended"]:
    """Run the fetch and yield its lines, secrets taken out."""
    from shlex import join

    from tasks import child

    hide = _secrets(provider, os.environ)
    yield f"$ {join([Path(argv[0]).name, *argv[1:]])}"
    running = child.run(argv, env=env, cwd=provider.directory)
    try:
        while True:
            try:
                line = next(running)
            except StopIteration as stop:
                ended: Ended = stop.value
                return replace(ended, tail=[_hidden(t, hide) for t in ended.tail])
            shown = _hidden(line, hide)
            yield Progress(shown) if isinstance(line, child.Passing) else shown
    finally:
        running.close()


def _result(
    provider: "ProviderManifest", ended: "Ended", left: list[Problem]
) -> StepResult:
    extra = unexpected(provider)
    how = f"exit status {ended.returncode}"
    if not left:
        if ended.returncode:
            extra = [f"the fetch ended with {how}; every file is at its pin", *extra]
        return StepResult(
            STEP, "done", detail=f"{_detail(provider)}, fetched", lines=extra
        )
    if ended.returncode:
        fetch = Problem(
            step=STEP,
            reason="fetch_failed",
            text=f"{STEP}: fetch: {how} found, exit status 0 wanted",
            wanted=0,
            found=ended.returncode,
            next=_first(provider, left),
        )
        absent = any(_missing(problem) for problem in left)
        left = [fetch, *left] if absent else [*left, fetch]
    said = [f"  {line}" for line in ended.tail]
    return failed(STEP, left, lines=["the fetch's last lines:", *said, *extra])


def _missing(problem: Problem) -> bool:
    """Say whether a fetch could supply it without writing over anything."""
    if problem.reason == "not_unpacked":
        # a member of another size is there; one that is missing has nothing found
        return problem.found is None and problem.wanted is not None
    return problem.reason == "absent"


def _setup(provider: "ProviderManifest") -> str:
    return f"doit setup:{provider.slug}"


def _first(provider: "ProviderManifest", found: list[Problem]) -> str:
    """Give what lets a fetch begin: the setup alone, unless a file that is there is wrong."""
    setup = _setup(provider)
    wrong = (p.next for p in found if not _missing(p) and p.next != setup)
    return next(filter(None, wrong), setup)


def _with_cure(provider: "ProviderManifest", problem: Problem) -> Problem:
    if problem.name is None:
        return problem
    setup = _setup(provider)
    if anew := _environment_anew(provider):
        return replace(problem, next=f"{anew} && {setup}")
    cure = problem.next
    by_hand = problem.reason == "absent" and not provider.weights_fetch
    if by_hand and cure is None and provider.weights_root() is not None:
        cure = _place_by_hand(provider)
    return replace(problem, next=f"{cure} && {setup}" if cure else setup)


def _environment_anew(provider: "ProviderManifest") -> str | None:
    """Give the command that brings weights which came inside a locked package.

    None: they did not. The environment that `doit env:` made is put aside whole, for a
    reinstall in place would write over the evidence.
    """
    from shlex import quote

    from remote_resident import places

    site, root = provider.site_packages(), provider.weights_root()
    python, lock = provider.python_executable(), provider.lock_path()
    if provider.weights_fetch or None in (site, root, python, lock) or root != site:
        return None
    made = provider.made_environment()
    if made is not None and made == python.parent.parent:  # type: ignore[union-attr]
        return f"{places.aside(made)} && doit env:{provider.slug}"
    install = "-m pip install --no-deps --require-hashes --force-reinstall -r"
    return f"{quote(str(python))} {install} {quote(str(lock))}"


def _place_by_hand(provider: "ProviderManifest") -> str:
    from shlex import quote

    if provider.weights_root_env:
        return f"export {provider.weights_root_env}=/path/to/the/weights"
    root = quote(str(provider.weights_root()))
    return f"mkdir -p {root} && cp -r /path/to/the/weights/. {root}"


def _detail(provider: "ProviderManifest") -> str:
    files = provider.weights_files
    total = sum(file.size or 0 for file in files)
    pinned = sum(file.sha256 is not None for file in files)
    unpinned = f", {len(files) - pinned} without a pin" if pinned < len(files) else ""
    noun = "file" if len(files) == 1 else "files"
    return f"{len(files)} {noun}, {total} bytes{unpinned}"


def _fetch_variables(
    provider: "ProviderManifest",
    environ: Mapping[str, str],
    root: Path | None,
    *,
    contained: bool,
) -> dict[str, str | None]:
    from tasks import child

    extra: dict[str, str | None] = {**child.way_out(environ, contained=contained)}
    extra |= {n: None for n in dict(provider.env_vars) if "OFFLINE" in n.upper()}
    if provider.weights_root_env and root is not None:
        extra[provider.weights_root_env] = str(root)
    return extra


def _own_caches(
    provider: "ProviderManifest", environ: Mapping[str, str], names: Iterable[str]
) -> dict[str, str | None]:
    declared = {**dict(provider.env_vars), **dict(provider.kit_env)}
    seen = {"XDG_CACHE_HOME", *provider.env_pass_env}
    return {
        name: environ.get(name) if name in seen else None
        for name in names
        if name not in declared
    }


def _secrets(provider: "ProviderManifest", environ: Mapping[str, str]) -> list[str]:
    """List what must not be shown of what the fetch was given."""
    from tasks import child

    passed = [
        environ.get(n, "") for n in provider.env_pass_env if _SECRET_NAME.search(n)
    ]
    users = [
        user
        for value in child.way_out(environ).values()
        for user in _USER_IN_ADDRESS.findall(value)
    ]
    # one or two letters would hide half of every line
    return [value for value in passed + users if len(value) > 3]


def _hidden(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _shared(root: Path, provider: "ProviderManifest") -> bool:
    """Say whether others keep files there, too: then ours are not to be told apart."""
    from remote_resident.places import user_home

    home = user_home(os.environ)
    if "site-packages" in root.parts or root == provider.site_packages():
        return True
    return home is not None and (root == home or root in home.parents)


def _declared(provider: "ProviderManifest") -> tuple[set[Path], set[Path]]:
    root = provider.weights_root()
    paths = {path for _, path in provider.weight_paths()}
    unpacked = {
        root / file.unpacked_dir
        for file in provider.weights_files
        if root is not None and file.unpacked_dir
    }
    return paths, unpacked


def _files(root: Path, left_out: set[Path]) -> Iterator[Path]:
    for directory, below, names in os.walk(root):
        here = Path(directory)
        below[:] = sorted(name for name in below if here / name not in left_out)
        yield from (here / name for name in sorted(names))


def _size(path: Path) -> int | str:
    try:
        return path.lstat().st_size
    except OSError:
        return "unknown"
