"""Hold Chai-1: predict the structure of a complex from its sequences."""

import math
import os
import tempfile
from pathlib import Path

KINDS = ("protein", "ligand", "rna", "dna", "glycan")
CHOICES = ("num_trunk_recycles", "num_diffn_timesteps", "num_diffn_samples")


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


class Held:
    """The package's entry point, and where the requests' relative paths begin."""

    def __init__(self, run_inference, manifest_dir):
        self.run_inference = run_inference
        self.manifest_dir = Path(manifest_dir)


def build(config):
    """Import the package with its downloads where the pinned files are.

    It loads its parts itself at the first request; the language model stays in memory.
    """
    # read once, when the package is imported
    os.environ["CHAI_DOWNLOADS_DIR"] = str(config.weights_root)
    from chai_lab.chai1 import run_inference

    return Held(run_inference, config.manifest_dir)


def predict(model, request):
    """Fold `entities`, a list of tables with kind, name and sequence.

    Optional: seed (1), num_trunk_recycles, num_diffn_timesteps, num_diffn_samples (the
    package's own defaults), reference (a PDB file of one chain to compare with, relative
    ones beside the manifest). The structures are written to `output_dir`, which must be
    empty; no server is asked for alignments or templates. Reply: the candidates with their
    scores, the name of the best, and its pLDDT (0 to 1) for each token.
    """
    fasta = _fasta(request)
    directory = _empty_directory(request)
    choices = {name: int(request[name]) for name in CHOICES if name in request}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "entities.fasta"
        path.write_text(fasta)
        found = model.run_inference(
            path,
            output_dir=directory,
            seed=int(request.get("seed", 1)),
            # of the admitted devices the worker sees one
            device="cuda:0",
            use_msa_server=False,
            use_templates_server=False,
            **choices,
        )
    return _reply(model, request, found.sorted())


def _reply(model, request, found):
    best = found.cif_paths[0]
    atoms = _c_alphas(best)
    reply = {
        "best": best.name,
        "candidates": [
            {"file": path.name, "aggregate_score": float(data.aggregate_score.item())}
            for path, data in zip(found.cif_paths, found.ranking_data, strict=True)
        ],
        "residues": len(atoms),
        "plddt": found.plddt[0].tolist(),
    }
    if "reference" in request:
        native = _c_alphas(model.manifest_dir / request["reference"])
        reply["difference_from_reference"] = _difference(atoms, native)
    return reply


def _fasta(request):
    entities = request.get("entities")
    if not isinstance(entities, list) or not entities:
        raise Refused("entities: a list of tables with kind, name, sequence wanted")
    records = []
    for index, entity in enumerate(entities):
        kind, name = entity.get("kind", "protein"), entity.get("name", f"e{index}")
        if kind not in KINDS or not entity.get("sequence"):
            raise Refused(
                f"entities[{index}]: kind {kind!r}: a sequence of one of "
                f"{', '.join(KINDS)} wanted"
            )
        if set("|=\n>") & set(name):
            raise Refused(f"entities[{index}].name: {name!r}: a plain name wanted")
        records.append(f">{kind}|name={name}\n{entity['sequence']}\n")
    return "".join(records)


def _empty_directory(request):
    directory = request.get("output_dir")
    if not directory:
        raise Refused("output_dir: missing, a directory for the structures wanted")
    path = Path(directory)
    if path.exists() and any(path.iterdir()):
        raise Refused(f"output_dir: {directory} has files in it, an empty one wanted")
    return path


def _c_alphas(path):
    """Give the positions of the C-alpha atoms of a structure's first model."""
    import gemmi

    if not path.is_file():
        raise Refused(f"reference {path}: no such file")
    return [
        atom.pos.tolist()
        for chain in gemmi.read_structure(str(path))[0]
        for residue in chain
        for atom in residue
        if atom.name == "CA" and atom.element == gemmi.Element("C")
    ]


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
