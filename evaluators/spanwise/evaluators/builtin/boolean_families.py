"""Boolean metric families: pass, failure, retrieval, generation and parse failure of one case.

Passes + failures + parse failures = 1. A retrieval failure is a context that fails by itself. A generation failure is
an answer that fails although the context passes. If the judge's reply cannot be parsed, pass and failure are both
False and the parse failure is True, so that every mean is a rate over all cases. The label marks such a case.
"""

from __future__ import annotations

from typing import Any

from spanwise.collector.statistics import RATE_ENDINGS, UNPARSED
from spanwise.evaluators.interface import Metric

FAMILY_SUFFIXES = ("", *RATE_ENDINGS)


def family_metrics(id: str, *, parse: bool = True) -> tuple[Metric, ...]:
    """Return the metrics of a boolean family; `parse=False` leaves out the parse failures."""
    suffixes = FAMILY_SUFFIXES if parse else FAMILY_SUFFIXES[:-1]
    return tuple(
        Metric(id + suffix, higher_is_better=not suffix, threshold=0.5, primary=not suffix) for suffix in suffixes
    )


def family_rows(
    id: str,
    answer: bool,
    context: bool | None = None,
    *,
    comment: str | None = None,
    parse: bool = True,
    counted: bool = True,
    metadata: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the feedback rows of the family for one case. `answer` and `context` say whether each of them passes.

    A `context` of None means that no context was judged. With `counted=False`, a context that fails does not make the
    case fail.
    """
    passed = answer and (context is not False or not counted)
    values: list[bool | None] = [
        passed,
        not passed,
        None if context is None else not context,
        not answer and (context is not False or not counted),
    ]
    rows: list[dict[str, Any]] = [
        {"key": id + suffix, "score": value} for suffix, value in zip(FAMILY_SUFFIXES[:4], values, strict=True)
    ]
    rows[0].update(comment=comment, metadata=metadata or {})
    if context is None:
        rows[2]["comment"] = "no context was judged"
    return [*rows, {"key": id + FAMILY_SUFFIXES[4], "score": False}] if parse else rows


def unparsed_rows(id: str, why: str, *, metadata: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the feedback rows of the family for a case whose judge gave a reply that cannot be parsed."""
    mark = {"label": UNPARSED, "comment": f"{UNPARSED}: {why}"}
    rows: list[dict[str, Any]] = [{"key": id + suffix, "score": False, **mark} for suffix in FAMILY_SUFFIXES[:4]]
    rows[2] = {"key": rows[2]["key"], "score": None, "comment": f"no context was judged: {UNPARSED}"}
    return [*rows, {"key": id + FAMILY_SUFFIXES[4], "score": True, "comment": why, "metadata": metadata or {}}]
