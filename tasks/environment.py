"""The environment step: the model's interpreter has what its lock pins."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_resident.errors import ExecEnvironmentError, Problem
from tasks.installed import (
    STEP,
    Site,
    ask,
    differing,
    interpreter_file,
    lock_path,
    probe_problem,
    read_pins,
    read_site,
    see,
)
from tasks.step import Making, StepResult, failed, refused

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest


def problems(
    provider: "ProviderManifest", *, site: Site | None = None
) -> list[Problem]:
    """Compare what is installed with the lock, or look for the declared image.

    A provider without a lock has no problem here: its interpreter is used as it is.
    `site`: what was seen of it already.
    """
    if provider.env_kind != "venv":
        return _image_problems(provider)
    if provider.env_lock is None:
        return []
    pins, found = read_pins(provider)
    if pins is None:
        return found
    python, found = interpreter_file(provider, STEP, site.layout if site else None)
    if python is None or found:
        return found
    site = see(python, provider.readings) if site is None else site
    return differing(pins, python, provider.slug, site)


def make(provider: "ProviderManifest") -> Making:
    """Install the lock into the declared interpreter, then run `[env] verify`."""
    if provider.env_kind == "venv" and provider.env_lock is None:
        detail = "no lock declared: the interpreter is used as it is"
        return StepResult(STEP, "skipped", detail=detail)
    found = problems(provider)
    if not found:
        return StepResult(STEP, "present", detail=_detail(provider))
    python = provider.python_executable()
    if python is None or any(p.reason != "lock_unsatisfied" for p in found):
        return refused(STEP, found)
    from tasks import env, lock

    yield from (problem.text for problem in found)
    fault = yield from env.install(provider, python, lock.parse(lock_path(provider)))
    if fault is not None:
        return fault
    found = problems(provider)
    if found:
        return failed(STEP, found)
    return StepResult(STEP, "done", detail=_detail(provider))


def _detail(provider: "ProviderManifest") -> str:
    if provider.env_kind != "venv":
        return str(provider.env_image or provider.env_sif)
    lock, _ = read_pins(provider)
    pins = lock.pins if lock else ()
    text = f"{len(pins)} distributions at their pins"
    site = provider.site_packages()
    installed = read_site(site)[0] if site else {}
    known = {name for name, _, _ in pins}
    others = [f"{n} {v[0]}" for n, v in sorted(installed.items()) if n not in known]
    return text + (f"; not in the lock: {', '.join(others)}" if others else "")


# -- containers -----------------------------------------------------------------------


def _image_problems(provider: "ProviderManifest") -> list[Problem]:
    if provider.env_kind == "apptainer":
        return _sif_problems(provider)
    from remote_resident import exec_env

    try:
        program = exec_env.container_program(os.environ, provider.slug)
    except ExecEnvironmentError as exc:
        return [exc.as_problem(STEP)]
    return _docker_problems(provider, program)


def _sif_problems(provider: "ProviderManifest") -> list[Problem]:
    if provider.env_sif is None or provider.resolve(provider.env_sif).is_file():
        return []
    path = provider.resolve(provider.env_sif)
    text = f"{provider.slug}: [env] sif: {path}: no file found, an image wanted"
    return [_image_problem("image_missing", text, path=str(path))]


def _docker_problems(provider: "ProviderManifest", program: str) -> list[Problem]:
    image = str(provider.env_image)
    bare, _, digest = image.partition("@")
    where = f"{provider.slug}: [env] image = {image!r}"
    inspect = [program, "image", "inspect", "--format", "{{json .RepoDigests}}"]
    answer = ask([*inspect, image])
    if not isinstance(answer, str):
        return []
    if answer.startswith(("no answer", "exit 126", "exit 127")):
        command = f"{program} image inspect"
        reason = "container_missing"
        return [probe_problem(STEP, command, answer, reason)]
    import re

    pull = f"{program} pull {image}"
    other = ask([*inspect, bare]) if digest else answer
    if isinstance(other, str):
        # an engine that cannot be used knows of no image either
        unusable = ask([program, "ps", "--quiet"])
        if isinstance(unusable, str):
            command = f"{program} ps"
            return [probe_problem(STEP, command, unusable, "container_missing")]
        text = f"{where}: no such image found ({answer}), one wanted"
        return [_image_problem("image_missing", text, name=image, next=pull)]
    found = ", ".join(re.findall(r"sha256:[0-9a-f]{64}", " ".join(other))) or None
    text = f"{where}: digest {found or 'unknown'} found, {digest} wanted"
    problem = _image_problem("image_digest", text, name=image, next=pull)
    return [replace(problem, wanted=digest, found=found)]


def _image_problem(
    reason: str,
    text: str,
    *,
    path: str | None = None,
    name: str | None = None,
    next: str | None = None,
) -> Problem:
    return Problem(step=STEP, reason=reason, text=text, path=path, name=name, next=next)
