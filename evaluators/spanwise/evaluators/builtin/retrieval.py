"""Retrieval evaluators: recall, MAP, MRR, nDCG, precision and hits at k; matching of documents.

Documents are compared by `by`: "id", "content", "doc_uri" or a field of the metadata ("metadata.source"). "auto", the
default, compares ids if both have one and contents otherwise. A document without an id also matches one whose id is
its text, so that either side may be a plain list of ids. An id of 64 hex digits is treated as a SHA-256 of the
content (Haystack makes ids of content and metadata). If such ids differ, the contents decide.

A document that is retrieved twice counts once, at its first rank. An empty document matches nothing and keeps its
rank.

The functions raise `Skip` if nothing is expected. They also raise it if documents were retrieved, but an expected
document that was not found has no field in common with them, such as an id where the retrieved documents have
contents only. A score of 0 would then blame the retriever for data missing from the trace. A retrieved document that
cannot be compared with any expected one counts as not expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log2
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from spanwise.collector.records import Document
from spanwise.evaluators.interface import Metric, Skip, register_builtin, to_documents
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, VALID

HitMode = Literal["single_hit", "multi_hit"]
Hits: TypeAlias = list[tuple[int, int]]  # (rank from 0, position among the distinct expected documents)
RETRIEVAL_STANDARDS = (VALID, OUTCOMES)


def recall(
    documents: Iterable[Any],
    expected: Iterable[Any],
    *,
    mode: HitMode = "multi_hit",
    k: int | None = None,
    by: str = "auto",
) -> float:
    """Return the share of the distinct expected documents that were retrieved; "single_hit": 1.0 if any was."""
    if mode not in ("single_hit", "multi_hit"):
        raise ValueError(f"mode is 'single_hit' or 'multi_hit', not {mode!r}")
    hits, total = _find_hits(documents, expected, by, k)
    return float(bool(hits)) if mode == "single_hit" else len(hits) / total


def average_precision(
    documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto"
) -> float:
    """Return the mean over all expected documents of the precision at their rank.

    Documents that were not retrieved add 0 (trec_eval).
    """
    hits, total = _find_hits(documents, expected, by, k)
    return sum([(hits_before + 1) / (rank + 1) for hits_before, (rank, _) in enumerate(hits)]) / total


def reciprocal_rank(
    documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto"
) -> float:
    """Return 1 / rank of the first expected document; 0 if none was retrieved."""
    hits, _ = _find_hits(documents, expected, by, k)
    return 1 / (hits[0][0] + 1) if hits else 0.0


def ndcg(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Return the discounted cumulative gain over that of the best ranking.

    Gains are the expected documents' scores (else 1). They are linear, discounted by log2(rank + 1); one below 0
    counts as 0 (trec_eval). Raises `ValueError` if only some expected documents have scores.
    """
    wanted = to_documents(expected)
    known = make_matcher(wanted, by)
    gains = _document_gains(wanted, known)
    ideal = _discount_gains(enumerate(sorted(gains, reverse=True)[:k]))
    gained = _discount_gains((rank, gains[position]) for rank, position in _rank_hits(documents, known, k))
    return gained / ideal if ideal > 0 else 0.0


def discounted_gain(
    documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto"
) -> float:
    """Return the discounted cumulative gain of the retrieved documents."""
    wanted = to_documents(expected)
    known = make_matcher(wanted, by)
    gains = _document_gains(wanted, known)
    return _discount_gains((rank, gains[position]) for rank, position in _rank_hits(documents, known, k))


