"""Retrieval: whether the expected documents were found, and how high they were ranked.

Documents are the same by `by`: "id", "content", "doc_uri" or a field of the metadata ("metadata.source"). "auto", the
default, compares ids where both have one and contents where not; a document without an id also matches one whose id is
its text, so that either side may be written as a plain list of ids. An id of 64 hex digits is taken for a SHA-256 that
was made from the content (Haystack's ids are, from content and metadata): where it differs, the contents decide.

A document that is retrieved twice counts once, at its first rank; an empty one matches nothing and keeps its rank.
The functions raise `Skip` where nothing is defined: nothing is expected; or something was retrieved, but an expected
document that was not found has nothing by which it could have been, such as an id where the retrieved documents have
contents alone. A retrieved document that cannot be compared with any expected one counts as one that is not expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, log2
from typing import Any, Literal, TypeAlias

from spanwise.collector.records import Document
from spanwise.evaluators.builtin._matching import Matching, matching, value_of
from spanwise.evaluators.protocol import Metric, builtin, documents_of
from spanwise.evaluators.protocol.standards import OUTCOMES, VALID

Mode = Literal["single_hit", "multi_hit"]
Hits: TypeAlias = list[tuple[int, int]]  # (rank from 0, position among the distinct expected documents)
STANDARDS = (VALID, OUTCOMES)


def recall(
    documents: Iterable[Any],
    expected: Iterable[Any],
    *,
    mode: Mode = "multi_hit",
    k: int | None = None,
    by: str = "auto",
) -> float:
    """The share of the distinct expected documents that were retrieved; "single_hit": 1.0 if any was."""
    if mode not in ("single_hit", "multi_hit"):
        raise ValueError(f"mode is 'single_hit' or 'multi_hit', not {mode!r}")
    hits, total = _hits(documents, expected, by, k)
    return float(bool(hits)) if mode == "single_hit" else len(hits) / total


def average_precision(
    documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto"
) -> float:
    """The mean over all expected documents of the precision at their rank; those not retrieved add 0 (trec_eval)."""
    hits, total = _hits(documents, expected, by, k)
    return sum([(hits_before + 1) / (rank + 1) for hits_before, (rank, _) in enumerate(hits)]) / total


def reciprocal_rank(
    documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto"
) -> float:
    """1 / rank of the first expected document; 0 if none was retrieved."""
    hits, _ = _hits(documents, expected, by, k)
    return 1 / (hits[0][0] + 1) if hits else 0.0


def ndcg(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Discounted cumulative gain over that of the best ranking: gains are the expected documents' scores (else 1).

    Gains are linear, discounted by log2(rank + 1); one below 0 counts as 0 (trec_eval). Raises `ValueError` when only
    some expected documents have scores.
    """
    wanted = documents_of(expected)
    known = matching(wanted, by)
    gains = _gains(wanted, known)
    ideal = _discounted(enumerate(sorted(gains, reverse=True)[:k]))
    gained = _discounted((rank, gains[position]) for rank, position in _found(documents, known, k))
    return gained / ideal if ideal > 0 else 0.0


