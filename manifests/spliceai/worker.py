"""Hold SpliceAI's five networks: how likely each base of a transcript is a splice site."""

import os
from pathlib import Path

MODELS = "spliceai/models/spliceai{}.h5"
NETWORKS = range(1, 6)
CONTEXT = 10_000
"""Bases that the networks look at around one; half of them on each side."""
BASES = "ACGT"
LONGEST = 200_000


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


class Held:
    """The five networks in memory."""

    def __init__(self, networks):
        self.networks = networks

    def scores(self, sequence):
        """Average the networks: one row a base, of none, acceptor and donor."""
        import numpy as np

        shown = np.zeros((1, len(sequence) + CONTEXT, len(BASES)), dtype=np.float32)
        for place, base in enumerate(sequence, start=CONTEXT // 2):
            if base in BASES:
                shown[0, place, BASES.index(base)] = 1.0
        told = [network(shown, training=False).numpy()[0] for network in self.networks]
        return np.mean(told, axis=0)


def build(config):
    """Load the checkpoints that the manifest pins, in order."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow

    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    root = Path(config.weights_root)
    paths = [root / MODELS.format(number) for number in NETWORKS]
    return Held([keras.models.load_model(path, compile=False) for path in paths])


def warm_up(model):
    """Answer once before the first caller: the first pass costs more than the others."""
    model.scores("ACGT" * 25)


def predict(model, request):
    """Score a transcript, or what a substitution does to its splice sites.

    Request: sequence (A, C, G, T, N; up to 200,000 bases, in the direction of
    transcription); threshold (0.5); variant ({"position": 1-based, "alternate": base});
    positions (1-based). Reply: donors and acceptors above the threshold as {"position",
    "probability"}, in order; with a variant also the same of the changed sequence, as
    variant; with positions their probabilities, as at, of the variant where there is one.
    """
    sequence = read_sequence(request)
    threshold = float(request.get("threshold", 0.5))
    scores = model.scores(sequence)
    reply = {"length": len(sequence), **sites(scores, threshold)}
    if "variant" in request:
        scores = model.scores(substituted(sequence, request["variant"]))
        reply["variant"] = sites(scores, threshold)
    if "positions" in request:
        reply["at"] = looked_at(scores, [int(one) for one in request["positions"]])
    return reply


def read_sequence(request):
    sequence = str(request.get("sequence", "")).upper()
    other = sorted(set(sequence) - set(BASES + "N"))
    if not 1 <= len(sequence) <= LONGEST or other:
        found = f"{len(sequence)} bases" + (f", {other} among them" if other else "")
        raise Refused(f"sequence: {found} found, 1 to {LONGEST} of ACGTN wanted")
    return sequence


def substituted(sequence, variant):
    position, alternate = int(variant["position"]), str(variant["alternate"]).upper()
    if not 1 <= position <= len(sequence) or alternate not in BASES:
        raise Refused(
            f"variant: {alternate} at {position} found, one of {BASES} at 1 to "
            f"{len(sequence)} wanted"
        )
    return sequence[: position - 1] + alternate + sequence[position:]


def sites(scores, threshold):
    return {
        name: [
            {"position": place, "probability": float(row[column])}
            for place, row in enumerate(scores, start=1)
            if row[column] > threshold
        ]
        for name, column in (("acceptors", 1), ("donors", 2))
    }


def looked_at(scores, positions):
    beyond = [one for one in positions if not 1 <= one <= len(scores)]
    if beyond:
        raise Refused(f"positions: {beyond} found, 1 to {len(scores)} wanted")
    return [
        {
            "position": one,
            "acceptor": float(scores[one - 1][1]),
            "donor": float(scores[one - 1][2]),
        }
        for one in positions
    ]
