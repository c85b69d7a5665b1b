"""Read provider.toml: the one place that knows what a provider declares."""

import errno
import os
import posixpath
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from remote_resident import places
from remote_resident.errors import ManifestError, Problem, UsageError
from remote_resident.manifest_lines import key_lines, line_of
from remote_resident.manifest_rules import (
    Fault,
    Wrong,
    full_name,
    json_value,
    quoted,
    show,
)
from remote_resident.manifest_schema import (
    Expect,
    LadderStep,
    WeightFile,
    asked,
    kit_package,
    made,
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
_NOT_DIGESTED = frozenset(
    "path directory tree lock_tree description status verified_on".split()
)
"""Where a provider stands and what its author says of it: neither changes what runs."""


@dataclass(frozen=True, kw_only=True)
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

    def __hash__(self) -> int:
        return hash(self.path)

    def resolve(self, rel: str) -> Path:
        """Give the absolute path of what the manifest names."""
        expanded = os.path.expanduser(rel)  # noqa: PTH111 - pathlib raises on ~nobody
        return Path(posixpath.normpath(posixpath.join(self.directory, expanded)))

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
        declared = _expanded(self.env_python) if self.env_python else None
        if declared is not None:
            return self.resolve(declared)
        made = self.made_environment()
        python = made / "bin" / "python" if made else None
        return python if python is not None and os.access(python, os.F_OK) else None

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
        default = self.weights_root_default and _expanded(self.weights_root_default)
        if not default:
            return None
        if "{env}" in default:
            site = self.site_packages()
            if site is None:
                return None
            default = default.replace("{env}", str(site))
        return self.resolve(default)

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
        default = self.weights_root_default or ""
        unset = [name for name in _variables(default) if not os.environ.get(name)]
        if self.weights_root_env:
            unset.insert(0, self.weights_root_env)
        why = [f"${name} is unset" for name in unset]
        next_ = f"export {unset[0]}=DIRECTORY" if unset else None
        if "{env}" in default and self.site_packages() is None:
            why.append("the model's environment is not there")
            next_ = f"doit env:{self.slug}" if self.env_lock else next_
        wanted = default or f"${self.weights_root_env}"
        return Problem(
            step="weights",
            reason="absent",
            text=f"{self.slug}: weights root {wanted}: {' and '.join(why)}, "
            f"a directory with {len(self.weights_files)} files wanted",
            name=self.weights_root_env,
            wanted=wanted,
            next=next_,
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

    def warnings(self) -> list[str]:
        """List what is allowed and still a risk, each as a sentence."""
        if self.env_image is None or "@sha256:" in self.env_image:
            return []
        shown = _File(str(self.path)).shown
        return [
            f"{shown}: env.image: {quoted(self.env_image)} without a digest: "
            "what it names can change"
        ]

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
        bounds = (str(self.tree), str(self.lock_tree))
        leads = [_leads_out(str(path), bound) for bound in bounds]
        real = leads[0]
        if None not in leads:
            found = f"{path} leads to {real}, wanted a file inside {self.tree}"
        elif not path.is_file():
            found = f"{path}: no such file" if not path.exists() else f"{path}: no file"
        else:
            return
        file = _File(str(self.path))
        line = line_of(tuple(key.split(".")), key_lines(_read_text(file)))
        next_ = f"doit lock:{self.env_lock}" if reason == "lock_missing" else None
        yield Problem(
            step="manifest",
            reason=reason,
            text=f"{file.shown}:{line}: {key}: {found}",
            path=str(self.path),
            line=line,
            name=key,
            wanted=str(path),
            next=next_,
        )


def _variables(text: str) -> list[str]:
    return [bare or braced for bare, braced in _VARIABLE.findall(text)]


def _expanded(text: str) -> str | None:
    """Put in the values of variables; None where one is unset or empty."""
    if not all(os.environ.get(name) for name in _variables(text)):
        return None
    return _VARIABLE.sub(lambda found: os.environ[found[1] or found[2]], text)


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
    # a symlink is not followed: the slug is the name of the directory that was named
    file = _File(os.path.abspath(path))  # noqa: PTH100
    own = _directory(file.tree) if file.tree else None
    if tree is None:
        lock_tree = own or places.find_tree()
    else:
        lock_tree = _directory(os.path.abspath(tree))  # noqa: PTH100
    text = _read_text(file)
    values, faults, doubtful = read(_parse(file, text))
    if "slug" not in doubtful:
        faults += _slug_faults(values["slug"], file)
    faults += _leaving(values, file)
    if type(values["smoke_request"]) is str and "smoke_request" not in doubtful:
        faults += _read_request(values, file)
    if faults:
        _refuse(file, text, faults)
    if values["smoke_repeat"] is None:
        values["smoke_repeat"] = 0 if values["runtime_mode"] == "subprocess" else REPEAT
    if values["kit_name"] is not None and values["kit_package"] is None:
        values["kit_package"] = kit_package(values["kit_subdir"])
    values["path"] = Path(file.path)
    values["directory"] = directory = values["path"].parent
    values["tree"] = own or directory
    values["lock_tree"] = lock_tree
    return made(ProviderManifest, values)


@lru_cache(maxsize=16)
def _directory(path: str) -> Path:
    """Make a path once for all the providers of a tree."""
    return Path(path)


class _File:
    """A provider.toml by its absolute path; strings, because paths are slow to make."""

    __slots__ = ("directory", "path", "tree")

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory = posixpath.dirname(path)
        around, name = posixpath.split(posixpath.dirname(self.directory))
        self.tree = around if name == "manifests" else None
        """None: it stands outside of any tree."""

    @property
    def bound(self) -> str:
        """Name the directory that what it names must stay in."""
        return self.tree or self.directory

    @property
    def shown(self) -> str:
        """Write the path for a person: within the tree, where there is one."""
        return _shown(self.path, self.tree)


def _slug_faults(slug: str | None, file: _File) -> list[Fault]:
    wanted = posixpath.basename(file.directory)
    if slug is None:
        return [Fault(("slug",), f"missing, wanted {wanted!r}")]
    if slug != wanted:
        text = f"{slug!r}, wanted the directory's name {wanted!r}"
        return [Fault(("slug",), text, "slug_mismatch")]
    return []


def _content(path: str) -> bytes:
    """Read a regular file, at most a byte more than MAX_BYTES.

    Raises OSError. What is no regular file is not waited for: a fifo has no end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = os.read(fd, min(found.st_size, MAX_BYTES) + 1)
        # a byte more was asked for: as many as the size are all
        while len(content) != found.st_size:
            more = os.read(fd, MAX_BYTES + 1 - len(content))
            if not more:
                break
            content += more
        return content
    finally:
        os.close(fd)


def _read_text(file: _File) -> str:
    try:
        content = _content(file.path)
    except FileNotFoundError:
        text = f"{file.shown}: no such file, wanted a {FILE}"
        _refuse_file(file, text, "file_missing")
    except OSError as exc:
        _refuse_file(file, f"{file.shown}: {exc.strerror}, wanted a file")
    except ValueError:
        # no path holds a NUL, or what the filesystem's encoding cannot say
        _refuse_file(file, f"{file.path!r}: no path, wanted a file")
    if len(content) > MAX_BYTES:
        _refuse_file(file, f"{file.shown}: over {MAX_BYTES} bytes, wanted a {FILE}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        found = f"byte 0x{content[exc.start]:02x}, wanted UTF-8"
        _refuse_file(file, f"{file.shown}:{line}: {found}", line=line)


def _parse(file: _File, text: str) -> dict[str, Any]:
    if text.startswith("\ufeff"):
        _refuse_file(file, f"{file.shown}:1: a byte order mark, wanted none", line=1)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        said = re.fullmatch(
            r"(.*) \(at (?:line (\d+), column \d+|end of .*)\)", f"{exc}"
        )
        last = text.count("\n") + (not text.endswith("\n"))
        line = int(said[2]) if said and said[2] else last
        found = said[1] if said else str(exc)
        _refuse_file(file, f"{file.shown}:{line}: no TOML: {found}", line=line)
    except RecursionError:
        _refuse_file(file, f"{file.shown}: nested too deep, wanted a flat file")
    except ValueError as exc:
        # Python's own limit on digits, which the parser passes on without a place
        long = re.search(r"[0-9_]{4301}", text)
        line = text.count("\n", 0, long.start()) + 1 if long else 1
        found = f"{file.shown}:{line}: no TOML: {str(exc).partition(':')[0]}"
        _refuse_file(file, found, line=line)


_IN_TREE = (
    ("runtime_worker", ("runtime", "worker")),
    ("runtime_work_root", ("runtime", "work_root")),
    ("env_python", ("env", "python")),
    ("env_sif", ("env", "sif")),
    ("weights_root_default", ("weights", "root_default")),
    ("smoke_script", ("smoke", "script")),
)
"""What must stay inside the tree, unless it is absolute on purpose; the request's file is
looked at where it is read."""


def _leaving(values: Mapping[str, Any], file: _File) -> Iterator[Fault]:
    for attr, key in _IN_TREE:
        rel = values[attr]
        if type(rel) is not str or ".." not in rel or rel[0] in "/~${":
            continue
        path = posixpath.normpath(posixpath.join(file.directory, rel))
        if not _is_inside(path, file.bound):
            text = f"{rel!r} leads to {path}, wanted a path inside {file.bound}"
            yield Fault(key, text)


def _read_request(values: dict[str, Any], file: _File) -> Iterator[Fault]:
    """Put the request's own content in place of its path."""
    import json

    key = ("smoke", "request")
    path = posixpath.join(file.directory, values["smoke_request"])
    # a plain name next to the manifest cannot leave it
    simple = "/" not in values["smoke_request"] and not os.path.islink(path)  # noqa: PTH114
    if not simple and (real := _leads_out(path, file.bound)) is not None:
        text = f"{path} leads to {real}, wanted a file inside {file.bound}"
        yield Fault(key, text, "file_missing")
        return
    try:
        found = json.loads(_content(path))
    except FileNotFoundError:
        yield Fault(key, f"{path}: no such file, wanted JSON", "file_missing")
    except OSError as exc:
        yield Fault(key, f"{path}: {exc.strerror}, wanted JSON")
    except (ValueError, RecursionError) as exc:
        yield Fault(key, f"{path}: no JSON: {exc}")
    else:
        if type(found) is not dict:
            yield Fault(key, f"{path}: {show(found)}, wanted a JSON object")
            return
        try:
            values["smoke_request"] = json_value(found)
        except Wrong as wrong:
            for fault in wrong.faults:
                yield Fault(key + fault.path, f"{path}: {fault.text}")
            return
        yield from asked(values)


def _leads_out(path: str, bound: str) -> str | None:
    """Give where symlinks below `bound` lead, if that is outside of it."""
    real = os.path.realpath(path)
    if _is_inside(real, bound) or _is_inside(real, os.path.realpath(bound)):
        return None
    return real


def _refuse(file: _File, text: str, faults: list[Fault]) -> NoReturn:
    lines = key_lines(text)
    problems = [_problem(file, fault, line_of(fault.path, lines)) for fault in faults]
    problems.sort(key=lambda problem: problem.line or 0)
    raise ManifestError(_summary(problems), problems=problems) from None


def _problem(file: _File, fault: Fault, line: int) -> Problem:
    name = full_name(fault.path)
    return Problem(
        step="manifest",
        reason=fault.reason,
        text=f"{file.shown}:{line}: {name}: {fault.text}",
        path=file.path,
        line=line,
        name=name,
    )


def _refuse_file(
    file: _File, text: str, reason: str = "manifest_invalid", line: int | None = None
) -> NoReturn:
    problem = Problem(
        step="manifest", reason=reason, text=text, path=file.path, line=line
    )
    raise ManifestError(text, problems=[problem]) from None


def _summary(problems: list[Problem]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].text}{more}"


def _shown(path: str, tree: str | None) -> str:
    return path[len(tree.rstrip("/")) + 1 :] if tree else path


def _is_inside(path: str, bound: str) -> bool:
    return path == bound or path.startswith(bound.rstrip("/") + "/")


def slugs(tree: Path) -> list[str]:
    """List the directories of a tree's manifests that hold a provider.toml, in order."""
    folder = tree / "manifests"
    try:
        found = sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted
    except FileNotFoundError:
        return []
    except OSError as exc:
        # not the same as a tree without providers
        text = f"{folder}: {exc.strerror}, wanted the directory of the providers"
        raise UsageError(text, reason="unreadable") from None
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
    inside = tree / "manifests" / name / FILE
    if name and "/" not in name and name not in (".", "..") and os.path.lexists(inside):
        return load(inside, tree)
    folder = Path(name).parent if Path(name).name == FILE else Path(name)
    file = os.path.abspath(folder / FILE)  # noqa: PTH100
    if name and os.path.isfile(file):  # noqa: PTH113 - pathlib raises on EACCES
        own = _File(file).tree
        return load(file, Path(own) if own else tree)
    if "/" in name or name in (".", ".."):
        raise UsageError(f"{name}: no {FILE} there", next="tu remote list")
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
    from hashlib import sha256

    content = {k: v for k, v in vars(manifest).items() if k not in _NOT_DIGESTED}
    canonical = json.dumps(content, sort_keys=True, default=vars)
    return sha256(canonical.encode()).hexdigest()
