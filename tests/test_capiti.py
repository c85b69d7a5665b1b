"""The real model: what capiti says of proteins whose function is known.

NDM-1 is a beta-lactamase and one of the model's targets (T1); in the H120A mutant one of
its zinc ligands is gone; ubiquitin is no enzyme, and a protein read backwards is none.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_tree import drive

from remote_resident import manifest, places
from remote_resident.manifest import ProviderManifest
from tasks import env, measured, smoke

TREE = Path(__file__).parents[1]
DATA = json.loads((TREE / "manifests/capiti/request.json").read_text())["sequences"]
NDM1 = DATA["ndm1"]
CODON = dict(
    zip(
        "ACDEFGHIKLMNPQRSTVWY",
        "GCT TGT GAT GAA TTT GGT CAT ATT AAA CTT ATG AAT CCT CAA CGT TCT ACT GTT TGG TAT".split(),
        strict=True,
    )
)
ASK = """\
import importlib.util, json, sys, types
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
model = worker.build(types.SimpleNamespace(weights_root=sys.argv[2]))
worker.warm_up(model)
for line in sys.stdin:
    try:
        reply = worker.predict(model, json.loads(line))
    except Exception as exc:
        reply = {"error": str(exc), "reason": getattr(exc, "reason", None)}
    print(json.dumps(reply))
"""


def load() -> ProviderManifest:
    return manifest.load(TREE / "manifests/capiti/provider.toml", TREE)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give an interpreter that has what the lock pins: this host's, or one made now."""
    there = load().python_executable()
    if there is not None:
        yield there
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TU_REMOTE_HOME", str(tmp_path_factory.mktemp("capiti")))
        lines, result = drive(env.make(load()))
        made = load().python_executable()
    if not result.ok or made is None:
        pytest.skip(f"no environment for capiti: {result.detail}: {lines[-3:]}")
    yield made


@pytest.fixture
def provider(python: Path, monkeypatch: pytest.MonkeyPatch) -> ProviderManifest:
    monkeypatch.setenv("CAPITI_PYTHON", str(python))
    monkeypatch.delenv("CAPITI_WEIGHTS", raising=False)
    return load()


