"""Failures that happened to somebody and that no other file here holds.

docs/failures.md says for each of the others where it is held.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_smoke import provider, smoked, timed

from remote_resident import driver
from tests import small_kit

TREE = Path(__file__).parents[1]
IN_TMPFS = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'

FORKS = """
    import os, threading

    def build(config):
        # as a framework does: threads unless it is told to have one
        lock = threading.Lock()
        if os.environ.get("OMP_NUM_THREADS") != "1":
            held = threading.Event()

            def work():
                with lock:
                    held.set()
                    threading.Event().wait()

            threading.Thread(target=work, daemon=True).start()
            held.wait()
        return lock

    def predict(lock, request):
        child = os.fork()
        if child == 0:
            # the thread that would let go of it is not in the child
            with lock:
                os._exit(0)
        os.waitpid(child, 0)
        return {"answer": 42}
"""


def test_a_fork_beside_a_pool_of_threads_hangs_and_is_named(tmp_path: Path) -> None:
    asked = {"timeout_s": 2.0}

    result, _ = timed(provider(tmp_path, FORKS, smoke=asked))

    assert (result.verdict, result.reason) == ("failed", "timeout")
    assert "in predict" in "\n".join(result.lines)


def test_one_thread_that_is_declared_is_one_thread_in_the_worker(
    tmp_path: Path,
) -> None:
    one = {"vars": {"OMP_NUM_THREADS": "1"}}

    result = smoked(provider(tmp_path, FORKS, env=one))

    assert result.verdict == "done", result.lines


KIT = """
import sys
import threading
from pathlib import Path
from remote_resident import manifest, places
from tasks import kit
from tests.small_tree import drive
one = manifest.load(Path(sys.argv[1]))
_, result = drive(kit.make(one))
print(result.verdict, result.reason)
print(*sorted(p.suffix for p in (places.cache_dir() / "kits").iterdir()))
"""


@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
def test_a_disk_that_fills_while_a_kit_is_fetched_is_named_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    origin = tmp_path / "origin"
    small_kit.commit(origin, small_kit.FILES)
    (origin / "large").write_bytes(random.Random(1).randbytes(2**21))
    commit = small_kit.commit(origin, {})
    small_kit.declare(tmp_path, "tiny", f"file://{origin}", commit)
    tiny = provider(tmp_path, kit={"name": "tiny", "package": "tiny_opt"})
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    ran = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount"),
            *("sh", "-c", IN_TMPFS, "sh", "size=1m,mode=700", small),
            *(sys.executable, "-c", KIT, tiny.path),
        ],
        cwd=TREE,
        env={**os.environ, "TU_REMOTE_HOME": str(small)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "mount" in ran.stderr or "unshare" in ran.stderr:
        pytest.skip(f"no file system of one's own here: {ran.stderr.strip()}")

    assert ran.stdout.splitlines() == ["failed disk_full", ".lock"], ran


@pytest.mark.skipif(driver.device_count() > 0, reason="this machine has a GPU")
@pytest.mark.parametrize("slug", ["boltz2", "chai1"])
def test_a_machine_without_a_card_is_told_so_before_anything_is_fetched(
    slug: str, tmp_path: Path
) -> None:
    variable = f"{slug.upper()}_PYTHON"
    env = {name: value for name, value in os.environ.items() if name != variable}
    argv = [sys.executable, "-m", "remote_resident", "remote", "--tree", str(TREE)]
    ran = subprocess.run(
        [*argv, "setup", slug, "--json"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )

    (result,) = json.loads(ran.stdout)["results"]
    (step,) = result["steps"]
    assert ran.returncode == 1
    assert (step["step"], step["verdict"]) == ("preflight", "refused")
    reasons = {line.partition(":")[0] for line in step["lines"]}
    assert {"python_unset", "no_gpu"} <= reasons
    assert "Traceback" not in ran.stdout + ran.stderr
    cache = Path(os.environ["TU_REMOTE_HOME"], "cache")
    assert not any((cache / made).exists() for made in ("kits", "envs"))


def test_no_message_of_a_refusal_has_a_control_code_without_a_terminal(
    tmp_path: Path,
) -> None:
    argv = [sys.executable, "-m", "remote_resident", "remote", "--tree", str(TREE)]
    ran = subprocess.run(
        [*argv, "setup", "chai1", "boltz2"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )

    assert b"\x1b" not in ran.stdout + ran.stderr
    assert b"\r" not in ran.stdout + ran.stderr
