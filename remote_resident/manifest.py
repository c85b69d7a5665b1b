"""Read provider.toml: the one place that knows what a provider declares."""

import os
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from remote_resident import places
from remote_resident.errors import ManifestError, Problem, UsageError
from remote_resident.manifest_lines import key_lines, line_of
from remote_resident.manifest_rules import Fault, full_name
from remote_resident.manifest_schema import (
    Expect,
    LadderStep,
    WeightFile,
    asked,
    kit_package,
    read,
)

if TYPE_CHECKING:
    from remote_resident import digests

__all__ = [
    "Expect",
    "LadderStep",
    "ManifestError",
    "ProviderManifest",
    "WeightFile",
    "catalog",
    "effective_digest",
    "find",
    "load",
]

FILE = "provider.toml"
MAX_BYTES = 4 * 2**20
"""No manifest is larger; what is was named by mistake."""
REPEAT = 3
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_CLAIMS = {"description", "status", "verified_on"}
"""What its author says of a provider, which changes nothing that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderManifest:
    """One provider as its provider.toml declares it: docs/manifest.md has every key."""

    path: Path
    """The file, absolute."""
    directory: Path
    tree: Path
    """What tells the provider from others of its slug: its tree, or its own directory
    where it stands outside of one."""
    lock_tree: Path
    """The tree whose locks/ and kits/ it names."""

    slug: str
    description: str
    operations: tuple[str, ...]
    status: str
    verified_on: str
    outputs: tuple[str, ...]
    output_keys: tuple[str, ...]

    runtime_mode: str
    runtime_mode_reason: str
    runtime_worker: str | None
    """Relative to the directory; None: mode jobs without one."""
    runtime_entry: str | None
    runtime_launch: str
    runtime_worker_args: tuple[str, ...]
    runtime_idle_timeout_s: float
    """0: never retired for idleness."""
    runtime_start_timeout_s: float
    runtime_request_timeout_s: float
    runtime_orphan_grace_s: float
    runtime_max_queue: int
    runtime_work_root: str | None

    gpu_policy: str
    gpu_vram_budget_gb: float | None
    """GiB; None: not declared."""
    gpu_budget_unmeasured: bool
    gpu_driver_min: str | None
    gpu_driver_min_reason: str | None
    gpu_shareable: bool
    gpu_isolation: str
    gpu_ladder: tuple[LadderStep, ...]

    host_ram_budget_gb: float | None
    """GiB; None: not declared."""
    host_ram_budget_unmeasured: bool
    host_ladder: tuple[LadderStep, ...]

    env_kind: str
    env_python: str | None
    """As written: a path, or $NAME."""
    env_lock: str | None
    env_verify: tuple[str, ...]
    env_pass_env: tuple[str, ...]
    env_vars: Mapping[str, str]
    env_image: str | None
    env_sif: str | None
    env_container_python: str
    env_network: str

    weights_root_env: str | None
    weights_root_default: str | None
    weights_fetch: tuple[str, ...]
    weights_files: tuple[WeightFile, ...]

    kit_name: str | None
    kit_subdir: str | None
    kit_package: str | None
    """`<subdir>_opt` where none is declared; None: no kit."""
    kit_mode: str | None
    kit_levers_off: tuple[str, ...]
    kit_env: Mapping[str, str]
    kit_env_absent: tuple[str, ...]

    smoke_request: Mapping[str, Any] | None
    """What is asked, read from its file where a path was given; None: a script."""
    smoke_script: str | None
    smoke_timeout_s: float
    smoke_repeat: int
    smoke_deterministic: bool
    smoke_max_growth_mib: float
    smoke_expect: tuple[Expect, ...]

    def resolve(self, rel: str) -> Path:
        """Give the absolute path of what the manifest names."""
        return Path(os.path.normpath(self.directory / Path(rel).expanduser()))

    def python_variable(self) -> str | None:
        """Name the environment variable that holds the interpreter's path, if one does."""
        found = _VARIABLE.fullmatch(self.env_python or "")
        return (found[1] or found[2]) if found else None

    def python_executable(self) -> Path | None:
        """Give the model's interpreter, not resolved: a venv's python is a symlink.

        None: its variable is unset and `doit env:` has made no environment, or the model
        lives in a container.
        """
        if self.env_kind != "venv":
            return None
        name = self.python_variable()
        if name is None and self.env_python is not None:
            return self.resolve(os.path.expandvars(self.env_python))
        if name is not None and os.environ.get(name):
            return self.resolve(os.environ[name])
        made = self.made_environment()
        python = made / "bin" / "python" if made else None
        return python if python is not None and python.exists() else None

    def made_environment(self) -> Path | None:
        """Give the directory that `doit env:` uses; None: no lock, or it is not there."""
        path = self.lock_path()
        if path is None or self.env_lock is None:
            return None
        from hashlib import sha256

        try:
            content = path.read_bytes()
        except OSError:
            return None
        return places.env_dir(self.env_lock, sha256(content).hexdigest())

    def site_packages(self) -> Path | None:
        """Give the interpreter's site-packages, found without starting it; None: unusual."""
        python = self.python_executable()
        if python is None:
            return None
        prefix = python.parent.parent
        found = sorted(prefix.glob("lib/python3*/site-packages"))
        if len(found) > 1:
            version = _venv_version(prefix)
            found = [path for path in found if path.parent.name == f"python{version}"]
        return found[0] if len(found) == 1 else None

    def weights_root(self) -> Path | None:
        """Give the directory of the weights.

        None: it depends on an interpreter or a variable that is not there.
        """
        named = self.weights_root_env and os.environ.get(self.weights_root_env)
        if named:
            return self.resolve(named)
        default = self.weights_root_default
        if default is None:
            return None
        if "{env}" in default:
            site = self.site_packages()
            if site is None:
                return None
            default = default.replace("{env}", str(site))
        expanded = os.path.expandvars(default)
        return None if _VARIABLE.search(expanded) else self.resolve(expanded)

    def weight_paths(self) -> list[tuple[WeightFile, Path]]:
        """Pair each declared file with its path; empty where the root is not known."""
        root = self.weights_root()
        return [] if root is None else [(f, root / f.name) for f in self.weights_files]

    def wanted_weights(self) -> "list[digests.Wanted]":
        """Give the declared files as `digests` takes them."""
        from remote_resident.digests import Wanted

        return [
            Wanted(
                name=file.name,
                path=path,
                size=file.size,
                sha256=file.sha256,
                unpacked_dir=_unpacked(file, path),
            )
            for file, path in self.weight_paths()
        ]

    def weights_memo(self) -> "digests.DigestMemo":
        """Open the memo of this provider's digests."""
        from remote_resident.digests import DigestMemo

        return DigestMemo(places.memo_path(self.slug, self.tree))

    def check_weights(
        self, deep: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> "digests.Verification":
        """Hold every declared file against its pin; `deep` reads every byte."""
        from remote_resident import digests

        if self.weights_files and self.weights_root() is None:
            return digests.Verification(
                problems=[self._rootless()],
                digests={},
                from_memo=[],
                read_bytes=0,
                files_opened=0,
            )
        return digests.verify(
            self.wanted_weights(), self.weights_memo(), deep=deep, progress=progress
        )

    def verify_weights(
        self, deep: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> list[Problem]:
        """List what is wrong with the declared files."""
        return self.check_weights(deep, progress).problems

    def _rootless(self) -> Problem:
        wanted = self.weights_root_default or f"${self.weights_root_env}"
        return Problem(
            step="weights",
            reason="absent",
            text=f"{self.slug}: weights root {wanted}: unknown without the model's "
            f"environment, {len(self.weights_files)} files wanted below it",
            name=self.weights_root_env,
            wanted=wanted,
            next=f"doit env:{self.slug}" if self.env_lock else None,
        )

    def lock_path(self) -> Path | None:
        """Give the path of the lock; None: none is declared."""
        if self.env_lock is None:
            return None
        return self.lock_tree / "locks" / f"{self.env_lock}.lock"

    def kit_file(self) -> Path | None:
        """Give the path of the kit's file; None: none is declared."""
        if self.kit_name is None:
            return None
        return self.lock_tree / "kits" / f"{self.kit_name}.toml"

    def missing_files(self) -> list[Problem]:
        """List the named files that are not there, or that lead out of the tree."""
        named = [
            ("runtime.worker", self.runtime_worker, "file_missing"),
            ("smoke.script", self.smoke_script, "file_missing"),
        ]
        problems = [
            problem
            for key, rel, reason in named
            if rel is not None
            for problem in self._missing(key, self.resolve(rel), reason)
        ]
        for key, path, reason in (
            ("env.lock", self.lock_path(), "lock_missing"),
            ("kit.name", self.kit_file(), "kit_invalid"),
        ):
            if path is not None:
                problems += self._missing(key, path, reason)
        return problems

    def _missing(self, key: str, path: Path, reason: str) -> Iterator[Problem]:
        bounds = [self.tree, self.lock_tree]
        real = os.path.realpath(path)
        if not any(_is_inside(real, os.path.realpath(bound)) for bound in bounds):
            found = f"{path} leads to {real}, wanted a file inside {self.tree}"
        elif not path.is_file():
            found = f"{path}: no such file" if not path.exists() else f"{path}: no file"
        else:
            return
        keys = key_lines(self.path.read_text(encoding="utf-8"))
        line = line_of(tuple(key.split(".")), keys)
        next_ = f"doit lock:{self.env_lock}" if reason == "lock_missing" else None
        yield Problem(
            step="manifest",
            reason=reason,
            text=f"{_shown(self.path, self.tree)}:{line}: {key}: {found}",
            path=str(self.path),
            line=line,
            name=key,
            wanted=str(path),
            next=next_,
        )


def _venv_version(prefix: Path) -> str:
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.search(r"(?m)^version(?:_info)?\s*=\s*(\d+\.\d+)", text)
    return found[1] if found else ""


def _unpacked(file: WeightFile, path: Path) -> Path | None:
    if file.unpacked_dir is None:
        return None
    depth = len(Path(file.name).parts)
    return path.parents[depth - 1] / file.unpacked_dir


def load(path: Path | str, tree: Path | None = None) -> ProviderManifest:
    """Read and validate one provider.toml.

    `tree`: whose locks and kits it names; None: the tree that the file stands in, else
    the one in force. Raises ManifestError with every problem of the file.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - a symlink is not followed
    own = _tree_of(path)
    lock_tree = Path.cwd() / tree if tree else own or places.find_tree()
    identity = own or path.parent
    text = _read_text(path, identity)
    data = _parse(path, text, identity)
    values, faults, doubtful = read(data)
    directory = path.parent
    if values["slug"] is None and "slug" not in doubtful:
        faults.append(Fault(("slug",), f"missing, wanted {directory.name!r}"))
    elif "slug" not in doubtful and values["slug"] != directory.name:
        wrong = f"{values['slug']!r}, wanted the directory's name {directory.name!r}"
        faults.append(Fault(("slug",), wrong, "slug_mismatch"))
    faults += _leaving(values, directory, identity)
    if isinstance(values["smoke_request"], str) and "smoke_request" not in doubtful:
        faults += _read_request(values, directory)
    if faults:
        _refuse(path, identity, text, faults)
    if values["smoke_repeat"] is None:
        values["smoke_repeat"] = 0 if values["runtime_mode"] == "subprocess" else REPEAT
    if values["kit_name"] is not None and values["kit_package"] is None:
        values["kit_package"] = kit_package(values["kit_subdir"])
    return ProviderManifest(
        path=path, directory=directory, tree=identity, lock_tree=lock_tree, **values
    )


def _tree_of(path: Path) -> Path | None:
    folder = path.parent.parent
    return folder.parent if folder.name == "manifests" else None


def _read_text(path: Path, tree: Path) -> str:
    shown = _shown(path, tree)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        _refuse_file(path, f"{shown}: no such file, wanted a {FILE}", "file_missing")
    except OSError as exc:
        _refuse_file(path, f"{shown}: {os.strerror(exc.errno or 0)}, wanted a file")
    if len(content) > MAX_BYTES:
        _refuse_file(path, f"{shown}: over {MAX_BYTES} bytes, wanted a {FILE}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        found = f"byte 0x{content[exc.start]:02x}, wanted UTF-8"
        _refuse_file(path, f"{shown}:{line}: {found}", line=line)


def _parse(path: Path, text: str, tree: Path) -> dict[str, Any]:
    if text.startswith("\ufeff"):
        found = f"{_shown(path, tree)}:1: a byte order mark, wanted none"
        _refuse_file(path, found, line=1)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        said = re.fullmatch(
            r"(.*) \(at (?:line (\d+), column \d+|end of .*)\)", f"{exc}"
        )
        last = text.count("\n") + (not text.endswith("\n"))
        line = int(said[2]) if said and said[2] else last
        found = said[1] if said else str(exc)
        shown = f"{_shown(path, tree)}:{line}: no TOML: {found}"
        _refuse_file(path, shown, line=line)
    except RecursionError:
        shown = f"{_shown(path, tree)}: nested too deep, wanted a flat file"
        _refuse_file(path, shown)


def _leaving(values: Mapping[str, Any], directory: Path, tree: Path) -> Iterator[Fault]:
    for attr, key in (
        ("runtime_worker", ("runtime", "worker")),
        ("smoke_script", ("smoke", "script")),
        ("smoke_request", ("smoke", "request")),
    ):
        rel = values[attr]
        if isinstance(rel, str) and ".." in rel:
            path = posixpath.normpath(posixpath.join(directory, rel))
            if not _is_inside(path, str(tree)):
                yield Fault(
                    key, f"{rel!r} leads to {path}, wanted a path inside {tree}"
                )


def _read_request(values: dict[str, Any], directory: Path) -> Iterator[Fault]:
    """Put the request's own content in place of its path."""
    import json

    key = ("smoke", "request")
    path = directory / values["smoke_request"]
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        yield Fault(key, f"{path}: no such file, wanted JSON", "file_missing")
    except OSError as exc:
        yield Fault(key, f"{path}: {os.strerror(exc.errno or 0)}, wanted JSON")
    except (ValueError, RecursionError) as exc:
        yield Fault(key, f"{path}: no JSON: {exc}")
    else:
        if not isinstance(found, dict):
            kind = type(found).__name__
            yield Fault(key, f"{path}: a {kind}, wanted a JSON object")
            return
        values["smoke_request"] = found
        yield from asked(values)


def _refuse(path: Path, tree: Path, text: str, faults: list[Fault]) -> NoReturn:
    lines = key_lines(text)
    problems = [
        _problem(path, tree, fault, line_of(fault.path, lines)) for fault in faults
    ]
    problems.sort(key=lambda problem: problem.line or 0)
    raise ManifestError(_summary(problems), problems=problems) from None


def _problem(path: Path, tree: Path, fault: Fault, line: int) -> Problem:
    name = full_name(fault.path)
    return Problem(
        step="manifest",
        reason=fault.reason,
        text=f"{_shown(path, tree)}:{line}: {name}: {fault.text}",
        path=str(path),
        line=line,
        name=name,
    )


def _refuse_file(
    path: Path, text: str, reason: str = "manifest_invalid", line: int | None = None
) -> NoReturn:
    problem = Problem(
        step="manifest", reason=reason, text=text, path=str(path), line=line
    )
    raise ManifestError(text, problems=[problem]) from None


def _summary(problems: list[Problem]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].text}{more}"


def _shown(path: Path, tree: Path) -> str:
    return str(path.relative_to(tree)) if path.is_relative_to(tree) else str(path)


def _is_inside(path: str, bound: str) -> bool:
    return path == bound or path.startswith(bound.rstrip("/") + "/")


def slugs(tree: Path) -> list[str]:
    """List the directories of a tree's manifests that hold a provider.toml, in order."""
    folder = tree / "manifests"
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    return [name for name in found if os.path.lexists(folder / name / FILE)]


def catalog(tree: Path) -> dict[str, ProviderManifest | ManifestError]:
    """Load every provider of a tree, in slug order; a broken one as its error."""
    found: dict[str, ProviderManifest | ManifestError] = {}
    for slug in slugs(tree):
        try:
            found[slug] = load(tree / "manifests" / slug / FILE, tree)
        except ManifestError as error:
            found[slug] = error
    return found


def find(tree: Path, name: str) -> ProviderManifest:
    """Load a provider by its slug, or by the path of its directory.

    Raises UsageError with near matches where nothing is called that, ManifestError where
    it is not well formed.
    """
    if "/" in name or name in (".", ".."):
        folder = Path(name)
        if folder.name == FILE:
            folder = folder.parent
        if not (folder / FILE).is_file():
            raise UsageError(f"{name}: no {FILE} there", next="tu remote list")
        return load(folder / FILE, tree)
    if name and os.path.lexists(tree / "manifests" / name / FILE):
        return load(tree / "manifests" / name / FILE, tree)
    known = slugs(tree)
    close = get_close_matches(name, known, 3, 0.5)
    near = f"; near: {', '.join(close)}" if close else ""
    raise UsageError(
        f"no provider {name!r} among the {len(known)} of {tree}{near}",
        next="tu remote list",
    )


def effective_digest(manifest: ProviderManifest) -> str:
    """Give the SHA-256, 64 hex, of all that the manifest makes a host do.

    Comments, order, places and what the author claims of it (description, status,
    verified_on) are not part of it.
    """
    import json
    from dataclasses import asdict
    from hashlib import sha256

    places_ = {"path", "directory", "tree", "lock_tree"}
    names = {field.name for field in fields(manifest)} - places_ - _CLAIMS
    content = {key: value for key, value in asdict(manifest).items() if key in names}
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return sha256(canonical.encode()).hexdigest()
