"""Jobs in a real container: what an image must hold, and that nothing else is needed."""

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_jobs
from container_image import PYTHON, Image
from small_job_host import Site, events, sites, until

from remote_resident import manifest, processes
from tasks import smoke
from tasks.step import StepResult

pytestmark = pytest.mark.container

NEEDED = ("litestar", "uvicorn")
"""What docs/jobs.md says that an image holds besides Python."""
PLACE = "/usr/local/lib/python3.11/dist-packages"
"""Where Debian's interpreter looks for what it was given by hand."""


def closure(names: tuple[str, ...]) -> list[importlib.metadata.Distribution]:
    """List distributions with all that they require, of those that are installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = one
        for line in one.requires or ():
            if "extra ==" not in line:
                wanted.append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return list(found.values())


@pytest.fixture(scope="module")
def image(base_image: Image, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give an image that holds what is needed and no more, built if there is none yet."""
    needed = closure(NEEDED)
    made_of = sorted(f"{one.name} {one.version}" for one in needed)
    tag = hashlib.sha256(f"{base_image.name} {made_of}".encode()).hexdigest()[:12]
    name, program = f"localhost/tu-test-jobs:{tag}", base_image.program
    there = subprocess.run(
        [program, "image", "inspect", name], capture_output=True, check=False
    )
    if there.returncode == 0:
        return name
    folder = tmp_path_factory.mktemp("image")
    for one in needed:
        for file in one.files or ():
            if not str(file).startswith("..") and file.suffix != ".pyc":
                target = folder / "packages" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(str(one.locate_file(file))), target)
    recipe = f"FROM {base_image.name}\nCOPY packages {PLACE}\n"
    (folder / "Containerfile").write_text(recipe)
    build = [program, "build", "--quiet", "--tag", name]
    subprocess.run(
        [*build, "--file", str(folder / "Containerfile"), str(folder)],
        check=True,
        capture_output=True,
    )
    return name


@pytest.fixture
def site(
    tmp_path: Path, base_image: Image, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setenv("TU_CONTAINER_CLI", base_image.program)
    with sites(tmp_path) as made:
        yield made


def contained(site: Site, image: str, **tables: Any) -> Path:
    """Write a provider that runs in the image."""
    env = {"kind": "docker", "python": None, "container_python": PYTHON}
    return small_jobs.write(site.tree, env={**env, "image": image}, **tables)


def made(provider: manifest.ProviderManifest) -> StepResult:
    making = smoke.make(provider, admit=None)
    while True:
        try:
            next(making)
        except StopIteration as end:
            result: StepResult = end.value
            return result


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_litestar_and_uvicorn_are_all_that_an_image_must_hold(
    site: Site, image: str
) -> None:
    contained(site, image)
    host = site.host()

    job = host.submit("tiny", {"does": "writes", "x": 3}, tree=site.tree)
    got = events(host, job)
    ended = host.job(job.job_id)
    instance = str(ended.instance)
    host.end(stop_services=False)

    assert got[-1].get("status") == "completed", got[-1]
    assert ended.results == ("file:///3",)
    # its client hands them on when it comes to it
    wrote = [f"job {job.job_id} does writes"]
    until(lambda: host.stderr(job.job_id) == wrote, "its lines are there")
    assert host.job(job.job_id).state == "completed"
    until(lambda: not processes.members(instance), "the container is gone")


@pytest.mark.long
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_a_job_that_hangs_in_a_container_shows_its_stacks(
    site: Site, image: str
) -> None:
    request = {"does": "sleeps"}
    path = contained(site, image, smoke={"request": request, "timeout_s": 20.0})

    result = made(manifest.load(path))

    assert (result.verdict, result.reason) == ("failed", "timeout")
    stacks = result.lines[result.lines.index("its stacks at the deadline:") :]
    assert [line for line in stacks if 'plugin.py", line' in line and "sleeps" in line]
