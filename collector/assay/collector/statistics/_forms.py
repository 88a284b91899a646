"""The same results in the forms that Databricks' and Haystack's users know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from assay.collector.records import Feedback

AVERAGES = frozenset({"safety"})  # whose set value Databricks calls an average; the others are percentages


def databricks_results(feedback: Iterable[Feedback], name: str) -> dict[str, Any]:
    """The results of one judge under Databricks' names: lists over rows, and the share of yes.

    `response/llm_judged/{name}/rating` ("yes", "no", None), `…/rationale`, `…/error_message`, and
    `…/rating/percentage` (`…/rating/average` for safety) in [0, 1], over the rows that have a rating.
    """
    rows = [one for one in feedback if one.key == name]
    ratings = [_rating(one) for one in rows]
    rated = [rating for rating in ratings if rating is not None]
    stem = f"response/llm_judged/{name}"
    kind = "average" if name in AVERAGES else "percentage"
    return {
        f"{stem}/rating": ratings,
        f"{stem}/rationale": [one.comment if one.outcome == "score" else None for one in rows],
        f"{stem}/error_message": [one.error if one.outcome == "error" else None for one in rows],
        f"{stem}/rating/{kind}": rated.count("yes") / len(rated) if rated else None,
    }


def haystack_results(feedback: Iterable[Feedback], key: str) -> dict[str, Any]:
    """The scores of one key under Haystack's names: `individual_scores` (None where there is none) and `score`, their
    mean.
    """
    scores: Sequence[float | bool | None] = [one.score for one in feedback if one.key == key]
    known = [float(score) for score in scores if score is not None]
    return {"individual_scores": list(scores), "score": math.fsum(known) / len(known) if known else None}


def _rating(one: Feedback) -> str | None:
    if one.outcome != "score":
        return None
    return one.label if one.label is not None else "yes" if one.score else "no"