def gain(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Discounted cumulative gain of the retrieved documents."""
    wanted = documents_of(expected)
    known = matching(wanted, by)
    gains = _gains(wanted, known)
    return _discounted((rank, gains[position]) for rank, position in _found(documents, known, k))


def ideal_gain(expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Discounted cumulative gain of the best ranking of the expected documents."""
    wanted = documents_of(expected)
    return _discounted(enumerate(sorted(_gains(wanted, matching(wanted, by)), reverse=True)[:k]))


def precision(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Expected documents among the first k, over k, also when fewer were retrieved; without k over all retrieved."""
    retrieved = documents_of(documents)
    hits, _ = _hits(retrieved, expected, by, k)
    return len(hits) / (k or len(retrieved) or 1)


def hit(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> bool:
    """Whether any expected document is among the first k."""
    return bool(_hits(documents, expected, by, k)[0])


@builtin(
    "document_recall",
    metrics=(Metric("document_recall", primary=True),),
    standards=STANDARDS,
    llm=False,
    source="Haystack DocumentRecallEvaluator; Databricks document_recall",
    canonical="ir-measures R; Haystack",
    example='get("document_recall"), documents=["a", "b", "c"], expected_documents=["a", "c", "d"]',
)
@dataclass(frozen=True, slots=True)
class DocumentRecall:
    """The share of the expected documents that were retrieved, each counted once.

    `mode="single_hit"` gives 1 if any of them was, else 0. `k` looks at the first k retrieved only. `by` says what
    makes two documents the same: "auto", "id", "content", "doc_uri" or "metadata.<field>". "auto" compares ids where
    both have one and contents where not; of ids that were made from contents (64 hex digits, as Haystack's) and differ,
    the contents decide. A plain list of texts may be one of ids.

    Where something was retrieved, but an expected document that is not among it could not have been found by anything
    that it has (its id is known, and of the retrieved ones only contents), the case is skipped. An empty chunk matches
    nothing and keeps its rank.
    """

    mode: Mode = "multi_hit"
    k: int | None = None
    by: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in ("single_hit", "multi_hit"):
            raise ValueError(f"mode is 'single_hit' or 'multi_hit', not {self.mode!r}")
        _check(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return recall(documents, expected_documents, mode=self.mode, k=self.k, by=self.by)


@builtin(
    "ir_map",
    metrics=(Metric("ir_map", primary=True),),
    standards=STANDARDS,
    llm=False,
    source="Haystack DocumentMAPEvaluator",
    canonical="ir-measures AP (trec_eval); Haystack 3",
    example='get("ir_map"), documents=["a", "b", "c"], expected_documents=["a", "c", "d"]',
)
@dataclass(frozen=True, slots=True)
class AveragePrecision:
    """Average precision: the mean over all expected documents of the precision at the rank of each.

    An expected document that was not retrieved adds 0, as in trec_eval. The mean over cases is MAP. Documents are
    compared, and cases skipped, as in `document_recall`.
    """

    k: int | None = None
    by: str = "auto"

    def __post_init__(self) -> None:
        _check(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return average_precision(documents, expected_documents, k=self.k, by=self.by)


@builtin(
    "ir_mrr",
    metrics=(Metric("ir_mrr", primary=True),),
    standards=STANDARDS,
    llm=False,
    source="Haystack DocumentMRREvaluator",
    canonical="ir-measures RR; Haystack",
    example='get("ir_mrr"), documents=["b", "a", "c"], expected_documents=["a", "c"]',
)
@dataclass(frozen=True, slots=True)
class ReciprocalRank:
    """One over the rank of the first expected document, 0 if none was retrieved. The mean over cases is MRR.

    Documents are compared, and cases skipped, as in `document_recall`.
    """

    k: int | None = None
    by: str = "auto"

    def __post_init__(self) -> None:
        _check(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return reciprocal_rank(documents, expected_documents, k=self.k, by=self.by)


@builtin(
    "ir_ndcg",
    metrics=(Metric("ir_ndcg", primary=True),),
    standards=STANDARDS,
    llm=False,
    source="Haystack DocumentNDCGEvaluator",
    canonical="ir-measures nDCG; Haystack",
    example='get("ir_ndcg"), documents=["b", "a"], expected_documents=[{"id": "a", "score": 3}, '
    '{"id": "b", "score": 1}]',
)
@dataclass(frozen=True, slots=True)
class NDCG:
    """Normalised discounted cumulative gain: what the ranking gains over what the best ranking would.

    The gain of an expected document is its score (1 when none has a score), discounted by log2(rank + 1). Documents are
    compared, and cases skipped, as in `document_recall`.
    """

    k: int | None = None
    by: str = "auto"

    def __post_init__(self) -> None:
        _check(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return ndcg(documents, expected_documents, k=self.k, by=self.by)


@builtin(
    "precision_at_k",
    metrics=(Metric("precision_at_k", primary=True),),
    standards=STANDARDS,
    llm=False,
    source="trec_eval",
    canonical="ir-measures P@k",
    example='get("precision_at_k", k=3), documents=["a", "b", "c", "d"], expected_documents=["a", "d"]',
)
@dataclass(frozen=True, slots=True)
class PrecisionAtK:
    """Expected documents among the first k retrieved, over k (also when fewer than k were retrieved).

    `k=None` divides by the number retrieved. Documents are compared, and cases skipped, as in `document_recall`.
    """

    k: int | None = 5
    by: str = "auto"

    def __post_init__(self) -> None:
        _check(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return precision(documents, expected_documents, k=self.k, by=self.by)


@builtin(
    "hit_at_k",
    metrics=(Metric("hit_at_k", primary=True),),
    standards=STANDARDS,
    llm=False,
    source="trec_eval success@k",
    canonical="ir-measures Success@k",
    example='get("hit_at_k", k=1), documents=["b", "a"], expected_documents=["a"]',
)
@dataclass(frozen=True, slots=True)
class HitAtK:
    """Whether any expected document is among the first k retrieved.

    Documents are compared, and cases skipped, as in `document_recall`.
    """

    k: int | None = 5
    by: str = "auto"

    def __post_init__(self) -> None:
        _check(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> bool:
        return hit(documents, expected_documents, k=self.k, by=self.by)


def _hits(documents: Iterable[Any], expected: Iterable[Any], by: str, k: int | None) -> tuple[Hits, int]:
    """First appearances of expected documents, by rank, and how many distinct documents are expected."""
    known = matching(documents_of(expected), by)
    return _found(documents, known, k), known.total


def _found(documents: Iterable[Any], known: Matching, k: int | None) -> Hits:
    retrieved = documents_of(documents)
    hits: dict[int, int] = {}
    for rank, document in enumerate(retrieved):
        position = known.find(document)
        if position is not None and position not in hits:
            hits[position] = rank
    known.check(retrieved, frozenset(hits))
    return [(rank, position) for position, rank in hits.items() if k is None or rank < k]


def _discounted(gains: Iterable[tuple[int, float]]) -> float:
    return sum([value / log2(rank + 2) for rank, value in gains])


def _gains(expected: Sequence[Document], known: Matching) -> list[float]:
    """One gain per distinct expected document, the highest where it is given more than once."""
    scored = [document.score is not None for document in expected]
    if True not in scored:
        return [1.0] * known.total
    if False in scored:
        raise ValueError("either all expected documents have a score or none has: some have none")
    if not all(document.score is None or isfinite(document.score) for document in expected):
        raise ValueError("the scores of expected documents are their gains: numbers, neither NaN nor infinite")
    gains = [float("-inf")] * known.total
    for document, position in zip(expected, known.positions, strict=True):
        if position is not None:
            gains[position] = max(gains[position], 0.0, document.score or 0.0)
    return gains


def _check(k: int | None, by: str) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k is at least 1, not {k!r}")
    if by != "auto":
        value_of(by)
