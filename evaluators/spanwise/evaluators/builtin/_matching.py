"""Which of the expected documents a retrieved one is, and whether that can be told at all.

Nobody may have sent ids on one side, or contents on the other: then nothing is found, and a score of 0 would blame the
retriever for what the trace does not say. Such a case is undefined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

from spanwise.collector.records import Document
from spanwise.evaluators.protocol import Skip

_SPACE = re.compile(r"\s")
_DERIVED = re.compile(r"[0-9a-f]{64}")  # SHA-256 in hex: Haystack makes ids of contents and metadata


class Matching(Protocol):
    """What is expected, for documents to be found in.

    - `total`: how many distinct documents are expected.
    - `positions`: the place among them of each document as it was given; None for one that nothing tells.
    """

    total: int
    positions: list[int | None]

    def find(self, document: Document) -> int | None:
        """The place among the distinct expected documents; None for a document that is none of them."""
        ...

    def check(self, retrieved: Sequence[Document], found: frozenset[int]) -> None:
        """Raises `Skip` where an expected document was not found because nothing retrieved can be compared with it."""
        ...


def matching(expected: Sequence[Document], by: str) -> Matching:
    """How documents are the same by `by`. Raises `Skip` where nothing is expected, `ValueError` for an unknown `by`."""
    made: Matching = ByKind(expected) if by == "auto" else ByField(expected, by)
    if not made.total:
        named = "" if by == "auto" else f" by {by!r}"
        raise Skip(f"expected_documents names no document{named}: nothing is defined")
    return made


class ByField:
    """By one field, as `value_of` names them. An expected document without it is left out, as in Haystack."""

    def __init__(self, expected: Sequence[Document], by: str) -> None:
        self._by, self._value = by, value_of(by)
        self._known: dict[Hashable, int] = {}
        for document in expected:
            if (value := self._value(document)) is not None:
                self._known.setdefault(value, len(self._known))
        self.total = len(self._known)
        self.positions: list[int | None] = [self.find(document) for document in expected]

    def find(self, document: Document) -> int | None:
        return self._known.get(self._value(document))

    def check(self, retrieved: Sequence[Document], found: frozenset[int]) -> None:
        if not retrieved or any(map(self._tells, retrieved)):
            return
        raise Skip(f"documents are compared by {self._by!r}, and none of the {len(retrieved)} retrieved ones has it")

    def _tells(self, document: Document) -> bool:
        return self._value(document) is not None or (self._by == "content" and _own_id(document) is None)


class ByKind:
    """By ids where both have one, by contents where not. `find` says in which order."""

    def __init__(self, expected: Sequence[Document]) -> None:
        self._expected = expected
        self._ids: dict[str, int] = {}
        self._contents: dict[str, int] = {}  # of all, for retrieved documents without an id of their own
        self._texts: dict[str, int] = {}  # of expected documents without an id of their own
        known: dict[tuple[str, str], int] = {}
        self.positions: list[int | None] = [self._add(document, known) for document in expected]
        self.total = len(known)

    def _add(self, document: Document, known: dict[tuple[str, str], int]) -> int | None:
        id = _own_id(document)
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
        """By its id, the `doc_uri` of its metadata, its content; either side's ids may stand where contents do."""
        if document.id and (position := self._ids.get(document.id)) is not None:
            return position
        own, content = _own_id(document), document.content
        position = self._texts.get(own) if own else None
        if position is None and document.metadata:  # Databricks' doc_uri beside an id of its own
            position = self._ids.get(str(document.metadata.get("doc_uri") or ""))
        if position is not None or not content:
            return position
        return self._texts.get(content) if own else self._contents.get(content, self._ids.get(content))

    def check(self, retrieved: Sequence[Document], found: frozenset[int]) -> None:
        if not retrieved or len(found) == self.total:
            return
        side = _Retrieved(retrieved, self._ids)
        pairs = zip(self._expected, self.positions, strict=True)
        lost = {at: each for each, at in pairs if at is not None and at not in found and not side.compares(each)}
        if lost:
            raise Skip(
                f"{len(lost)} of {self.total} expected documents cannot be compared with what was retrieved: "
                f"expected {_kinds(lost.values())}, retrieved {_kinds(retrieved)}; "
                "send the same of both, or say with by= what to compare"
            )


class _Retrieved:
    """What the retrieved documents can be compared by, looked up when it is asked for."""

    def __init__(self, documents: Sequence[Document], ids: Collection[str]) -> None:
        self._documents, self._expected_ids = documents, ids

    def compares(self, expected: Document) -> bool:
        """Whether any of them can be told to be, or not to be, the expected one."""
        id, content = _own_id(expected), expected.content
        if (id and self._ids) or (_is_derived(expected) and self._derived):
            return True
        if content and (self._unnamed if id else self._contents) and (id or not _like_an_id(content) or self._short):
            return True
        if id:  # retrieved as a plain list of ids?
            return self._may_be_ids or (any(self._unnamed) and not _like_an_id(id))
        return bool(content) and self._ids and (_like_an_id(content) or self._spaced_ids)

    @cached_property
    def _ids(self) -> bool:
        return any(_own_id(document) or document.metadata.get("doc_uri") for document in self._documents)

    @cached_property
    def _derived(self) -> bool:
        return any(map(_is_derived, self._documents))

    @cached_property
    def _spaced_ids(self) -> bool:
        return not all(_like_an_id(_own_id(document) or "") for document in self._documents)

    @cached_property
    def _unnamed(self) -> list[str]:
        """The contents of those without an id of their own; "" is a content, that of an empty document."""
        return [document.content for document in self._documents if not _own_id(document)]

    @cached_property
    def _contents(self) -> list[str]:
        return [document.content for document in self._documents if document.content or not _own_id(document)]

    @cached_property
    def _short(self) -> bool:
        return not any(self._contents) or any(_like_an_id(text) for text in self._contents if text)

    @cached_property
    def _may_be_ids(self) -> bool:
        texts = [text for text in self._unnamed if text]
        return bool(texts) and (all(map(_like_an_id, texts)) or any(text in self._expected_ids for text in texts))


def value_of(by: str) -> Callable[[Document], Hashable | None]:
    """What `by` names of a document: "id", "content", "doc_uri" or "metadata.<field>". Raises `ValueError`."""
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


def _own_id(document: Document) -> str | None:
    """The id, unless it is made from the content: that one says no more than the content, and changes with metadata."""
    id = document.id
    return None if not id or (len(id) == 64 and _DERIVED.fullmatch(id)) else id


def _is_derived(document: Document) -> bool:
    return document.id is not None and len(document.id) == 64 and _DERIVED.fullmatch(document.id) is not None


def _like_an_id(text: str) -> bool:
    """Whether a text is written as ids mostly are: ASCII without white space."""
    return text.isascii() and _SPACE.search(text, 0, 1000) is None


def _kinds(documents: Iterable[Document]) -> str:
    listed = list(documents)
    texts = [document.content for document in listed if document.content and not _own_id(document)]
    has = {
        "ids": any(map(_own_id, listed)),
        "ids made from contents": any(map(_is_derived, listed)),
        "texts that look like ids": any(map(_like_an_id, texts)),
        "contents": any(document.content for document in listed) and (not texts or not all(map(_like_an_id, texts))),
    }
    return " and ".join(kind for kind, there in has.items() if there) or "neither ids nor contents"
