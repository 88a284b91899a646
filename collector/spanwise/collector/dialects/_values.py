"""What the dialects share: texts that hold JSON, numbers, documents, lists spread over indexed attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spanwise.collector.dialects._keys import spread
from spanwise.collector.records import JSON, Document, Usage, quick

CONTENTS = ("content", "page_content", "text", "chunk")
IDENTITIES = ("id", "doc_uri", "document_id", "url")
IDENTITIES_WITHIN = ("doc_uri", "id", "document_id", "doc_id")  # of a document's metadata
SCORES_WITHIN = ("score", "relevance_score", "similarity_score", "_score")  # the same; distances are no scores
REPR = "<NodeWithScore("  # how LlamaIndex's instrumentor writes what it has listed elsewhere
NAMED = frozenset((*CONTENTS, *IDENTITIES))
new_document, new_usage = quick(Document), quick(Usage)


def from_json(value: JSON) -> JSON:
    """What a text holds if it is JSON, else the value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def number(value: JSON) -> float | None:
    """A finite number, also out of a text; None for everything else."""
    if value.__class__ is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except (ValueError, OverflowError):  # an int of Python's own may be larger than any float
        return None
    return parsed if math.isfinite(parsed) else None


def count(value: JSON) -> int | None:
    """A whole number that is not negative, or None."""
    if value.__class__ is int and 0 <= value < 2**53:
        return value
    parsed = None if value is None else number(value)
    return int(parsed) if parsed is not None and 0 <= parsed < 2**53 and parsed.is_integer() else None


def text(value: JSON) -> str | None:
    """A text that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def as_text(value: JSON) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def document(value: JSON) -> Document | None:
    """One retrieved document out of a text, or of an object under any of the names in use; None if it is neither."""
    if isinstance(value, str):
        return None if value.startswith(REPR) else Document(value)
    if not isinstance(value, dict):
        return None
    if "lc" in value and isinstance(
        inner := value.get("kwargs"), dict
    ):  # as LangChain writes objects; its id is a class
        value = inner
    return document_of(value) if not NAMED.isdisjoint(value) else None


def document_of(value: Mapping[str, JSON]) -> Document:
    """The document that an object is known to be: without content it is an empty one, which still has its rank."""
    content, id, metadata, score = value.get("content"), value.get("id"), value.get("metadata"), value.get("score")
    if content is None:
        content = _first(value, CONTENTS)
    if metadata is not None:
        metadata = from_json(metadata)
    metadata = metadata if isinstance(metadata, dict) else {}
    if type(id) is not str or not id:
        id = _identity(value, IDENTITIES) or (_identity(metadata, IDENTITIES_WITHIN) if metadata else None)
    score = number(score)
    if score is None and metadata:
        score = _score_within(metadata)
    return new_document("" if content is None else as_text(content), id, score, metadata)


def documents(values: JSON) -> tuple[Document, ...]:
    """The documents in a list, or none at all if some element is not one."""
    if isinstance(values, Mapping):
        values = values.get("documents")
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    elements = [document(value) for value in values]
    return tuple(element for element in elements if element) if all(elements) else ()


def take_list(attributes: dict[str, Any], prefix: str, element: str) -> list[dict[str, JSON]]:
    """Take the list out of `{prefix}.{i}.{element}.{name}`: one object per index, by index, gaps closed."""
    elements = spread(tuple(attributes)).get((prefix, element), ())
    return [{rest: attributes.pop(name) for rest, name in one} for one in elements]


def _first(value: Mapping[str, JSON], names: tuple[str, ...]) -> JSON:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _score_within(metadata: Mapping[str, JSON]) -> float | None:
    return next((score for name in SCORES_WITHIN if (score := number(metadata.get(name))) is not None), None)


def _identity(value: Mapping[str, JSON], names: tuple[str, ...]) -> str | None:
    given = (value.get(name) for name in names)
    return next((str(id) for id in given if type(id) in (str, int, float) and id != ""), None)
