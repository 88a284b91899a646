"""Similarity metrics of OpenAI's text_similarity graders.

OpenAI names the metrics but not their parameters. The definitions here are those of the libraries that its guide names
or implies: rapidfuzz's ratio, NLTK's sentence BLEU and GLEU and METEOR, F1 of rouge-score. The import reports scores of
past runs that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spanwise.evaluators.builtin.text import bleu, fuzzy, rouge
from spanwise.evaluators.builtin.text_segmentation import get_tokenizer
from spanwise.evaluators.interface import Skip
from spanwise.evaluators.models import Embedder, embedder

COSINE = "cosine"
COSINE_MODEL = "text-embedding-3-large"
COSINE_URL = "https://api.openai.com/v1"


def compute_gleu(text: str, reference: str) -> float:
    """Return Google's BLEU, as NLTK computes it, of NLTK's Treebank words."""
    from nltk.translate.gleu_score import sentence_gleu

    tokens_of = get_tokenizer("nltk")
    return float(sentence_gleu([tokens_of(reference)], tokens_of(text)))


def compute_meteor(text: str, reference: str) -> float:
    """Return METEOR, as NLTK computes it. Raises `Skip` without WordNet, whose synonyms it needs."""
    from nltk.translate.meteor_score import single_meteor_score

    tokens_of = get_tokenizer("nltk")
    try:
        return float(single_meteor_score(tokens_of(reference), tokens_of(text)))
    except LookupError:
        raise Skip("METEOR needs WordNet: python -m nltk.downloader wordnet") from None


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy,
    "bleu": bleu,
    "gleu": compute_gleu,
    "meteor": compute_meteor,
    **{f"rouge_{order}": partial(rouge, kind=str(order)) for order in range(1, 6)},
    "rouge_l": partial(rouge, kind="L"),
}


def make_cosine(given: Any) -> Callable[[str, str], float]:
    """Return the cosine similarity by an embedder. None is OpenAI's model, at its endpoint."""
    model: Embedder = embedder(given) if given is not None else embedder(COSINE_MODEL, base_url=COSINE_URL)

    def compute_cosine(text: str, reference: str) -> float:
        import numpy

        left, right = (numpy.asarray(vector, dtype=float) for vector in model.embed([text, reference]))
        norm = float(numpy.linalg.norm(left) * numpy.linalg.norm(right))
        return float(left @ right) / norm if norm else 0.0

    return compute_cosine
