"""Read provider.toml: the one place that knows what a provider declares."""

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import interpreters, places, readings
from remote_resident.errors import ManifestError, Problem, UsageError
from remote_resident.manifest_parts import (
    Expect,
    LadderStep,
    WeightFile,
    made,
    plain,
    unplain,
)
from remote_resident.manifest_path import (
    FILE,
    VARIABLE,
    File,
    below,
    expanded,
    file_at,
    file_inside,
    nearest,
    slugs,
    variables,
)
from remote_resident.readings import Readings

if TYPE_CHECKING:
    from remote_resident import digests
    from remote_resident.file_identity import Identity

__all__ = [
    "FILE",
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

MAX_BYTES = readings.MAX_BYTES
_NOT_DIGESTED = frozenset(
    "file folder path directory tree lock_tree known readings description status verified_on "
    "accept_sizes accept_request accept_script accept_timeout_s".split()
)
"""Where a provider stands, what its author says of it and how it is put to the test: none
of these changes what runs."""


@dataclass(frozen=True, kw_only=True, init=False)
class ProviderManifest:
    """One provider as its provider.toml declares it: docs/manifest.md has every key."""

    file: str
    """Of the provider.toml, absolute."""
    folder: str
    """What the file lies in, and the slug is the name of."""
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

    accept_sizes: tuple[int, ...]
    """The sizes of input that acceptance asks for, ascending; empty: not declared."""
    accept_request: Mapping[str, Any] | None
    """What is asked at each size, with places to be filled; None: a script says it."""
    accept_script: str | None
    accept_timeout_s: float
    """Of one phase."""

    known: dict[str, Any] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )
    """What was worked out of all this before; no part of it."""
    readings: Readings = field(
        init=False, compare=False, repr=False, default_factory=Readings
    )
    """What is kept of how its small files read; no part of it."""

    def __init__(self, **values: Any) -> None:
        # by hand: to compile one of seventy parameters takes as long as forty checks
        rest = {"known": {}, "readings": Readings()}
        object.__setattr__(self, "__dict__", {**rest, **values})

    def __hash__(self) -> int:
        return hash(self.file)

    # made when they are asked for: a check of a thousand providers asks for none

    @cached_property
    def path(self) -> Path:
        """Give the file as a path."""
        return Path(self.file)

    @cached_property
    def directory(self) -> Path:
        """Give the directory as a path."""
        return Path(self.folder)

    @property
    def weights_file(self) -> tuple[WeightFile, ...]:
        """Give `weights_files` by the name that its table has in the file."""
        return self.weights_files

    def limited(self, limit_s: float) -> "ProviderManifest":
        """Give the same, with a worker that is itself kept to `limit_s` seconds.

        Its start and each request may take that long at most, also where whoever set
        the limit was killed.
        """
        limits = {
            "runtime_start_timeout_s": min(self.runtime_start_timeout_s, limit_s),
            "runtime_request_timeout_s": min(self.runtime_request_timeout_s, limit_s),
        }
        # what was worked out before, and where it is kept, is of the other
        fresh = {"known": {}, "readings": Readings()}
        return ProviderManifest(**{**vars(self), **limits, **fresh})

    @property
    def named(self) -> str:
        """Give the words by which a command typed here names this provider again.

        Its slug in the tree in force; else its directory as a shell takes it, with the
        tree that its lock and kit are from where that is not the one in force.
        """
        from shlex import quote

        try:
            here = os.path.realpath(places.find_tree())
        except UsageError:
            here = ""
        own = File(self.file).tree
        if own is not None and os.path.realpath(own) == here:
            return self.slug
        path = quote(self.folder)
        named = self.env_lock or self.kit_name
        if own is not None or not named or os.path.realpath(self.lock_tree) == here:
            return path
        return f"{path} --tree {quote(str(self.lock_tree))}"

    def env_command(self) -> str:
        """Give the command that makes its environment, as it is typed here."""
        named = self.named
        return f"doit env:{named}" if named == self.slug else f"tu remote env {named}"

    def resolve(self, rel: str) -> Path:
        """Give the absolute path of what the manifest names."""
        return Path(self.within(rel))

    def within(self, rel: str) -> str:
        """Give the same as text, for whoever asks it of many providers."""
        probe = f"/{rel}/"
        if "~" not in rel and "/." not in probe:
            # nothing to expand and nothing to go up: the usual name of a file
            if "//" not in probe:
                return f"{self.folder}/{rel}"
            if rel[:1] == "/" and "//" not in f"{rel}/":
                return rel
        expanded = os.path.expanduser(rel)  # noqa: PTH111 - pathlib raises on ~nobody
        return posixpath.normpath(posixpath.join(self.folder, expanded))

    def python_variable(self) -> str | None:
        """Name the environment variable that holds the interpreter's path, if one does."""
        found = VARIABLE.fullmatch(self.env_python or "")
        return (found[1] or found[2]) if found else None

    def python_executable(self) -> Path | None:
        """Give the model's interpreter, not resolved: a venv's python is a symlink.

        None: its variable is unset and `doit env:` has made no environment, or the model
        lives in a container.
        """
        file = self.python_file()
        return None if file is None else Path(file)

    def python_file(self) -> str | None:
        """Give the same as text, for whoever asks it of many providers."""
        if self.env_kind != "venv":
            return None
        declared = expanded(self.env_python) if self.env_python else None
        if declared is not None:
            return self.within(declared)
        made = self.made_environment()
        python = f"{made}/bin/python" if made else None
        return python if python is not None and os.access(python, os.F_OK) else None

    def made_environment(self) -> Path | None:
        """Give the directory that `doit env:` uses; None: no lock, or it is not there."""
        path = self.lock_file()
        if path is None or self.env_lock is None:
            return None
        try:
            digest = self.readings.digest(path)
        except OSError:
            return None
        return places.env_dir(self.env_lock, digest)

    def site_packages(self) -> Path | None:
        """Give the interpreter's site-packages, found without starting it; None: unusual."""
        python = self.python_executable()
        if python is None:
            return None
        return interpreters.site_packages(python, self.readings)

    def weights_root(self) -> Path | None:
        """Give the directory of the weights.

        None: it depends on an interpreter or a variable that is not there.
        """
        root = self._weights_root()
        return None if root is None else Path(root)

    def _weights_root(self) -> str | None:
        named = self.weights_root_env and os.environ.get(self.weights_root_env)
        if named:
            return self.within(named)
        default = self.weights_root_default and expanded(self.weights_root_default)
        if not default:
            return None
        if "{env}" in default:
            site = self.site_packages()
            if site is None:
                return None
            default = default.replace("{env}", str(site))
        return self.within(default)

    def weight_paths(self) -> list[tuple[WeightFile, Path]]:
        """Pair each declared file with its path; empty where the root is not known."""
        root = self.weights_root()
        return [] if root is None else [(f, root / f.name) for f in self.weights_files]

    def wanted_weights(self) -> "list[digests.Wanted]":
        """Give the declared files as `digests` takes them."""
        from remote_resident.digests import Wanted

        root = self._weights_root()
        if root is None:
            return []
        base = root.rstrip("/")
        return [
            Wanted(
                file.name,
                below(base, file.name),
                file.size,
                file.sha256,
                file.unpacked_dir and below(base, file.unpacked_dir),
            )
            for file in self.weights_files
        ]

    def weights_memo(self) -> "digests.DigestMemo":
        """Open the memo of this provider's digests."""
        from remote_resident.digests import DigestMemo

        return DigestMemo(places.memo_file(self.slug, self.tree))

    def check_weights(
        self, deep: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> "digests.Verification":
        """Hold every declared file against its pin; `deep` reads every byte."""
        from remote_resident import digests

        if self.weights_files and self._weights_root() is None:
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
        unset = [name for name in variables(default) if not os.environ.get(name)]
        if self.weights_root_env:
            unset.insert(0, self.weights_root_env)
        why = [f"${name} is unset" for name in unset]
        next_ = f"export {unset[0]}=DIRECTORY" if unset else None
        if "{env}" in default and self.site_packages() is None:
            why.append("the model's environment is not there")
            next_ = self.env_command() if self.env_lock else next_
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
        file = self.lock_file()
        return None if file is None else Path(file)

    def lock_file(self) -> str | None:
        """Give the same as text, for whoever asks it of many providers."""
        if self.env_lock is None:
            return None
        return f"{self.lock_tree}/locks/{self.env_lock}.lock"

    def kit_file(self) -> Path | None:
        """Give the path of the kit's file; None: none is declared."""
        if self.kit_name is None:
            return None
        return self.lock_tree / "kits" / f"{self.kit_name}.toml"

    def warnings(self) -> list[str]:
        """List what is allowed and still a risk, each as a sentence."""
        if self.env_image is None or "@sha256:" in self.env_image:
            return []
        from remote_resident.manifest_rules import quoted

        shown = File(str(self.path)).shown
        return [
            f"{shown}: env.image: {quoted(self.env_image)} without a digest: "
            "what it names can change"
        ]

    def missing_files(self) -> list[Problem]:
        """List the named files that are not there, or that lead out of the tree."""
        problems: list[Problem] = []
        bounds = (str(self.tree), str(self.lock_tree))
        for key, path, reason in self._named_files():
            st = file_inside(path, bounds)
            if st is None:
                from remote_resident.manifest_file import missing

                problems += missing(File(self.file), key, Path(path), bounds, reason)
            else:
                self.readings.saw(path, st)
        return problems

    def _named_files(self) -> Iterator[tuple[str, str, str]]:
        """Yield the key, the path and the reason where it is missing."""
        if self.runtime_worker is not None:
            yield "runtime.worker", self.within(self.runtime_worker), "file_missing"
        if self.smoke_script is not None:
            yield "smoke.script", self.within(self.smoke_script), "file_missing"
        if self.accept_script is not None:
            yield "accept.script", self.within(self.accept_script), "file_missing"
        if (lock := self.lock_file()) is not None:
            yield "env.lock", lock, "lock_missing"
        if self.kit_name is not None:
            yield (
                "kit.name",
                f"{self.lock_tree}/kits/{self.kit_name}.toml",
                "kit_invalid",
            )


def load(
    path: Path | str, tree: Path | None = None, *, afresh: bool = False
) -> ProviderManifest:
    """Read and validate one provider.toml.

    `tree`: whose locks and kits it names; None: the tree that the file stands in, else
    the one in force. A file that was read before is not parsed again, but `afresh`.
    Raises ManifestError with every problem of the file.
    """
    # a symlink is not followed: the slug is the name of the directory that was named
    file = File(os.path.abspath(path))  # noqa: PTH100
    own = _directory(file.tree) if file.tree else None
    if tree is None:
        lock_tree = own or places.find_tree()
    else:
        lock_tree = _directory(os.path.abspath(tree))  # noqa: PTH100
    kept = Readings() if afresh else readings.of(file.slug, file.bound)
    values = _declared(file, kept)
    values["file"], values["folder"] = file.path, file.directory
    values["tree"] = own or Path(file.directory)
    values["lock_tree"] = lock_tree
    return made(ProviderManifest, values)


def _declared(file: File, kept: Readings) -> dict[str, Any]:
    """Give what a file declares, with what was worked out of it before as `known`."""
    found = kept.recall(file.path, "manifest")
    if found is None:
        from remote_resident import manifest_file

        values, identity = manifest_file.read(file)
        known: dict[str, Any] = {}
        if kept.path is not None:
            kept.note(
                file.path, identity, "manifest", (plain(values, _DECLARED), known)
            )
    else:
        values, known = unplain(found[0], _DECLARED), found[1]
        identity = kept.identity(file.path)
    if type(values["smoke_request"]) is str:
        values["smoke_request"], known = _request(values, file, identity, kept)
    values["known"], values["readings"] = known, kept
    return values


def _request(
    values: dict[str, Any], file: File, of: "Identity | None", kept: Readings
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Give a request from its own file, and what was worked out of both files before.

    `of` says which manifest it is asked for; None: one that may still change unseen.
    """
    path = file.beside(values["smoke_request"])
    found = None if path is None else kept.recall(path, "request")
    if found is not None and of is not None and found[0] == of:
        return found[1], found[2]
    from remote_resident import manifest_file

    identity = manifest_file.read_request(values, file)
    request: Mapping[str, Any] = values["smoke_request"]
    known: dict[str, Any] = {}
    if path is not None and of is not None and kept.path is not None:
        kept.note(path, identity, "request", (of, request, known))
    return request, known


_PLACED = frozenset("file folder tree lock_tree known readings".split())
_DECLARED = tuple(
    name for name in ProviderManifest.__annotations__ if name not in _PLACED
)
"""What a manifest has from its keys, in the order in which it is kept."""


@lru_cache(maxsize=16)
def _directory(path: str) -> Path:
    """Make a path once for all the providers of a tree."""
    return Path(path)


def catalog(tree: Path | str) -> dict[str, ProviderManifest | ManifestError]:
    """Load every provider of a tree, in slug order; a broken one as its error."""
    found: dict[str, ProviderManifest | ManifestError] = {}
    tree = Path(tree)
    for slug in slugs(tree):
        try:
            found[slug] = load(tree / "manifests" / slug / FILE, tree)
        except ManifestError as error:
            found[slug] = error
    return found


def find(tree: Path | str, name: str) -> ProviderManifest:
    """Load a provider by its slug, or by the path of its directory.

    Raises UsageError with near matches where nothing is called that, ManifestError where
    it is not well formed.
    """
    tree = Path(tree)
    inside = tree / "manifests" / name / FILE
    if name and "/" not in name and name not in (".", "..") and os.path.lexists(inside):
        return load(inside, tree)
    file = file_at(name)
    if name and os.path.isfile(file):  # noqa: PTH113 - pathlib raises on EACCES
        own = File(file).tree
        return load(file, Path(own) if own else tree)
    if "/" in name or name in (".", ".."):
        raise UsageError(f"{name}: no {FILE} there", next="tu remote list")
    known = slugs(tree)
    raise UsageError(
        f"no provider {name!r} among the {len(known)} of {tree}{nearest(name, known)}",
        next="tu remote list",
    )


def effective_digest(manifest: ProviderManifest) -> str:
    """Give the SHA-256, 64 hex, of all that the manifest makes a host do.

    Comments, order, places and what the author claims of it (description, status,
    verified_on) are not part of it.
    """
    digest = manifest.known.get("effective")
    if digest is None:
        content = {k: v for k, v in vars(manifest).items() if k not in _NOT_DIGESTED}
        digest = manifest.known["effective"] = _effective(content)
        manifest.readings.learn()
    assert isinstance(digest, str)
    return digest


def _effective(content: Mapping[str, Any]) -> str:
    import json

    canonical = json.dumps(content, sort_keys=True, default=vars)
    return readings.sha256(canonical.encode())
