"""Run Boltz-2 once: predict the structure of a complex from its sequences."""

import json
import math
import tempfile
from pathlib import Path

KINDS = ("protein", "dna", "rna", "ccd", "smiles")
CHOICES = ("recycling_steps", "sampling_steps", "diffusion_samples")
NAME = "complex"


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


class Held:
    """The package's command, where its files are, and where relative paths begin."""

    def __init__(self, command, cache, manifest_dir):
        self.command = command
        self.cache = str(cache)
        self.manifest_dir = Path(manifest_dir)


def build(config):
    """Import the package's command; it loads the model itself when it is run."""
    from boltz.main import cli

    return Held(cli, config.weights_root, config.manifest_dir)


def predict(model, request):
    """Fold `entities`, a list of tables with chain, kind and sequence.

    A protein may name its alignment, an absolute path of an A3M file, as `msa`; without
    one it is folded from its sequence alone: no server is asked. Optional: seed (1),
    recycling_steps, sampling_steps, diffusion_samples (the package's own defaults),
    reference (a PDB file of one chain to compare with, relative ones beside the manifest).
    Everything that the command writes is below `output_dir`. Reply: the structures, best
    first, each with the confidences that the package gives.
    """
    fasta = _fasta(request)
    if not request.get("output_dir"):
        raise Refused("output_dir: missing, a directory for the structures wanted")
    out = Path(request["output_dir"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{NAME}.fasta"
        path.write_text(fasta)
        # standalone: click would end this process with the command's exit status
        model.command(_arguments(model, request, path, out), standalone_mode=False)
    return _reply(model, request, out / f"boltz_results_{NAME}/predictions/{NAME}")


def _arguments(model, request, path, out):
    chosen = [
        word
        for name in CHOICES
        if name in request
        for word in (f"--{name}", str(int(request[name])))
    ]
    return [
        *("predict", str(path), "--out_dir", str(out), "--cache", model.cache),
        *("--accelerator", "gpu", "--devices", "1", "--output_format", "pdb"),
        # no processes beside the one that was admitted
        *("--num_workers", "0", "--preprocessing-threads", "1"),
        *("--seed", str(int(request.get("seed", 1))), "--override", *chosen),
    ]


def _reply(model, request, predictions):
    paths = sorted(predictions.glob(f"{NAME}_model_*.pdb"), key=_rank)
    if not paths:
        raise RuntimeError(f"{predictions}: no structure found, one wanted")
    atoms = _c_alphas(paths[0])
    reply = {
        "structures": [
            {"file": path.name, "confidence": _confidence(path)} for path in paths
        ],
        "residues": len(atoms),
    }
    if "reference" in request:
        native = _c_alphas(model.manifest_dir / request["reference"])
        reply["difference_from_reference"] = _difference(atoms, native)
    return reply


def _rank(path):
    return int(path.stem.rpartition("_")[2])


def _confidence(path):
    return json.loads(path.with_name(f"confidence_{path.stem}.json").read_text())


def _fasta(request):
    entities = request.get("entities")
    if not isinstance(entities, list) or not entities:
        raise Refused("entities: a list of tables with chain, kind, sequence wanted")
    records = []
    for index, entity in enumerate(entities):
        kind, chain = entity.get("kind", "protein"), entity.get("chain")
        if kind not in KINDS or not entity.get("sequence") or not chain:
            raise Refused(
                f"entities[{index}]: kind {kind!r}, chain {chain!r}: a chain and a "
                f"sequence of one of {', '.join(KINDS)} wanted"
            )
        alignment = f"|{entity.get('msa', 'empty')}" if kind == "protein" else ""
        records.append(f">{chain}|{kind}{alignment}\n{entity['sequence']}\n")
    return "".join(records)


def _c_alphas(path):
    """Give the positions of the C-alpha atoms of a PDB file's first model."""
    if not path.is_file():
        raise Refused(f"reference {path}: no such file")
    positions = []
    for line in path.read_text().splitlines():
        if line.startswith("ENDMDL"):
            break
        if line.startswith("ATOM") and line[12:16] == " CA ":
            positions.append([float(line[at : at + 8]) for at in (30, 38, 46)])
    return positions


def _difference(ours, native):
    """Compare the distances within two structures, in Angstrom: no superposition."""
    if len(ours) != len(native):
        raise Refused(f"reference: {len(native)} residues, {len(ours)} wanted")
    pairs = [(i, j) for i in range(len(ours)) for j in range(i)]
    squares = (
        (math.dist(ours[i], ours[j]) - math.dist(native[i], native[j])) ** 2
        for i, j in pairs
    )
    return math.sqrt(sum(squares) / max(len(pairs), 1))
