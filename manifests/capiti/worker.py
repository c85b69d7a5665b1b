"""Say of protein sequences whether they keep the function of one of capiti's targets.

The package has public functions for every part of an answer but two: opening the
network, and picking the target that the gate is asked about, which stand inside its
command line. Those two are done here with ONNX Runtime, on the pinned files; everything
else is the package's own.
"""

import json
from pathlib import Path

MODEL = "capiti/_model/ab9"
CUTOFF = 0.5


class BadRequest(ValueError):
    """The request is not one that the model can answer."""

    reason = "bad_request"


def build(config):
    """Open the network of the reference set `ab9`, on one thread."""
    import numpy
    import onnxruntime
    from capiti import cli, seq

    files = Path(config.weights_root) / MODEL
    options = onnxruntime.SessionOptions()
    # a pool of threads would run on into the cores of whoever else is held here
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(files / "capiti.onnx"), options, providers=["CPUExecutionProvider"]
    )
    return {
        "session": session,
        "meta": json.loads((files / "capiti.meta.json").read_text()),
        "gate": json.loads((files / "gate.json").read_text()),
        "capiti": cli,
        "translate": seq.translate,
        "numpy": numpy,
    }


def warm_up(model):
    """Answer once, so that the first caller does not pay for the first run."""
    _probabilities(model, "M")


def ready(model):
    """Name the targets that an answer can have."""
    return {"targets": _targets(model)}


def predict(model, request):
    """Classify each of `sequences`, a table of name to sequence, or of a `fasta` file.

    `kind` is "protein" (the default) or "coding": nucleotides, translated in their first
    frame up to the first stop. `cutoff` (0.5) parts the two decisions.
    """
    cutoff = _cutoff(request)
    proteins = _proteins(model, request)
    return {
        "sequences": {
            name: _answer(model, protein, cutoff) for name, protein in proteins.items()
        },
        "cutoff": cutoff,
    }


def _probabilities(model, protein):
    """Give one probability per label.

    One protein at a time: neither an answer nor the memory it takes may depend on what
    else is asked in the same request.
    """
    meta = model["meta"]
    vocabulary = meta["vocab"]
    tokens = model["capiti"].encode(
        protein, vocabulary, vocabulary["pad"], meta["max_len"]
    )
    batch = model["numpy"].asarray([tokens], dtype=model["numpy"].int64)
    session = model["session"]
    logits = session.run(None, {session.get_inputs()[0].name: batch})[0]
    return model["capiti"].softmax(logits)[0]


def _answer(model, protein, cutoff):
    """Give what is known of one protein.

    `target` is the likeliest target, also where "in no set" is likelier still. The gate
    knows the catalytic positions of a target for proteins of that target's length; where
    one is mutated the function counts as lost, whatever the network says.
    """
    meta = model["meta"]
    none = meta["none_idx"]
    row = _probabilities(model, protein)
    best = max((i for i in range(len(row)) if i != none), key=lambda i: row[i])
    target = meta["labels"][best]
    network = float(1.0 - row[none])
    broken = model["capiti"].apply_gate(protein, target, model["gate"])
    p_in_set = 0.0 if broken else network
    return {
        "p_in_set": p_in_set,
        "p_network": network,
        "target": target,
        "gate": "active site broken" if broken else "no objection",
        "decision": "in set" if p_in_set >= cutoff else "not in set",
        "residues": len(protein),
        "residues_read": min(len(protein), meta["max_len"]),
    }


def _targets(model):
    meta = model["meta"]
    none = meta["none_idx"]
    return [label for i, label in enumerate(meta["labels"]) if i != none]


def _cutoff(request):
    cutoff = request.get("cutoff", CUTOFF)
    number = isinstance(cutoff, (int, float)) and not isinstance(cutoff, bool)
    if not number or not 0 <= cutoff <= 1:
        raise BadRequest(f"cutoff: {cutoff!r} found, a number from 0 to 1 wanted")
    return float(cutoff)


def _proteins(model, request):
    kind = request.get("kind", "protein")
    if kind not in ("protein", "coding"):
        raise BadRequest(f"kind: {kind!r} found, 'protein' or 'coding' wanted")
    sequences = {
        name: _letters(name, text) for name, text in _named(model, request).items()
    }
    if kind == "coding":
        sequences = {n: model["translate"](text) for n, text in sequences.items()}
    for name, protein in sequences.items():
        if not protein:
            raise BadRequest(f"sequences.{name}: no residue found")
        if kind == "protein" and len(protein) >= 30 and set(protein) <= set("ACGTUN"):
            raise BadRequest(
                f"sequences.{name}: nucleotides found, a protein or kind = 'coding' wanted"
            )
    return sequences


def _named(model, request):
    sequences = request.get("sequences")
    if ("fasta" in request) == (sequences is not None):
        raise BadRequest("one of sequences and fasta wanted")
    if "fasta" in request:
        sequences = _read(model, request["fasta"])
    if not isinstance(sequences, dict) or not sequences:
        found = type(sequences).__name__ if sequences else "nothing"
        raise BadRequest(
            f"sequences: {found} found, a table of name to sequence wanted"
        )
    return sequences


def _read(model, path):
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise BadRequest(f"fasta: {path!r} found, an absolute path wanted")
    records = list(model["capiti"].read_fasta(path))
    named = dict(records)
    if not records or len(named) < len(records):
        raise BadRequest(
            f"fasta: {path}: {len(records)} records under {len(named)} names found, "
            "a name for each wanted"
        )
    return named


def _letters(name, text):
    """Give a sequence in capitals without blanks and without the stop at its end."""
    if not isinstance(text, str):
        raise BadRequest(
            f"sequences.{name}: {type(text).__name__} found, letters wanted"
        )
    letters = "".join(text.split()).upper()
    letters = letters[:-1] if letters.endswith("*") else letters
    strange = sorted({c for c in letters if not ("A" <= c <= "Z")})
    if strange:
        found = " ".join(map(repr, strange))
        raise BadRequest(f"sequences.{name}: {found} found, letters wanted")
    return letters
