"""The same results in the forms that Databricks' and Haystack's users know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from assay.collector.records import Feedback
from assay.collector.statistics._tally import Tally

AVERAGES = frozenset({"safety"})  # whose set value Databricks calls an average; the others are percentages
GROUND_TRUTH = frozenset({"document_recall"})  # no judge's: numbers, by documents that were expected


def databricks_results(feedback: Iterable[Feedback], name: str) -> dict[str, Any]:
    """The results of one judge under Databricks' names: lists over rows, and the share of yes.

    `response/llm_judged/{name}/rating` ("yes", "no", None), `…/rationale`, `…/error_message`, and
    `…/rating/percentage` (`…/rating/average` for safety) in [0, 1], over the rows that have a rating. Of
    "document_recall", `retrieval/ground_truth/document_recall` (None where it is undefined) and `…/average`.
    """
    if name in GROUND_TRUTH:
        scores = haystack_results(feedback, name)
        stem = f"retrieval/ground_truth/{name}"
        return {stem: scores["individual_scores"], f"{stem}/average": scores["score"]}
    rows = [row for row in feedback if row.key == name]
    ratings = [_rating(row) for row in rows]
    rated = [rating for rating in ratings if rating is not None]
    stem = f"response/llm_judged/{name}"
    kind = "average" if name in AVERAGES else "percentage"
    return {
        f"{stem}/rating": ratings,
        f"{stem}/rationale": [row.comment if row.outcome == "score" else None for row in rows],
        f"{stem}/error_message": [row.error if row.outcome == "error" else None for row in rows],
        f"{stem}/rating/{kind}": rated.count("yes") / len(rated) if rated else None,
    }


def haystack_results(feedback: Iterable[Feedback], key: str) -> dict[str, Any]:
    """The scores of one key under Haystack's names: `individual_scores` (None where there is none) and `score`, their
    mean.
    """
    rows, tally = [row for row in feedback if row.key == key], Tally()
    for row in rows:
        tally.add(row)
    return {"individual_scores": [row.score for row in rows], "score": tally.mean}


def _rating(row: Feedback) -> str | None:
    if row.outcome != "score":
        return None
    return row.label if row.label is not None else "yes" if row.score else "no"
