"""What a provider.toml may hold: every key with its rule and default, and what excludes
what.

A combination is looked at only where all of its keys were well formed, so that one
mistake gives one message.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import pairwise
from posixpath import normpath
from typing import Any, NamedTuple

from remote_resident import manifest_rules as rules
from remote_resident.manifest_parts import Expect, LadderStep, WeightFile, made
from remote_resident.manifest_rules import (
    Fault,
    Key,
    KeyPath,
    Wrong,
    array,
    choice,
    closed,
    full_name,
    mapping,
    quoted,
    show,
)

Values = Mapping[str, Any]
"""Attribute of the manifest -> its value, defaults filled in."""


# tables inside tables


def _weight_files(value: Any) -> tuple[WeightFile, ...]:
    files = _tables(value, _weight_file)
    first: dict[str, int] = {}
    faults = []
    for index, file in enumerate(files):
        # one file under two spellings is one file
        twisted = "./" in file.name or "//" in file.name
        plain = normpath(file.name) if twisted else file.name
        if first.setdefault(plain, index) != index:
            text = f"{quoted(file.name)}, wanted each file once: file[{first[plain]}]"
            faults.append(Fault((index, "name"), f"{text} is the same"))
    if faults:
        raise Wrong(faults)
    return files


def _weight_file(value: Any) -> WeightFile:
    read = _WEIGHT_FILE(value)
    if read["name"] is None:
        raise Wrong([Fault(("name",), "missing, wanted a path below the weights root")])
    if read["sha256"] is None and read["unpinned_reason"] is None:
        text = "missing, wanted 64 hex digits, or unpinned_reason in words"
        raise Wrong([Fault(("sha256",), text)])
    if read["sha256"] is not None and read["unpinned_reason"] is not None:
        text = f"{quoted(read['unpinned_reason'])} beside sha256, wanted one of the two"
        raise Wrong([Fault(("unpinned_reason",), text)])
    return made(WeightFile, read)


def _ladder(value: Any) -> tuple[LadderStep, ...]:
    steps = _tables(value, _ladder_step)
    faults = [
        Fault((i, "size"), f"{step.size}, wanted more than {before.size} before it")
        for i, (before, step) in enumerate(pairwise(steps), 1)
        if step.size <= before.size
    ]
    if faults:
        raise Wrong(faults)
    return steps


def _ladder_step(value: Any) -> LadderStep:
    read = _LADDER_STEP(value)
    absent = [Fault((key,), "missing") for key, found in read.items() if found is None]
    if absent:
        raise Wrong(absent)
    return made(LadderStep, read)


def _tables(value: Any, rule: Callable[[Any], Any]) -> tuple[Any, ...]:
    if type(value) is not list:
        raise Wrong(f"{show(value)}, wanted an array of tables")
    items: tuple[Any, ...] = array(rule)(value)
    return items


def _expects(value: Any) -> tuple[Expect, ...]:
    if type(value) is not dict:
        raise Wrong(f"{show(value)}, wanted a table")
    expects: list[Expect] = []
    faults: list[Fault] = []
    for key, conditions in value.items():
        try:
            rules.key_path(key)
            expects.append(_expect(key, conditions))
        except Wrong as wrong:
            faults += (f._replace(path=(key, *f.path)) for f in wrong.faults)
    if faults:
        raise Wrong(faults)
    return tuple(expects)


def _expect(key: str, value: Any) -> Expect:
    try:
        read = _EXPECT(value)
    except Wrong:
        _refuse_bare_path(key, value)
        raise
    if not value:
        raise Wrong(f"no condition, wanted one of {', '.join(EXPECT)}")
    least, most = read["min"], read["max"]
    if least is not None and most is not None and least > most:
        raise Wrong([Fault(("min",), f"{least!r}, wanted at most max = {most!r}")])
    read["key"] = key
    return made(Expect, read)


def _refuse_bare_path(key: str, value: Any) -> None:
    """Name the likely mistake: a key path without quotes is tables in tables."""
    if type(value) is dict and value and EXPECT.keys().isdisjoint(value):
        inner = next(iter(value))
        if type(value[inner]) is dict:
            path = f"{key}.{inner}"
            raise Wrong(f"a table of tables, wanted the key path in quotes: {path!r}")


def _request(value: Any) -> dict[str, Any] | str:
    if type(value) is dict:
        rules.json_value(value)
        return value
    if type(value) is not str:
        raise Wrong(f"{show(value)}, wanted a table or the path of a JSON file")
    return rules.relative(value)


def _sizes(value: Any) -> tuple[int, ...]:
    sizes: tuple[int, ...] = array(rules.size)(value)
    faults = [
        Fault((i,), f"{size}, wanted more than {before} before it")
        for i, (before, size) in enumerate(pairwise(sizes), 1)
        if size <= before
    ]
    if faults:
        raise Wrong(faults)
    return sizes


def _asked_by_size(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise Wrong(f"{show(value)}, wanted a table")
    rules.json_value(value)
    return value


# every key


WEIGHT_FILE = {
    "name": Key("name", rules.inner_file),
    "size": Key("size", rules.count),
    "sha256": Key("sha256", rules.sha256),
    "unpinned_reason": Key("unpinned_reason", rules.filled),
    "unpacked_dir": Key("unpacked_dir", rules.inner),
}
LADDER_STEP = {
    "size": Key("size", rules.size),
    "peak_gb": Key("peak_gb", rules.positive),
}
EXPECT = {
    "min": Key("min", rules.finite),
    "max": Key("max", rules.finite),
    "equals": Key("equals", rules.json_value),
    "matches": Key("matches", rules.pattern),
    "len": Key("len", rules.count),
}
_WEIGHT_FILE, _LADDER_STEP, _EXPECT = map(closed, (WEIGHT_FILE, LADDER_STEP, EXPECT))
_ENVIRONMENT = mapping(rules.variable, rules.argument)

TOP = {
    "slug": Key("slug", rules.slug),
    "description": Key("description", rules.text, ""),
    "operations": Key("operations", array(rules.operation, distinct=True), ()),
    "status": Key("status", choice("untested", "verified", "broken"), "untested"),
    "verified_on": Key("verified_on", rules.text, ""),
    "outputs": Key("outputs", array(rules.inner), ()),
    "output_keys": Key("output_keys", array(rules.filled), ()),
}


def _table(prefix: str, **keys: tuple[Any, ...]) -> dict[str, Key]:
    return {name: Key(f"{prefix}_{name}", *rest) for name, rest in keys.items()}


TABLES: dict[str, dict[str, Key]] = {
    "runtime": _table(
        "runtime",
        mode=(choice("resident", "subprocess", "jobs"), "resident"),
        mode_reason=(rules.text, ""),
        worker=(rules.relative,),
        entry=(rules.function,),
        launch=(rules.function, "remote_resident.kit_launch:build_command"),
        worker_args=(array(rules.argument), ()),
        idle_timeout_s=(rules.seconds_or_none, 0.0),
        start_timeout_s=(rules.seconds, 900.0),
        request_timeout_s=(rules.seconds, 3600.0),
        orphan_grace_s=(rules.seconds, 120.0),
        max_queue=(rules.count, 16),
        work_root=(rules.filled,),
    ),
    "gpu": _table(
        "gpu",
        policy=(choice("none", "optional", "required"), "none"),
        vram_budget_gb=(rules.not_negative,),
        budget_unmeasured=(rules.boolean, False),
        driver_min=(rules.version,),
        driver_min_reason=(rules.filled,),
        shareable=(rules.boolean, True),
        isolation=(choice("process", "container", "mig"), "process"),
        ladder=(_ladder, ()),
    ),
    "host": _table(
        "host",
        ram_budget_gb=(rules.positive,),
        ram_budget_unmeasured=(rules.boolean, False),
        ladder=(_ladder, ()),
    ),
    "env": _table(
        "env",
        kind=(choice("venv", "docker", "apptainer"), "venv"),
        python=(rules.interpreter,),
        lock=(rules.name,),
        verify=(array(rules.argument), ()),
        pass_env=(array(rules.variable), ()),
        vars=(_ENVIRONMENT, {}),
        image=(rules.filled,),
        sif=(rules.filled,),
        container_python=(rules.filled, "python"),
        network=(rules.filled, "none"),
    ),
    "weights": {
        **_table(
            "weights",
            root_env=(rules.variable,),
            root_default=(rules.root,),
            fetch=(array(rules.no_address), ()),
        ),
        "file": Key("weights_files", _weight_files, ()),
    },
    "kit": _table(
        "kit",
        name=(rules.name,),
        subdir=(rules.inner,),
        package=(rules.module,),
        mode=(rules.filled,),
        levers_off=(array(rules.filled), ()),
        env=(_ENVIRONMENT, {}),
        env_absent=(array(rules.variable_or_prefix), ()),
    ),
    "smoke": _table(
        "smoke",
        request=(_request,),
        script=(rules.relative,),
        timeout_s=(rules.seconds, 1800.0),
        repeat=(rules.count,),
        deterministic=(rules.boolean, False),
        max_growth_mib=(rules.not_negative, 8.0),
        expect=(_expects, ()),
    ),
    "accept": _table(
        "accept",
        sizes=(_sizes, ()),
        request=(_asked_by_size,),
        script=(rules.relative,),
        timeout_s=(rules.seconds, 1800.0),
    ),
}
DEFAULTS: dict[str, Any] = {
    key.attr: key.default for keys in (TOP, *TABLES.values()) for key in keys.values()
}


# several keys together


def _claims(v: Values) -> Iterator[Fault]:
    if v["status"] != "verified":
        return
    if not v["verified_on"]:
        yield Fault(("verified_on",), "missing, wanted by status verified")
    if v["env_kind"] == "venv" and v["env_lock"] is None:
        yield Fault(("env", "lock"), "missing, wanted by status verified")
    for index, file in enumerate(v["weights_files"]):
        if file.sha256 is None:
            where = ("weights", "file", index, "sha256")
            yield Fault(where, "missing, wanted by status verified")


def _mode(v: Values) -> Iterator[Fault]:
    mode = v["runtime_mode"]
    if mode != "resident" and not v["runtime_mode_reason"]:
        yield Fault(("runtime", "mode_reason"), f"missing, wanted by mode {mode}")
    if mode == "jobs":
        if v["runtime_entry"] is None:
            text = 'missing, wanted "module:Class" by mode jobs'
            yield Fault(("runtime", "entry"), text)
        return
    if v["runtime_entry"] is not None:
        text = f"{quoted(v['runtime_entry'])} with mode {mode}, wanted mode jobs"
        yield Fault(("runtime", "entry"), text)
    if v["runtime_worker"] is None:
        text = "missing, wanted the path of the worker script"
        yield Fault(("runtime", "worker"), text)


def _device_budget(v: Values) -> Iterator[Fault]:
    policy, budget = v["gpu_policy"], v["gpu_vram_budget_gb"]
    unmeasured = v["gpu_budget_unmeasured"]
    where = ("gpu", "vram_budget_gb")
    if policy == "none":
        if budget:
            yield Fault(where, f"{budget!r} with policy none, wanted 0 or none")
        if unmeasured:
            text = "true with policy none, wanted a policy that uses a device"
            yield Fault(("gpu", "budget_unmeasured"), text)
        if v["gpu_ladder"]:
            text = "steps with policy none, wanted a policy that uses a device"
            yield Fault(("gpu", "ladder"), text)
    elif unmeasured and budget is not None:
        text = f"true beside vram_budget_gb = {budget!r}, wanted one of the two"
        yield Fault(("gpu", "budget_unmeasured"), text)
    elif not unmeasured and not budget:
        found = "missing" if budget is None else repr(budget)
        text = f"{found} with policy {policy}, wanted GiB or budget_unmeasured = true"
        yield Fault(where, text)


def _driver(v: Values) -> Iterator[Fault]:
    if v["gpu_driver_min"] is not None and v["gpu_driver_min_reason"] is None:
        text = "missing, wanted by driver_min"
        yield Fault(("gpu", "driver_min_reason"), text)


def _host_budget(v: Values) -> Iterator[Fault]:
    budget, unmeasured = v["host_ram_budget_gb"], v["host_ram_budget_unmeasured"]
    if unmeasured and v["gpu_policy"] == "none":
        text = "true with policy none, wanted ram_budget_gb"
        yield Fault(("host", "ram_budget_unmeasured"), text)
    elif unmeasured and budget is not None:
        text = f"true beside ram_budget_gb = {budget!r}, wanted one of the two"
        yield Fault(("host", "ram_budget_unmeasured"), text)
    elif not unmeasured and budget is None:
        ways = "GiB"
        if v["gpu_policy"] != "none":
            ways = "GiB or ram_budget_unmeasured = true"
        yield Fault(("host", "ram_budget_gb"), f"missing, wanted {ways}")


_FOREIGN = {
    "venv": ("image", "sif"),
    "docker": ("python", "sif"),
    "apptainer": ("python", "image"),
}
"""Kind of environment -> the keys that mean nothing with it."""


def _environment(v: Values) -> Iterator[Fault]:
    kind = v["env_kind"]
    for key in _FOREIGN[kind]:
        if (found := v[f"env_{key}"]) is not None:
            yield Fault(("env", key), f"{quoted(found)}, wanted none with kind {kind}")
    if kind == "venv" and v["env_python"] is None and v["env_lock"] is None:
        text = "missing, wanted the model's interpreter, as a path or $NAME"
        yield Fault(("env", "python"), text)
    if kind == "docker" and v["env_image"] is None:
        yield Fault(("env", "image"), "missing, wanted by kind docker")
    if kind == "apptainer" and v["env_sif"] is None:
        yield Fault(("env", "sif"), "missing, wanted by kind apptainer")


def _weights_root(v: Values) -> Iterator[Fault]:
    default = v["weights_root_default"]
    if v["weights_files"] and default is None and v["weights_root_env"] is None:
        text = "missing, wanted root_env or root_default beside [[weights.file]]"
        yield Fault(("weights", "root_default"), text)
    if default is not None and "{env}" in default and v["env_kind"] != "venv":
        text = f"{quoted(default)} with kind {v['env_kind']}, wanted a path on the host"
        yield Fault(("weights", "root_default"), text)


def _kit(v: Values) -> Iterator[Fault]:
    if v["kit_name"] is None:
        given = [key for key, k in TABLES["kit"].items() if v[k.attr] != k.default]
        if given:
            yield Fault(("kit", "name"), "missing, wanted the name of a kits/ file")
        return
    if v["kit_package"] is not None:
        return
    if v["kit_subdir"] is None:
        yield Fault(("kit", "package"), "missing, wanted package or subdir")
        return
    package = kit_package(v["kit_subdir"])
    if not package.isidentifier():
        text = f"missing, wanted: {quoted(package)} by subdir is no Python package"
        yield Fault(("kit", "package"), text)


def kit_package(subdir: str) -> str:
    """Name the package of a kit that names none."""
    return f"{subdir.rstrip('/').rpartition('/')[2]}_opt"


def _smoke(v: Values) -> Iterator[Fault]:
    request, script = v["smoke_request"], v["smoke_script"]
    if request is None and script is None:
        text = "missing, wanted what the smoke asks, or script"
        yield Fault(("smoke", "request"), text)
    if request is not None and script is not None:
        text = f"{quoted(script)} beside request, wanted one of the two"
        yield Fault(("smoke", "script"), text)


def _repeat(v: Values) -> Iterator[Fault]:
    if v["smoke_repeat"] and v["runtime_mode"] == "subprocess":
        text = f"{v['smoke_repeat']} with mode subprocess, wanted 0"
        yield Fault(("smoke", "repeat"), text)


def asked(v: Values) -> Iterator[Fault]:
    """Yield the fault of a smoke that asks for what the provider does not offer."""
    return _asked(v, "smoke")


def _asked(v: Values, table: str) -> Iterator[Fault]:
    request = v[f"{table}_request"]
    if type(request) is not dict or v["runtime_mode"] == "jobs":
        return
    op = request.get("op", "predict")
    if op != "predict" and op not in v["operations"]:
        offered = ", ".join(("predict", *v["operations"]))
        yield Fault((table, "request", "op"), f"{show(op)}, wanted one of {offered}")


def _accept(v: Values) -> Iterator[Fault]:
    request, script = v["accept_request"], v["accept_script"]
    if not v["accept_sizes"]:
        yield Fault(("accept", "sizes"), "missing, wanted the sizes that are asked")
    if request is None and script is None:
        text = "missing, wanted what is asked at each size, or script"
        yield Fault(("accept", "request"), text)
    if request is not None and script is not None:
        text = f"{quoted(script)} beside request, wanted one of the two"
        yield Fault(("accept", "script"), text)
    yield from _asked(v, "accept")


class Combination(NamedTuple):
    """Keys that are looked at together."""

    check: Callable[[Values], Iterable[Fault]]
    needs: frozenset[str]
    """The attributes that it looks at."""
    only_with: str | None = None
    """The table or key without which all is well; None: it is always looked at."""


COMBINATIONS = tuple(
    Combination(check, frozenset(needs.split()), only_with)
    for check, needs, only_with in (
        (
            _claims,
            "status verified_on env_kind env_lock weights_files",
            "status",
        ),
        (
            _mode,
            "runtime_mode runtime_mode_reason runtime_entry runtime_worker",
            None,
        ),
        (
            _device_budget,
            "gpu_policy gpu_vram_budget_gb gpu_budget_unmeasured gpu_ladder",
            "gpu",
        ),
        (_driver, "gpu_driver_min gpu_driver_min_reason", "gpu"),
        (
            _host_budget,
            "gpu_policy host_ram_budget_gb host_ram_budget_unmeasured",
            None,
        ),
        (_environment, "env_kind env_python env_lock env_image env_sif", None),
        (
            _weights_root,
            "env_kind weights_files weights_root_env weights_root_default",
            "weights",
        ),
        (_kit, " ".join(key.attr for key in TABLES["kit"].values()), "kit"),
        (_smoke, "smoke_request smoke_script", None),
        (_repeat, "smoke_repeat runtime_mode", None),
        (asked, "smoke_request operations runtime_mode", None),
        (
            _accept,
            "accept_sizes accept_request accept_script operations runtime_mode",
            "accept",
        ),
    )
)


# reading


def read(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault], set[str]]:
    """Read what the parser gave: values with defaults, faults, attributes in doubt.

    An attribute is in doubt where its key was refused, or was likely meant by an unknown
    one.
    """
    reading = _Reading()
    top = {}
    for name, found in data.items():
        keys = TABLES.get(name)
        if keys is None:
            top[name] = found
        elif type(found) is dict:
            reading.table((name,), found, keys)
        else:
            text = f"{show(found)}, wanted a table"
            reading.faults.append(Fault((name,), text))
            reading.doubtful.update(key.attr for key in keys.values())
    reading.table((), top, TOP)
    values, faults, doubtful = reading.values, reading.faults, reading.doubtful
    for check, needs, only_with in COMBINATIONS:
        if (only_with is None or only_with in data) and doubtful.isdisjoint(needs):
            faults.extend(check(values))
    return values, faults, doubtful


class _Reading:
    def __init__(self) -> None:
        self.values = dict(DEFAULTS)
        self.faults: list[Fault] = []
        self.doubtful: set[str] = set()

    def table(
        self, path: KeyPath, found: Mapping[str, Any], keys: Mapping[str, Key]
    ) -> None:
        values = self.values
        for name, item in found.items():
            key = keys.get(name)
            if key is None:
                self.faults.append(_unknown((*path, name), item))
                self.doubtful |= _meant((*path, name))
                continue
            try:
                values[key.attr] = key.rule(item)
            except Wrong as wrong:
                at = (*path, name)
                self.faults += (f._replace(path=at + f.path) for f in wrong.faults)
                self.doubtful.add(key.attr)


def _meant(path: KeyPath) -> set[str]:
    """Name the attributes that an unknown key may have been meant for."""
    name = str(path[-1])
    if len(path) > 1:
        known = TABLES[str(path[0])]
        return {known[close].attr for close in get_close_matches(name, known, 1, 0.6)}
    for close in get_close_matches(name, TOP | TABLES, 1, 0.6):
        keys = TABLES[close].values() if close in TABLES else (TOP[close],)
        return {key.attr for key in keys}
    return set()


def _unknown(path: KeyPath, found: object) -> Fault:
    """Build the fault of an unknown key; the same name in another table is closest."""
    *_, name = path
    for table, keys in (("", TOP), *TABLES.items()):
        if name in keys:
            closest = full_name((table, name) if table else (name,))
            return Fault(path, f"unknown key, closest known is {closest}")
    known: Mapping[str, Any] = TABLES[str(path[0])] if len(path) > 1 else TOP | TABLES
    return rules.unknown(path, found, known)
