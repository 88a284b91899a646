"""The pairs of a query string that say a filter: the way back from what `to_filter` reads, which nothing but tests goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.collector.filters import COMPARISONS, LISTS, Filter


def to_items(filter: Filter) -> list[tuple[str, str]]:
    """The pairs that say a filter: `to_filter` of them is the filter again.

    What the grammar cannot say does not survive: a comparison within a key of feedback or metadata, a label of
    feedback that reads as a number, and an empty list of `experiments`.
    """
    return [item for field in Filter.__dataclass_fields__ for item in _items(field, getattr(filter, field))]


def _items(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if field in LISTS:
        yield from ((field, text) for text in value)
    elif field == "feedback":
        yield from ((field, f"{key}{operator}{bound}") for key, operator, bound in value)
    elif field == "metadata":
        yield from (
            (f"metadata.{key}", text) if ":" in key else (field, f"{key}:{text}") for key, text in value.items()
        )
    elif field in COMPARISONS:
        yield field, f"{value[0]}{value[1]!r}"
    else:
        yield field, str(value).lower() if isinstance(value, bool) else str(value)
