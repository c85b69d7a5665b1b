"""Hold ESM-IF1: design sequences for a backbone, and score the native one."""

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

MODEL = "esm_if1_gvp4_t16_142M_UR50"


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


class Held:
    """The network in memory, and where the requests' relative paths begin."""

    def __init__(self, net, alphabet, manifest_dir):
        self.net = net
        self.alphabet = alphabet
        self.manifest_dir = Path(manifest_dir)


def build(config):
    """Load the checkpoint that the manifest pins."""
    import esm.pretrained
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    # the checkpoint keeps its settings in one; anything else in it would be code
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(
            Path(config.weights_root) / f"{MODEL}.pt",
            map_location="cpu",
            weights_only=True,
        )
    net, alphabet = esm.pretrained.load_model_and_alphabet_core(MODEL, checkpoint)
    return Held(net.eval(), alphabet, config.manifest_dir)


def predict(model, request):
    """Redesign one chain of one structure.

    Request: pdb (path, relative ones beside the manifest) or pdb_text; chain ("A"); count
    (1), temperature (0.1), seed (1). Reply: the native sequence and the designs, each with
    its score (mean negative log-likelihood per residue, nats) and the designs with the
    share of native residues they have.
    """
    import torch
    from esm.inverse_folding import util

    count, temperature = _sampling(request)
    coords, native = _read_structure(model, request)
    torch.manual_seed(int(request.get("seed", 1)))

    def score(sequence):
        full, _ = util.score_sequence(model.net, model.alphabet, coords, sequence)
        return -float(full)

    designs = []
    with torch.no_grad():
        native_score = score(native)
        for _ in range(count):
            sequence = model.net.sample(coords, temperature=temperature)
            same = sum(a == b for a, b in zip(sequence, native, strict=True))
            designs.append(
                {
                    "sequence": sequence,
                    "score": score(sequence),
                    "recovery": same / len(native),
                }
            )
    return {
        "length": len(native),
        "native": {"sequence": native, "score": native_score},
        "designs": designs,
    }


def _sampling(request):
    count = int(request.get("count", 1))
    temperature = float(request.get("temperature", 0.1))
    if not 0 < temperature <= 10 or not 1 <= count <= 1000:
        raise Refused(
            f"temperature {temperature} and count {count}: "
            "above 0 up to 10, and 1 to 1000, wanted"
        )
    return count, temperature


def _read_structure(model, request):
    """Give the coordinates of N, CA and C, residues x 3 x 3, and the sequence."""
    from esm.inverse_folding import util

    chain = request.get("chain", "A")
    with ExitStack() as stack:
        if "pdb_text" in request:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = Path(folder) / "structure.pdb"
            path.write_text(request["pdb_text"])
        elif "pdb" in request:
            path = model.manifest_dir / request["pdb"]
            if not path.is_file():
                raise Refused(f"pdb {request['pdb']}: no such file")
        else:
            raise Refused("pdb or pdb_text wanted, neither given")
        return util.load_coords(str(path), chain)
