"""The kit step: third-party code at its pinned commit, installed from its checkout.

pip installs from a copy of the committed files, for a build leaves its products where it
runs. The copy lies at a path that holds the commit and belongs to this step alone, and
pip's own record of an install (`direct_url.json`) names it: that is the evidence of what
was installed, and no file of ours has to say so. The copy is removed afterwards.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import interpreters, kits, places
from remote_resident.errors import Problem, ProviderError
from tasks import installed
from tasks.step import Making, StepResult, failed, refused

if TYPE_CHECKING:
    from remote_resident.kits import Kit
    from remote_resident.manifest import ProviderManifest
    from tasks.child import Ended

STEP = "kit"

_FETCH_LIMIT_S = 1800.0
_INSTALL_LIMIT_S = 1800.0
_CURABLE = {"kit_unreachable", "kit_not_installed"}
_TAIL = 10
_SHOWN = 20

# above every file of git's configuration, the checkout's own included
_GIT_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.excludesFile": os.devnull,
    "core.autocrlf": "false",
    "core.trustctime": "true",
    "init.templateDir": "",
    "protocol.ext.allow": "never",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
}
_GIT_KEPT = ("GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_PROXY", "GIT_HTTP_")


def problems(provider: "ProviderManifest") -> list[Problem]:
    """Name what the declared kit lacks; a provider without one lacks nothing.

    The checkout's HEAD is the commit and its work tree clean; files that the kit itself
    ignores do not count, for none of them is installed. Of a container only the checkout
    is looked at: its image is not ours to install into.
    """
    path = provider.kit_file()
    if path is None:
        return []
    kit, found = _declared(path)
    if kit is None:
        return found
    found = _checkout_problems(provider, kit)
    if provider.env_kind != "venv" or any(p.reason not in _CURABLE for p in found):
        return found
    return [*found, *_install_problems(provider, kit)]


def make(provider: "ProviderManifest") -> Making:
    """Fetch the commit and install its package; a checkout that is there is kept.

    Whoever else makes the same commit is waited for, in whatever tree.
    """
    path = provider.kit_file()
    if path is None:
        return StepResult(STEP, "skipped", detail="no kit declared")
    kit, found = _declared(path)
    if kit is None:
        return refused(STEP, found)
    try:
        places.ensure(kit.checkout.parent)
        lock = places.open_lock(kit.checkout.parent / f".{kit.commit}.lock")
    except ProviderError as exc:
        return refused(STEP, [exc.as_problem(STEP, f"{provider.slug}: {exc}")])
    from tasks import child

    try:
        # inherited: a git that outlives this process is then waited for
        with child.inheriting(lock):
            yield from _hold(lock, kit)
            return (yield from _made(provider, kit))
    finally:
        os.close(lock)


def _declared(path: Path) -> "tuple[Kit | None, list[Problem]]":
    from dataclasses import replace

    kit, found = kits.read(path)
    return kit, [replace(problem, step=STEP) for problem in found]


def _hold(lock: int, kit: "Kit") -> Iterator[str]:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield f"waiting for another setup, which makes {kit.checkout}"
        fcntl.flock(lock, fcntl.LOCK_EX)


def _made(provider: "ProviderManifest", kit: "Kit") -> Making:
    for left in (_part(kit), _copy(kit)):
        # of a setup that was cut off; nobody else has it while the lock is held
        shutil.rmtree(left, ignore_errors=True)
    found = problems(provider)
    if not found:
        return StepResult(STEP, "present", detail=_detail(provider, kit))
    if any(problem.reason not in _CURABLE for problem in found):
        return refused(STEP, found)
    yield from (problem.text for problem in found)
    fault = None
    if any(problem.reason == "kit_unreachable" for problem in found):
        fault = yield from _fetch(provider, kit)
    if fault is None and provider.env_kind == "venv":
        fault = yield from _install(provider, kit)
    if fault is not None:
        return fault
    found = problems(provider)
    if found:
        return failed(STEP, found)
    return StepResult(STEP, "done", detail=_detail(provider, kit))


def _detail(provider: "ProviderManifest", kit: "Kit") -> str:
    return f"{provider.kit_name} at {kit.commit}"


# -- the checkout ---------------------------------------------------------------------


def _checkout_problems(provider: "ProviderManifest", kit: "Kit") -> list[Problem]:
    place = kit.checkout
    if shutil.which("git") is None:
        text = (
            f"{provider.slug}: no git on PATH found, one wanted for "
            f"the kit {provider.kit_name}"
        )
        return [_problem(provider, "git_missing", text, place)]
    if not os.path.lexists(place):
        text = (
            f"{provider.slug}: {place}: nothing found, commit {kit.commit} of "
            f"{kit.repository} wanted"
        )
        return [_problem(provider, "kit_unreachable", text, place)]
    head = _ask_git(place, "rev-parse", "--verify", "HEAD^{commit}")
    if isinstance(head, str) or head != [kit.commit]:
        there = f"no checkout ({head})" if isinstance(head, str) else " ".join(head)
        text = f"{provider.slug}: {place}: HEAD: {there} found, {kit.commit} wanted"
        return [_moved_away(provider, "kit_wrong_commit", text, place)]
    changed = _ask_git(place, "status", "--porcelain", "--untracked-files=all")
    if not changed:
        return []
    shown = changed if isinstance(changed, str) else "; ".join(changed[:_SHOWN])
    if len(changed) > _SHOWN and not isinstance(changed, str):
        shown += f" and {len(changed) - _SHOWN} more"
    text = f"{provider.slug}: {place}: {shown} found, a clean work tree wanted"
    return [_moved_away(provider, "kit_dirty", text, place)]


def _ask_git(place: Path, *command: str) -> list[str] | str:
    """Give the lines that git prints of a checkout; a str says why there are none."""
    from tasks import child

    running = child.run(
        _git(place, *command),
        env=git_environment(os.environ),
        timeout_s=installed.PROBE_LIMIT_S,
    )
    lines, ended = child.collected(running)
    if ended.returncode == 0 and not ended.timed_out:
        return lines
    return f"git {command[0]}: {ended.how}" + "".join(f"; {t}" for t in lines[-1:])


def _git(place: Path, *command: str) -> list[str]:
    # both named: git would look for a repository in the directories above
    return ["git", f"--git-dir={place}/.git", f"--work-tree={place}", *command]


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the environment of every git: it asks nobody and runs nobody's hooks.

    Of the caller's variables for git only those that lead to a server are kept.
    """
    env = {
        name: value
        for name, value in environ.items()
        if not name.startswith("GIT_") or name.startswith(_GIT_KEPT)
    }
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    env["GIT_CONFIG_COUNT"] = str(len(_GIT_CONFIG))
    for number, (name, value) in enumerate(_GIT_CONFIG.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def _fetch(
    provider: "ProviderManifest", kit: "Kit"
) -> Generator[str, None, StepResult | None]:
    """Bring the commit to its place: fetched beside it, renamed when it is whole."""
    part = _part(kit)
    try:
        ended = yield from _checked_out(part, kit)
        if ended.returncode or ended.timed_out:
            problem = _fetch_problem(provider, kit, ended)
            return failed(STEP, [problem], lines=ended.tail[-_TAIL:])
        part.rename(kit.checkout)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return None


def _checked_out(part: Path, kit: "Kit") -> Generator[str, None, "Ended"]:
    """Run git until the commit is checked out, or one of its commands failed."""
    fetch = _git(part, "fetch", "--progress", "--no-recurse-submodules")
    ended = yield from _run(["git", "init", "--quiet", str(part)], _FETCH_LIMIT_S)
    if ended.returncode:
        return ended
    one = [*fetch, "--no-tags", "--depth=1", "--", kit.repository, kit.commit]
    ended = yield from _run(one, _FETCH_LIMIT_S)
    if ended.returncode and not ended.timed_out:
        # not every server gives a commit that is asked for by its name
        refs = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
        ended = yield from _run([*fetch, "--", kit.repository, *refs], _FETCH_LIMIT_S)
    if ended.returncode:
        return ended
    checkout = _git(part, "checkout", "--quiet", "--detach", kit.commit)
    return (yield from _run(checkout, _FETCH_LIMIT_S))


def _fetch_problem(provider: "ProviderManifest", kit: "Kit", ended: "Ended") -> Problem:
    if any("No space left on device" in line for line in ended.tail):
        text = (
            f"{provider.slug}: {kit.checkout.parent}: no space left on device found, "
            f"room for kit {provider.kit_name} wanted"
        )
        return _problem(provider, "disk_full", text, kit.checkout)
    said = next((line for line in reversed(ended.tail) if line.strip()), "")
    text = (
        f"{provider.slug}: kit {provider.kit_name}: {kit.repository}: "
        f"git {ended.how} ({said.strip()}) found, commit {kit.commit} wanted"
    )
    return _problem(provider, "kit_unreachable", text, kit.checkout)


# -- the package ----------------------------------------------------------------------


def _install_problems(provider: "ProviderManifest", kit: "Kit") -> list[Problem]:
    python, found = installed.interpreter(provider, STEP)
    if python is None or found:
        return found
    site = _site(python)
    if isinstance(site, str):
        return [installed.probe_problem(STEP, str(python), site, "python_missing")]
    source = _source(provider, kit).as_uri()
    if any(origin == source for origin in _origins(site)):
        return []
    text = (
        f"{provider.slug}: {site}: no {provider.kit_package} of commit {kit.commit} "
        f"found, one installed from {kit.checkout} wanted"
    )
    return [_problem(provider, "kit_not_installed", text, site)]


def _site(python: Path) -> Path | str:
    """Name the site-packages; a str says why an unusual interpreter did not."""
    if site := interpreters.site_packages(python):
        return site
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = installed.ask([str(python), "-I", "-c", show])
    return answer if isinstance(answer, str) else Path("".join(answer[-1:]))


def _origins(site: Path) -> Iterator[str]:
    """Yield where pip says it installed from, of what it installed to the end."""
    for info in site.glob("*.dist-info"):
        # pip's last file; a name that begins with ~ is what a cut-off pip put aside
        if not (info / "RECORD").is_file() or info.name.startswith("~"):
            continue
        try:
            told = json.loads((info / "direct_url.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(told, dict) and isinstance(told.get("url"), str):
            yield told["url"]


def _part(kit: "Kit") -> Path:
    return kit.checkout.parent / f".{kit.commit}.part"


def _copy(kit: "Kit") -> Path:
    return kit.checkout.parent / f".{kit.commit}.build"


def _source(provider: "ProviderManifest", kit: "Kit") -> Path:
    return _copy(kit) / (provider.kit_subdir or "")


def _install(
    provider: "ProviderManifest", kit: "Kit"
) -> Generator[str, None, StepResult | None]:
    """Install the kit's package, nothing else, into the provider's interpreter."""
    python, found = installed.interpreter(provider, STEP)
    if python is None or found:
        return refused(STEP, found)
    if installed.is_ours(python):
        text = (
            f"{provider.slug}: {python}: the interpreter that this tool runs in found, "
            f"one of the model's own wanted for kit {provider.kit_name}"
        )
        return refused(STEP, [_problem(provider, "python_is_ours", text, python)])
    copy = _copy(kit)
    try:
        files = ["checkout-index", "--all", "--force", f"--prefix={copy}/"]
        ended = yield from _run(_git(kit.checkout, *files), _INSTALL_LIMIT_S)
        if ended.returncode == 0:
            ended = yield from _pip(python, _source(provider, kit))
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    if ended.returncode == 0 and not ended.timed_out:
        return None
    full = any("No space left on device" in line for line in ended.tail)
    text = (
        f"{provider.slug}: kit {provider.kit_name}: installing it: {ended.how} found, "
        "exit 0 wanted"
    )
    reason = "disk_full" if full else "kit_not_installed"
    return failed(STEP, [_problem(provider, reason, text, python)], lines=ended.tail)


def _pip(python: Path, source: Path) -> Generator[str, None, "Ended"]:
    from tasks.env import pip_environment

    # what it needs is in the lock: nothing is resolved, nothing fetched, and no wheel
    # of an earlier build is taken
    argv = [
        *(str(python), "-I", "-m", "pip", "install", "--no-deps", "--no-index"),
        *("--no-build-isolation", "--no-cache-dir", "--force-reinstall", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar", "off", str(source)),
    ]
    return (
        yield from _run(argv, _INSTALL_LIMIT_S, pip_environment(os.environ), source)
    )


def _run(
    argv: list[str],
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Generator[str, None, "Ended"]:
    from tasks import child

    env = git_environment(os.environ) if env is None else env
    return (yield from child.run(argv, env=env, cwd=cwd, timeout_s=limit_s))


def _problem(
    provider: "ProviderManifest", reason: str, text: str, place: Path
) -> Problem:
    return Problem(
        step=STEP,
        reason=reason,
        text=text,
        path=str(place),
        name=provider.kit_name,
        next=f"doit setup:{provider.slug}",
    )


def _moved_away(
    provider: "ProviderManifest", reason: str, text: str, place: Path
) -> Problem:
    from dataclasses import replace

    command = f"{places.aside(place, 'aside')} && doit setup:{provider.slug}"
    return replace(_problem(provider, reason, text, place), next=command)
