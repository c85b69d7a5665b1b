"""Weights are at their pins, fetched once where they are missing, never overwritten."""

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import small_tree

from remote_resident import digests, places
from remote_resident.manifest_schema import WeightFile
from tasks import weights
from tasks.step import Progress, StepResult

FETCH = """
import os, pathlib, sys
root = pathlib.Path(os.environ["CAPITI_WEIGHTS"])
root.mkdir(parents=True, exist_ok=True)
with open(root.parent / "fetched", "a") as count: count.write("1")
"""
GOOD = {"model.onnx": b"the model", "vocab/words.txt": b"a b c"}


@dataclass(kw_only=True)
class Provider:
    """What the step asks of a manifest."""

    root: Path
    weights_files: tuple[WeightFile, ...]
    weights_fetch: tuple[str, ...] = ()
    weights_root_env: str | None = "CAPITI_WEIGHTS"
    slug: str = "capiti"
    env_kind: str = "venv"
    env_python: str = "python"
    env_lock: str | None = None
    env_pass_env: tuple[str, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    kit_env: Mapping[str, str] = field(default_factory=dict)
    gpu_policy: str = "none"
    python: Path | None = Path(sys.executable)

    @property
    def tree(self) -> Path:
        return self.root.parent

    directory = tree

    def weights_root(self) -> Path:
        return self.root

    def python_executable(self) -> Path | None:
        return self.python

    def python_variable(self) -> str | None:
        return None

    def lock_path(self) -> Path | None:
        return None

    def site_packages(self) -> Path | None:
        return None

    def weight_paths(self) -> list[tuple[WeightFile, Path]]:
        return [(w, self.root / w.name) for w in self.weights_files]

    def check_weights(
        self, deep: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> digests.Verification:
        wanted = [
            digests.Wanted(
                name=w.name,
                path=path,
                size=w.size,
                sha256=w.sha256,
                unpacked_dir=self.root / w.unpacked_dir if w.unpacked_dir else None,
            )
            for w, path in self.weight_paths()
        ]
        memo = digests.DigestMemo(places.memo_file(self.slug, self.tree))
        return digests.verify(wanted, memo, deep=deep, progress=progress)


def weight(name: str, data: bytes) -> WeightFile:
    return WeightFile(
        name=name,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        unpinned_reason=None,
        unpacked_dir=None,
    )


def provider(tmp_path: Path, fetch: str | None = None, **more: Any) -> Any:
    files = tuple(weight(name, data) for name, data in GOOD.items())
    argv = ("-c", FETCH + fetch) if fetch is not None else ()
    root = tmp_path / "weights root"
    return Provider(root=root, weights_files=files, weights_fetch=argv, **more)


def put(root: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def writing(files: Mapping[str, bytes]) -> str:
    return "".join(
        f"p = root / {name!r}; p.parent.mkdir(exist_ok=True); p.write_bytes({data!r})\n"
        for name, data in files.items()
    )


def made(provider: Any) -> tuple[list[str], StepResult]:
    making, said = weights.make(provider), []
    while True:
        try:
            line = next(making)
        except StopIteration as stop:
            return said, stop.value
        if not isinstance(line, Progress):
            said.append(line)


def fetches(provider: Any) -> int:
    count = provider.tree / "fetched"
    return len(count.read_text()) if count.exists() else 0


def test_no_weights_declared_is_skipped(tmp_path: Path) -> None:
    none = Provider(root=tmp_path, weights_files=())

    assert weights.problems(none) == []  # type: ignore[arg-type]
    assert made(none)[1].verdict == "skipped"


def test_weights_at_their_pins_are_present_and_nothing_is_fetched(
    tmp_path: Path,
) -> None:
    capiti = provider(tmp_path, writing(GOOD))
    put(capiti.root, GOOD)

    said, result = made(capiti)

    assert (said, result.verdict) == ([], "present")
    assert result.detail == "2 files, 14 bytes"
    assert fetches(capiti) == 0


def test_missing_weights_are_fetched_once_and_its_lines_are_shown(
    tmp_path: Path,
) -> None:
    capiti = provider(tmp_path, writing(GOOD) + "print('got it')")

    said, result = made(capiti)

    assert result.verdict == "done", result
    assert said[0].startswith(f"$ {Path(sys.executable).name} -c ")
    assert said[-1] == "got it"
    assert fetches(capiti) == 1
    assert weights.problems(capiti) == []


def test_a_wrong_file_refuses_the_fetch_and_is_left_in_place(tmp_path: Path) -> None:
    capiti = provider(tmp_path, writing(GOOD))
    put(capiti.root, {"model.onnx": b"the m"})

    _, result = made(capiti)

    path = capiti.root / "model.onnx"
    missing = capiti.root / "vocab" / "words.txt"
    assert (result.verdict, result.reason) == ("refused", "size")
    assert result.lines == [
        "size: weights: model.onnx: 5 bytes, 9 wanted",
        f"absent: weights: vocab/words.txt: absent at {missing}, 5 bytes wanted",
        "nothing was fetched: a file that is there is not at its pin",
        f"next: mv '{path}' '{path}.bad' && doit setup:capiti",
    ]
    assert fetches(capiti) == 0
    assert path.read_bytes() == b"the m"


def test_a_fetcher_that_exits_0_and_leaves_a_part_is_judged_by_the_disk(
    tmp_path: Path,
) -> None:
    part = {"vocab/words.txt": GOOD["vocab/words.txt"], "model.onnx.incomplete": b"the"}
    capiti = provider(tmp_path, writing(part))

    _, result = made(capiti)

    assert (result.verdict, result.reason) == ("failed", "absent")
    assert result.detail == (
        f"weights: model.onnx: absent at {capiti.root}/model.onnx, 9 bytes wanted; "
        "model.onnx.incomplete has 3 bytes"
    )
    assert fetches(capiti) == 1
    assert (capiti.root / "model.onnx.incomplete").read_bytes() == b"the"


def test_a_fetcher_that_fails_is_named_with_its_status_and_its_last_lines(
    tmp_path: Path,
) -> None:
    capiti = provider(tmp_path, "print('no route'); sys.exit(7)")

    _, result = made(capiti)

    assert (result.verdict, result.reason) == ("failed", "fetch_failed")
    assert result.detail == "weights: fetch: exit status 7 found, exit status 0 wanted"
    assert [line.partition(":")[0] for line in result.lines[:3]] == [
        *("fetch_failed", "absent", "absent"),
    ]
    assert "  no route" in result.lines
    assert result.lines[-1] == "next: doit setup:capiti"


def test_a_fetch_that_was_cut_names_only_what_lets_the_next_one_begin(
    tmp_path: Path,
) -> None:
    capiti = provider(tmp_path, writing({"model.onnx": b"the m"}) + "sys.exit(7)")

    _, result = made(capiti)

    path = capiti.root / "model.onnx"
    told = [line for line in result.lines if line.startswith("next: ")]
    assert result.reason == "fetch_failed"
    assert told == [f"next: mv '{path}' '{path}.bad' && doit setup:capiti"]
    subprocess.run(told[0][6:].partition(" && ")[0], shell=True, check=True)
    assert weights._first(capiti, weights.problems(capiti)) == "doit setup:capiti"


def test_a_fetcher_that_fails_after_the_last_file_has_done_its_work(
    tmp_path: Path,
) -> None:
    _, result = made(provider(tmp_path, writing(GOOD) + "sys.exit(7)"))

    assert result.verdict == "done"
    assert result.lines == [
        "the fetch ended with exit status 7; every file is at its pin"
    ]


def test_a_fetcher_that_brings_another_file_fails_at_the_digest(tmp_path: Path) -> None:
    _, result = made(provider(tmp_path, writing({**GOOD, "model.onnx": b"the modem"})))

    assert (result.verdict, result.reason) == ("failed", "digest")


def test_missing_without_a_fetch_is_refused_with_what_to_type(tmp_path: Path) -> None:
    named = provider(tmp_path)
    fixed = provider(tmp_path, weights_root_env=None)

    assert made(named)[1].verdict == "refused"
    assert weights.problems(named)[0].next == (
        "export CAPITI_WEIGHTS=/path/to/the/weights && doit setup:capiti"
    )
    root = f"'{fixed.root}'"
    assert weights.problems(fixed)[0].next == (
        f"mkdir -p {root} && cp -r /path/to/the/weights/. {root} && doit setup:capiti"
    )


def test_weights_of_an_environment_that_is_not_there_come_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("M_PYTHON", raising=False)
    weight = f'[[weights.file]]\nname = "w"\nsize = 1\nsha256 = "{"0" * 64}"\n'
    table = '[weights]\nroot_env = "M_WEIGHTS"\nroot_default = "{env}"\n'
    root = small_tree.tree(tmp_path, toml=small_tree.MANIFEST + table + weight)
    monkeypatch.setenv("TU_REMOTE_TREE", str(root))

    (problem,) = weights.problems(small_tree.provider(root))

    assert problem.next == "doit env:m && doit setup:m"


def test_a_fetch_without_an_interpreter_is_refused(tmp_path: Path) -> None:
    _, result = made(provider(tmp_path, "", python=None))

    assert result.verdict == "refused"
    assert any(line.startswith("python_missing: ") for line in result.lines)


def test_unexpected_files_are_listed_and_not_touched(tmp_path: Path) -> None:
    capiti = provider(tmp_path)
    put(capiti.root, {**GOOD, "old/model.onnx": b"12"})

    _, result = made(capiti)

    assert result.verdict == "present"
    assert result.lines == [
        f"unexpected: {capiti.root}/old/model.onnx: 2 bytes, not declared"
    ]
    assert (capiti.root / "old" / "model.onnx").exists()


def test_of_many_unexpected_files_the_first_twenty_are_listed(tmp_path: Path) -> None:
    capiti = provider(tmp_path)
    put(capiti.root, {f"{i:03}": b"" for i in range(50)})

    listed = weights.unexpected(capiti)

    assert len(listed) == 21
    assert listed[-1] == "unexpected: 30 more"


def test_an_environments_packages_are_not_listed_as_unexpected(tmp_path: Path) -> None:
    shared = provider(tmp_path / "lib" / "site-packages")
    put(shared.root, {"other.py": b""})

    assert weights.unexpected(shared) == []


def test_the_fetch_sees_the_workers_environment_and_the_way_to_the_network(
    tmp_path: Path,
) -> None:
    capiti = provider(
        tmp_path,
        "",
        env_pass_env=("HF_TOKEN",),
        env_vars={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCH_HOME": "/t"},
    )
    environ = {
        "PATH": "/bin",
        "HF_TOKEN": "hf_secret",
        "https_proxy": "http://proxy:1",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "PYTHONPATH": "/stray",
        "CAPITI_WEIGHTS": "/elsewhere",
        "XDG_CACHE_HOME": "/mine",
        "TRITON_CACHE_DIR": "/stray",
    }

    argv, env = weights.fetch_command(capiti, environ)

    assert argv == [sys.executable, *capiti.weights_fetch]
    assert env == {
        "PATH": "/bin",
        "HF_TOKEN": "hf_secret",
        "https_proxy": "http://proxy:1",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "CAPITI_WEIGHTS": str(capiti.root),
        "OMP_NUM_THREADS": "1",
        "TORCH_HOME": "/t",
        "XDG_CACHE_HOME": "/mine",
    }


def test_a_secret_is_neither_shown_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("https_proxy", "http://ann:pw99@proxy:1")
    text = "print(os.environ['HF_TOKEN'], os.environ['https_proxy']); sys.exit(1)"

    said, result = made(provider(tmp_path, text, env_pass_env=("HF_TOKEN",)))

    assert said[-1] == "*** http://***@proxy:1"
    assert "  *** http://***@proxy:1" in result.lines
    assert "hf_secret" not in str((said[1:], result))


def test_a_cut_making_ends_the_fetch(tmp_path: Path) -> None:
    text = "import time; print(os.getpid(), flush=True); time.sleep(60)"
    making = weights.make(provider(tmp_path, text))
    lines = (line for line in making if isinstance(line, str))
    pid = next(int(line) for line in lines if line.isdigit())

    making.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_progress_of_hashing_is_in_bytes(tmp_path: Path) -> None:
    capiti = provider(tmp_path)
    put(capiti.root, GOOD)

    said = [s for s in weights.make(capiti) if isinstance(s, Progress)]

    assert said[-1] == Progress("hashed", 14, 14, "bytes")


def test_weights_that_came_in_a_package_come_back_with_a_new_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remote_resident import manifest, places

    tree = Path(__file__).parents[1]
    capiti = manifest.load(tree / "manifests/capiti/provider.toml", tree)
    monkeypatch.delenv("CAPITI_WEIGHTS", raising=False)
    monkeypatch.delenv("CAPITI_PYTHON", raising=False)
    lock = (tree / "locks/capiti.lock").read_bytes()
    made = places.env_dir("capiti", hashlib.sha256(lock).hexdigest())
    for place in (made, tmp_path / "of my own"):
        (place / "lib/python3.11/site-packages").mkdir(parents=True)
        (place / "bin").mkdir()
        (place / "bin/python").symlink_to(sys.executable)

    first = weights.problems(capiti)[0]
    monkeypatch.setenv("CAPITI_PYTHON", str(tmp_path / "of my own/bin/python"))
    second = weights.problems(capiti)[0]

    assert first.next == (
        f"mv {made} {made}.bad && doit env:capiti && doit setup:capiti"
    )
    assert second.next == (
        f"'{tmp_path}/of my own/bin/python' -m pip install --no-deps "
        f"--require-hashes --force-reinstall -r {shlex.quote(str(tree / 'locks/capiti.lock'))}"
        " && doit setup:capiti"
    )
