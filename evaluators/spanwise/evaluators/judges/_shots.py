"""Few-shot examples: rows with the columns that a prompt asks for, a rating, and the reasons for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from spanwise.evaluators.judges._fences import harmless
from spanwise.evaluators.judges._prompts import Shot
from spanwise.evaluators.judges._rating import Scale, worded
from spanwise.evaluators.judges._values import text_of
from spanwise.tracer.hints import did_you_mean

SAID = ("rationale", "rating")  # what a good judge replies


def shots_of(examples: Iterable[Any], asked: Sequence[str], scale: Scale) -> tuple[Shot, ...]:
    """Examples as they are shown. Raises `ValueError`, naming the column that is unknown or missing."""
    return tuple(_shot(number, row, asked, scale) for number, row in enumerate(examples, 1))


def _shot(number: int, row: Any, asked: Sequence[str], scale: Scale) -> Shot:
    _check(number, row, (*asked, *SAID))
    label = scale.label_of(worded(row["rating"]))
    if label is None:
        known = ", ".join(map(repr, scale.labels))
        raise ValueError(f"example {number} has the rating {row['rating']!r:.100}, which is none of {known}")
    if not isinstance(row["rationale"], str) or not row["rationale"].strip():
        raise ValueError(f"example {number} has no rationale: a judge would learn to give none")
    reply = orjson.dumps({"rationale": harmless(row["rationale"]), "rating": label}).decode()
    return Shot(tuple((name, text_of(row[name])) for name in asked), reply)


def _check(number: int, row: Any, columns: Sequence[str]) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"example {number} is a dict with {', '.join(columns)}, not {row!r:.200}")
    for name in row:
        if name not in columns:
            hint = did_you_mean(str(name), columns)
            raise ValueError(f"example {number} has the column {name!r}{hint}; it has {', '.join(columns)}")
    if missing := [name for name in columns if row.get(name) is None]:
        raise ValueError(f"example {number} lacks {', '.join(missing)}; it has {', '.join(columns)}")