def ask(provider: ProviderManifest, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """Put requests to the worker's own functions, in the model's interpreter."""
    asked = subprocess.run(
        [
            str(provider.python_executable()),
            *("-c", ASK),
            str(provider.directory / "worker.py"),
            str(provider.weights_root()),
        ],
        input="".join(json.dumps(request) + "\n" for request in requests),
        env={**os.environ, **provider.env_vars},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [json.loads(line) for line in asked.stdout.splitlines()]


def test_the_smoke_of_the_real_model_passes_and_is_then_present(
    provider: ProviderManifest,
) -> None:
    _, result = drive(smoke.make(provider))

    assert (result.verdict, result.reason, result.lines) == ("done", "", [])
    report = measured.read(measured.report_path(provider))
    assert report is not None
    values = report.answer["values"]
    assert values["sequences.ndm1.p_in_set"] > 0.99
    assert values["sequences.ndm1.target"] == "T1"
    assert values["sequences.ndm1_h120a.p_in_set"] < 0.5
    assert values["sequences.ndm1_h120a.gate"] == "active site broken"
    assert values["sequences.ubiquitin.p_in_set"] < 0.01
    assert values["sequences.ndm1_reversed.p_in_set"] < 0.01
    assert report.answer["identical"] is True
    assert smoke.problems(provider) == []


def test_the_requests_of_the_smoke_are_what_they_are_called() -> None:
    differing = [i for i in range(len(NDM1)) if NDM1[i] != DATA["ndm1_h120a"][i]]
    [place] = differing

    # residue 29 of the precursor stands first; the mutant lacks the first ligand of HxHxD
    assert NDM1[place : place + 5] == "HAHQD"
    assert DATA["ndm1_h120a"][place] == "A"
    assert DATA["ndm1_reversed"] == NDM1[::-1]
    assert len(DATA["ubiquitin"]) == 76


def test_an_answer_does_not_depend_on_what_else_is_asked(
    provider: ProviderManifest,
) -> None:
    together, alone = ask(provider, {"sequences": DATA}, {"sequences": {"ndm1": NDM1}})

    assert together["sequences"]["ndm1"] == alone["sequences"]["ndm1"]


def test_a_gene_a_file_and_a_protein_in_any_case_get_the_same_answer(
    provider: ProviderManifest, tmp_path: Path
) -> None:
    gene = "".join(CODON[residue] for residue in NDM1) + "TAA" + "GCT"
    fasta = tmp_path / "two.fasta"
    fasta.write_text(f">a one\n{NDM1[:100]}\n{NDM1[100:]}\n>b\n{DATA['ubiquitin']}\n")

    plain, coding, file, lower = (
        reply["sequences"]
        for reply in ask(
            provider,
            {"sequences": {"a": NDM1, "b": DATA["ubiquitin"]}},
            {"sequences": {"a": gene}, "kind": "coding"},
            {"fasta": str(fasta)},
            {"sequences": {"a": NDM1.lower() + "*\n"}},
        )
    )
    assert coding["a"] == lower["a"] == plain["a"]
    assert file == plain


def test_the_cutoff_parts_the_decisions(provider: ProviderManifest) -> None:
    usual, strict = ask(
        provider,
        {"sequences": {"a": NDM1}},
        {"sequences": {"a": NDM1}, "cutoff": 1},
    )

    assert usual["sequences"]["a"]["decision"] == "in set"
    assert strict["sequences"]["a"]["decision"] == "not in set"


def test_what_is_read_of_a_long_protein_is_said(provider: ProviderManifest) -> None:
    [reply] = ask(provider, {"sequences": {"a": NDM1 * 5}})

    # the model reads 1200 residues at most
    assert reply["sequences"]["a"]["residues"] == 1210
    assert reply["sequences"]["a"]["residues_read"] == 1200


REFUSED = [
    ({}, "one of sequences and fasta wanted"),
    (
        {"sequences": []},
        "sequences: nothing found, a table of name to sequence wanted",
    ),
    ({"sequences": {"a": ""}}, "sequences.a: no residue found"),
    ({"sequences": {"a": 1}}, "sequences.a: int found, letters wanted"),
    ({"sequences": {"a": "M1-"}}, "sequences.a: '-' '1' found, letters wanted"),
    (
        {"sequences": {"a": "ACGT" * 10}},
        "sequences.a: nucleotides found, a protein or kind = 'coding' wanted",
    ),
    (
        {"sequences": {"a": "M"}, "cutoff": 2},
        "cutoff: 2 found, a number from 0 to 1 wanted",
    ),
    (
        {"sequences": {"a": "M"}, "kind": "dna"},
        "kind: 'dna' found, 'protein' or 'coding' wanted",
    ),
    ({"fasta": "here.fasta"}, "fasta: 'here.fasta' found, an absolute path wanted"),
]


def test_a_request_that_is_none_is_refused_with_what_was_found(
    provider: ProviderManifest,
) -> None:
    replies = ask(provider, *(request for request, _ in REFUSED))

    assert replies == [{"error": text, "reason": "bad_request"} for _, text in REFUSED]


# -- weights that are not what was pinned


ONNX = "capiti/_model/ab9/capiti.onnx"
ONNX_BYTES = 936516
ONNX_SHA256 = "bb92893d0df1c6139ccd74a65b41771a4e97ceb42f79405766ec04068a86a979"


@pytest.fixture
def weights(
    provider: ProviderManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Copy the model's files to where they can be damaged; gives the large one."""
    for file, path in provider.weight_paths():
        copy = tmp_path / "weights" / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setenv("CAPITI_PYTHON", str(provider.python_executable()))
    monkeypatch.setenv("CAPITI_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights" / ONNX


def set_up(cwd: Path) -> tuple[int, dict[str, Any]]:
    """Type the command in another directory, without a terminal."""
    argv = [sys.executable, "-m", "remote_resident", "remote", "--tree", str(TREE)]
    ran = subprocess.run(
        [*argv, "--json", "setup", "capiti"],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    (result,) = json.loads(ran.stdout)["results"]
    return ran.returncode, {step["step"]: step for step in result["steps"]}


def test_a_weight_cut_short_is_refused_with_both_sizes_and_nothing_is_started(
    weights: Path, tmp_path: Path
) -> None:
    os.truncate(weights, 11000)
    before = weights.stat()

    code, steps = set_up(tmp_path)

    assert (code, "smoke" in steps) == (1, False)
    assert (steps["weights"]["verdict"], steps["weights"]["reason"]) == (
        "refused",
        "size",
    )
    named = f"weights: {ONNX}: 11000 bytes, {ONNX_BYTES} wanted"
    assert steps["weights"]["lines"][0] == f"size: {named}"
    assert weights.stat() == before


def test_a_flipped_byte_under_its_old_times_is_refused_with_both_digests(
    weights: Path, tmp_path: Path
) -> None:
    assert set_up(tmp_path)[0] == 0
    before = weights.stat()
    content = bytearray(weights.read_bytes())
    content[500_000] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    (report,) = (places.state_dir() / places.tree_id(TREE)).rglob("capiti.toml")
    certified = report.read_bytes()

    code, steps = set_up(tmp_path)

    assert (code, "smoke" in steps) == (1, False)
    assert steps["weights"]["reason"] == "digest"
    said = "\n".join(steps["weights"]["lines"])
    assert ONNX_SHA256 in said
    assert hashlib.sha256(content).hexdigest() in said
    assert weights.read_bytes() == content
    assert report.read_bytes() == certified