def ideal_discounted_gain(expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Return the discounted cumulative gain of the best ranking of the expected documents."""
    wanted = to_documents(expected)
    return _discount_gains(enumerate(sorted(_document_gains(wanted, make_matcher(wanted, by)), reverse=True)[:k]))


def precision(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> float:
    """Return the number of expected documents among the first k, divided by k, even if fewer than k were retrieved.

    Without k, the divisor is the number of retrieved documents.
    """
    retrieved = to_documents(documents)
    hits, _ = _find_hits(retrieved, expected, by, k)
    return len(hits) / (k or len(retrieved) or 1)


def has_hit(documents: Iterable[Any], expected: Iterable[Any], *, k: int | None = None, by: str = "auto") -> bool:
    """Return whether any expected document is among the first k."""
    return bool(_find_hits(documents, expected, by, k)[0])


@register_builtin(
    "document_recall",
    metrics=(Metric("document_recall", primary=True),),
    standards=RETRIEVAL_STANDARDS,
    llm=False,
    source="Haystack DocumentRecallEvaluator; Databricks document_recall",
    canonical="ir-measures R; Haystack",
    example='get_evaluator("document_recall"), documents=["a", "b", "c"], expected_documents=["a", "c", "d"]',
)
@dataclass(frozen=True, slots=True)
class DocumentRecall:
    """Share of the expected documents that were retrieved, each counted once.

    `mode="single_hit"` gives 1 if any of them was, else 0. `k` restricts the score to the first k retrieved
    documents. `by` is the field that documents are compared by: "auto", "id", "content", "doc_uri" or
    "metadata.<field>". "auto" compares ids if both have one and contents otherwise. If ids that were made from
    contents (64 hex digits, as Haystack's) differ, the contents decide. A plain list of texts may also be a
    list of ids.

    The case is skipped if documents were retrieved, but an expected document that is not among them has no field to
    compare (such as an id, if the retrieved ones have only contents). An empty chunk matches nothing and keeps its
    rank.
    """

    mode: HitMode = "multi_hit"
    k: int | None = None
    by: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in ("single_hit", "multi_hit"):
            raise ValueError(f"mode is 'single_hit' or 'multi_hit', not {self.mode!r}")
        _check_parameters(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return recall(documents, expected_documents, mode=self.mode, k=self.k, by=self.by)


@dataclass(frozen=True, slots=True)
class _RankingEvaluator:
    """Base class of evaluators that apply one function to the retrieved and the expected documents."""

    FUNCTION: ClassVar[Callable[..., float]]

    k: int | None = None
    by: str = "auto"

    def __post_init__(self) -> None:
        _check_parameters(self.k, self.by)

    def __call__(self, documents: Sequence[Document], expected_documents: Sequence[Document]) -> float:
        return type(self).FUNCTION(documents, expected_documents, k=self.k, by=self.by)


@register_builtin(
    "ir_map",
    metrics=(Metric("ir_map", primary=True),),
    standards=RETRIEVAL_STANDARDS,
    llm=False,
    source="Haystack DocumentMAPEvaluator",
    canonical="ir-measures AP (trec_eval); Haystack 3",
    example='get_evaluator("ir_map"), documents=["a", "b", "c"], expected_documents=["a", "c", "d"]',
)
@dataclass(frozen=True, slots=True)
class AveragePrecision(_RankingEvaluator):
    """Average precision: the mean over all expected documents of the precision at the rank of each.

    An expected document that was not retrieved adds 0, as in trec_eval. The mean over cases is MAP. Documents are
    compared, and cases skipped, as in `document_recall`.
    """

    FUNCTION: ClassVar[Callable[..., float]] = average_precision


@register_builtin(
    "ir_mrr",
    metrics=(Metric("ir_mrr", primary=True),),
    standards=RETRIEVAL_STANDARDS,
    llm=False,
    source="Haystack DocumentMRREvaluator",
    canonical="ir-measures RR; Haystack",
    example='get_evaluator("ir_mrr"), documents=["b", "a", "c"], expected_documents=["a", "c"]',
)
@dataclass(frozen=True, slots=True)
class ReciprocalRank(_RankingEvaluator):
    """One over the rank of the first expected document, 0 if none was retrieved. The mean over cases is MRR.

    Documents are compared, and cases skipped, as in `document_recall`.
    """

    FUNCTION: ClassVar[Callable[..., float]] = reciprocal_rank


@register_builtin(
    "ir_ndcg",
    metrics=(Metric("ir_ndcg", primary=True),),
    standards=RETRIEVAL_STANDARDS,
    llm=False,
    source="Haystack DocumentNDCGEvaluator",
    canonical="ir-measures nDCG; Haystack",
    example='get_evaluator("ir_ndcg"), documents=["b", "a"], expected_documents=[{"id": "a", "score": 3}, '
    '{"id": "b", "score": 1}]',
)
@dataclass(frozen=True, slots=True)
class NDCG(_RankingEvaluator):
    """Normalised discounted cumulative gain: the gain of the ranking over the gain of the best ranking.

    The gain of an expected document is its score (1 if none has a score), discounted by log2(rank + 1). Documents are
    compared, and cases skipped, as in `document_recall`.
    """

    FUNCTION: ClassVar[Callable[..., float]] = ndcg


@register_builtin(
    "precision_at_k",
    metrics=(Metric("precision_at_k", primary=True),),
    standards=RETRIEVAL_STANDARDS,
    llm=False,
    source="trec_eval",
    canonical="ir-measures P@k",
    example='get_evaluator("precision_at_k", k=3), documents=["a", "b", "c", "d"], expected_documents=["a", "d"]',
)
@dataclass(frozen=True, slots=True)
class PrecisionAtK(_RankingEvaluator):
    """Number of expected documents among the first k retrieved, divided by k (even if fewer than k were retrieved).

    `k=None` divides by the number retrieved. Documents are compared, and cases skipped, as in
    `document_recall`.
    """

    FUNCTION: ClassVar[Callable[..., float]] = precision

    k: int | None = 5


@register_builtin(
    "hit_at_k",
    metrics=(Metric("hit_at_k", primary=True),),
    standards=RETRIEVAL_STANDARDS,
    llm=False,
    source="trec_eval success@k",
    canonical="ir-measures Success@k",
    example='get_evaluator("hit_at_k", k=1), documents=["b", "a"], expected_documents=["a"]',
)
@dataclass(frozen=True, slots=True)
class HitAtK(_RankingEvaluator):
    """True if any expected document is among the first k retrieved.

    Documents are compared, and cases skipped, as in `document_recall`.
    """

    FUNCTION: ClassVar[Callable[..., float]] = has_hit

    k: int | None = 5


def _find_hits(documents: Iterable[Any], expected: Iterable[Any], by: str, k: int | None) -> tuple[Hits, int]:
    """Return the first occurrences of expected documents by rank, and the number of distinct expected documents."""
    known = make_matcher(to_documents(expected), by)
    return _rank_hits(documents, known, k), known.total


def _rank_hits(documents: Iterable[Any], known: DocumentMatcher, k: int | None) -> Hits:
    retrieved = to_documents(documents)
    hits: dict[int, int] = {}
    for rank, document in enumerate(retrieved):
        position = known.find(document)
        if position is not None and position not in hits:
            hits[position] = rank
    known.check(retrieved, frozenset(hits))
    return [(rank, position) for position, rank in hits.items() if k is None or rank < k]


def _discount_gains(gains: Iterable[tuple[int, float]]) -> float:
    return sum([value / log2(rank + 2) for rank, value in gains])


def _document_gains(expected: Sequence[Document], known: DocumentMatcher) -> list[float]:
    """Return one gain per distinct expected document, the highest if it is given more than once."""
    scored = [document.score is not None for document in expected]
    if True not in scored:
        return [1.0] * known.total
    if False in scored:
        raise ValueError("only some expected documents have a score: give one to all of them, or to none")
    if not all(document.score is None or isfinite(document.score) for document in expected):
        raise ValueError(
            "the scores of expected documents are their gains and must be numbers, neither NaN nor infinite"
        )
    gains = [float("-inf")] * known.total
    for document, position in zip(expected, known.positions, strict=True):
        if position is not None:
            gains[position] = max(gains[position], 0.0, document.score or 0.0)
    return gains


def _check_parameters(k: int | None, by: str) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k is at least 1, not {k!r}")
    if by != "auto":
        make_field_reader(by)


_SPACE = re.compile(r"\s")
_DERIVED_ID = re.compile(r"[0-9a-f]{64}")  # SHA-256 in hex: Haystack derives ids from contents and metadata


class DocumentMatcher(Protocol):
    """Index of the expected documents, in which retrieved documents are looked up.

    - `total`: number of distinct expected documents.
    - `positions`: for each expected document, as given, its position among the distinct ones; None for a document that
      cannot be identified.
    """

    total: int
    positions: list[int | None]

    def find(self, document: Document) -> int | None:
        """Return the position among the distinct expected documents, or None."""
        ...

    def check(self, retrieved: Sequence[Document], found: frozenset[int]) -> None:
        """Raise `Skip` if an expected document was not found because no retrieved one can be compared with it."""
        ...


def make_matcher(expected: Sequence[Document], by: str) -> DocumentMatcher:
    """Return the matcher for `by`. Raises `Skip` if nothing is expected, `ValueError` for an unknown `by`."""
    made: DocumentMatcher = IdOrContentMatcher(expected) if by == "auto" else FieldMatcher(expected, by)
    if not made.total:
        named = "" if by == "auto" else f" by {by!r}"
        raise Skip(f"expected_documents contains no document{named}, so the score is undefined")
    return made


class FieldMatcher:
    """Matcher by one field (see `make_field_reader`).

    Expected documents without this field are left out, as in Haystack.
    """

    def __init__(self, expected: Sequence[Document], by: str) -> None:
        self._by, self._value = by, make_field_reader(by)
        self._known: dict[Hashable, int] = {}
        for document in expected:
            if (value := self._value(document)) is not None:
                self._known.setdefault(value, len(self._known))
        self.total = len(self._known)
        self.positions: list[int | None] = [self.find(document) for document in expected]

    def find(self, document: Document) -> int | None:
        return self._known.get(self._value(document))

    def check(self, retrieved: Sequence[Document], found: frozenset[int]) -> None:
        if not retrieved or any(
            self._value(document) is not None or (self._by == "content" and _explicit_id(document) is None)
            for document in retrieved
        ):
            return
        raise Skip(f"documents are compared by {self._by!r}, and none of the {len(retrieved)} retrieved ones has it")


class IdOrContentMatcher:
    """Matcher by ids if both documents have one, else by contents. `find` defines the order."""

    def __init__(self, expected: Sequence[Document]) -> None:
        self._expected = expected
        self._ids: dict[str, int] = {}
        # contents of all expected documents, for retrieved ones without an explicit id
        self._contents: dict[str, int] = {}
        self._texts: dict[str, int] = {}  # contents of expected documents without an explicit id
        known: dict[tuple[str, str], int] = {}
        self.positions: list[int | None] = [self._add(document, known) for document in expected]
        self.total = len(known)

    def _add(self, document: Document, known: dict[tuple[str, str], int]) -> int | None:
        id = _explicit_id(document)
        name = ("id", id) if id else ("text", document.content) if document.content else ("id", document.id or "")
        if not name[1]:
            return None
        position = known.setdefault(name, len(known))
        if document.id:
            self._ids.setdefault(document.id, position)
        if document.content:
            self._contents.setdefault(document.content, position)
            if not id:
                self._texts.setdefault(document.content, position)
        return position

    def find(self, document: Document) -> int | None:
        """Return the position by id, then by the `doc_uri` of the metadata, then by content.

        Either side may have ids in place of contents.
        """
        if document.id and (position := self._ids.get(document.id)) is not None:
            return position
        own, content = _explicit_id(document), document.content
        position = self._texts.get(own) if own else None
        if position is None and document.metadata:  # Databricks' `doc_uri` in addition to an id
            position = self._ids.get(str(document.metadata.get("doc_uri") or ""))
        if position is not None or not content:
            return position
        return self._texts.get(content) if own else self._contents.get(content, self._ids.get(content))

    def check(self, retrieved: Sequence[Document], found: frozenset[int]) -> None:
        if not retrieved or len(found) == self.total:
            return
        found_documents = _RetrievedDocuments(retrieved, self._ids)
        pairs = zip(self._expected, self.positions, strict=True)
        incomparable = {
            at: each for each, at in pairs if at is not None and at not in found and not found_documents.compares(each)
        }
        if incomparable:
            raise Skip(
                f"{len(incomparable)} of {self.total} expected documents cannot be compared with what was retrieved: "
                f"expected {_describe_documents(incomparable.values())}, retrieved {_describe_documents(retrieved)}; "
                "record the same fields for both, or name the field to compare with by="
            )


class _RetrievedDocuments:
    """Fields by which the retrieved documents can be compared, computed on demand."""

    def __init__(self, documents: Sequence[Document], ids: Collection[str]) -> None:
        self._documents, self._expected_ids = documents, ids

    def compares(self, expected: Document) -> bool:
        """Return whether any of the documents can be compared with the expected one."""
        id, content = _explicit_id(expected), expected.content
        if (id and self._ids) or (_has_derived_id(expected) and self._derived):
            return True
        if content and (self._unnamed if id else self._contents) and (id or not _looks_like_id(content) or self._short):
            return True
        if id:  # the retrieved documents may be a plain list of ids
            return self._may_be_ids or (any(self._unnamed) and not _looks_like_id(id))
        return bool(content) and self._ids and (_looks_like_id(content) or self._spaced_ids)

    @cached_property
    def _ids(self) -> bool:
        return any(_explicit_id(document) or document.metadata.get("doc_uri") for document in self._documents)

    @cached_property
    def _derived(self) -> bool:
        return any(map(_has_derived_id, self._documents))

    @cached_property
    def _spaced_ids(self) -> bool:
        return not all(_looks_like_id(_explicit_id(document) or "") for document in self._documents)

    @cached_property
    def _unnamed(self) -> list[str]:
        """Return the contents of documents without an explicit id; "" is the content of an empty document."""
        return [document.content for document in self._documents if not _explicit_id(document)]

    @cached_property
    def _contents(self) -> list[str]:
        return [document.content for document in self._documents if document.content or not _explicit_id(document)]

    @cached_property
    def _short(self) -> bool:
        return not any(self._contents) or any(_looks_like_id(text) for text in self._contents if text)

    @cached_property
    def _may_be_ids(self) -> bool:
        texts = [text for text in self._unnamed if text]
        return bool(texts) and (all(map(_looks_like_id, texts)) or any(text in self._expected_ids for text in texts))


def make_field_reader(by: str) -> Callable[[Document], Hashable | None]:
    """Return a function that reads a field of a document: "id", "content", "doc_uri" or "metadata.<field>".

    Raises `ValueError`.
    """
    if by == "id":
        return lambda document: document.id
    if by == "content":
        return lambda document: document.content or None
    if by == "doc_uri":
        return lambda document: _hashable(document.metadata.get("doc_uri")) or document.id
    head, *steps = by.split(".")
    if head not in ("meta", "metadata") or not steps or not all(steps):
        raise ValueError(f"by is 'auto', 'id', 'content', 'doc_uri' or 'metadata.<field>', not {by!r}")

    def value(document: Document) -> Hashable | None:
        inner: Any = document.metadata
        for step in steps:
            inner = inner.get(step) if isinstance(inner, dict) else None
        return _hashable(inner)

    return value


def _hashable(value: Any) -> Hashable | None:
    return value if isinstance(value, Hashable) else repr(value)


def _explicit_id(document: Document) -> str | None:
    """Return the id of a document, or None if it has none or the id was derived from the content.

    A derived id identifies no more than the content does, and changes with the metadata.
    """
    id = document.id
    return None if not id or (len(id) == 64 and _DERIVED_ID.fullmatch(id)) else id


def _has_derived_id(document: Document) -> bool:
    return document.id is not None and len(document.id) == 64 and _DERIVED_ID.fullmatch(document.id) is not None


def _looks_like_id(text: str) -> bool:
    """Return whether a text has the usual form of ids: ASCII without white space."""
    return text.isascii() and _SPACE.search(text, 0, 1000) is None


def _describe_documents(documents: Iterable[Document]) -> str:
    listed = list(documents)
    texts = [document.content for document in listed if document.content and not _explicit_id(document)]
    has = {
        "ids": any(map(_explicit_id, listed)),
        "ids made from contents": any(map(_has_derived_id, listed)),
        "texts that look like ids": any(map(_looks_like_id, texts)),
        "contents": any(document.content for document in listed) and (not texts or not all(map(_looks_like_id, texts))),
    }
    return " and ".join(kind for kind, there in has.items() if there) or "neither ids nor contents"
