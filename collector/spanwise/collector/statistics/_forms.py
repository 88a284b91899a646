"""The same results in the forms that Databricks' and Haystack's users know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from spanwise.collector.records import Feedback
from spanwise.collector.statistics._tally import Tally

AssessmentType = Literal["ANSWER", "RETRIEVAL"]

AVERAGES = frozenset({"safety"})  # whose set value Databricks calls an average; the others are percentages
GROUND_TRUTH = frozenset({"document_recall"})  # no judge's: numbers, by documents that were expected
OF_RETRIEVAL = frozenset({"context_sufficiency"})  # one rating, but of what was retrieved
OF_CHUNKS = frozenset({"chunk_relevance"})  # a rating per chunk, and their precision
THEIR_NAMES: Mapping[str, str] = {"groundedness_judge": "groundedness"}
CUSTOM = "custom_judge "  # how prompts of custom judges are called, before their version
OUR_KEYS: Mapping[str, str] = {theirs: key for key, theirs in THEIR_NAMES.items()}
JUDGES = (
    AVERAGES
    | GROUND_TRUTH
    | OF_RETRIEVAL
    | OF_CHUNKS
    | {
        "correctness",
        "global_guideline_adherence",
        "groundedness_judge",
        "guideline_adherence",
        "relevance_to_query",
    }
)


def databricks_results(
    feedback: Iterable[Feedback], name: str, assessment_type: AssessmentType | None = None
) -> dict[str, Any]:
    """The results of one judge under Databricks' names: lists over rows, and one value for the set, in [0, 1].

    - `response/llm_judged/{name}/rating` ("yes", "no", None), `…/rationale`, `…/error_message`, and
      `…/rating/percentage` (`…/rating/average` for safety), the share of yes over the rows that have a rating;
    - of "context_sufficiency" the same under `retrieval/llm_judged/…`;
    - of "chunk_relevance", and of judges of `assessment_type` "RETRIEVAL" (None: told by what they said),
      `retrieval/llm_judged/{name}/ratings`, `…/rationales`, `…/error_messages` (a list per row, one entry per chunk),
      `…/precision`, and `…/precision/average` over the rows that have one;
    - of "document_recall", `retrieval/ground_truth/document_recall` and `…/average`.

    What a row has not, an error or a skip, is None. Our key `groundedness_judge` is their "groundedness".
    """
    key = OUR_KEYS.get(name, name)
    return _results([row for row in feedback if row.key == key], key, assessment_type)


def databricks_table(runs: Iterable[Iterable[Feedback]]) -> dict[str, Any]:
    """What all judges that say yes or no said of runs, as `databricks_results`: lists with one entry per run.

    Of several outcomes under one key the newest counts; people's votes do not.
    """
    judged = [_newest(feedback) for feedback in runs]
    keys = {key for outcomes in judged for key, row in outcomes.items() if _is_theirs(row)}
    table: dict[str, Any] = {}
    for key in sorted(keys):
        table |= _results([outcomes.get(key) for outcomes in judged], key, None)
    return table


def haystack_results(feedback: Iterable[Feedback], key: str) -> dict[str, Any]:
    """The scores of one key under Haystack's names: `individual_scores` (None where there is none) and `score`, their
    mean.
    """
    rows = [row for row in feedback if row.key == key]
    return {"individual_scores": [row.score for row in rows], "score": _mean(rows)}


def _newest(feedback: Iterable[Feedback]) -> dict[str, Feedback]:
    """By key; of judges, and not of people who have voted under the same key."""
    said = (row for row in feedback if row.source != "human" and row.target.document is None)
    return {row.key: row for row in sorted(said, key=lambda row: row.created_ns)}


def _is_theirs(row: Feedback) -> bool:
    """Whether it is of one of Databricks' judges, or of another that says yes or no, as its custom judges do."""
    if row.evaluator in JUDGES:
        return True
    of_yes_or_no = row.label in ("yes", "no") or "ratings" in row.metadata
    return row.source == "model" and (of_yes_or_no or (row.error is not None and _asked_by_custom(row)))


def _asked_by_custom(row: Feedback) -> bool:
    """By the prompt, which a failure names, too: a judge that failed on all rows has said neither yes nor no."""
    judge = row.metadata.get("judge")
    prompts = judge.get("prompts") if isinstance(judge, Mapping) else None
    return any(str(prompt).startswith(CUSTOM) for prompt in (prompts if isinstance(prompts, list) else ()))


def _results(rows: Sequence[Feedback | None], key: str, assessment_type: AssessmentType | None) -> dict[str, Any]:
    judge = next((row.evaluator for row in rows if row and row.evaluator in JUDGES), key)  # whatever its key
    if judge in GROUND_TRUTH:
        stem = f"retrieval/ground_truth/{key}"
        return {stem: [row.score if row else None for row in rows], f"{stem}/average": _mean(rows)}
    if _is_of_chunks(rows, judge, assessment_type):
        return _of_chunks(rows, f"retrieval/llm_judged/{key}")
    step = "retrieval" if judge in OF_RETRIEVAL else "response"
    kind = "average" if judge in AVERAGES else "percentage"
    return _of_rows(rows, f"{step}/llm_judged/{THEIR_NAMES.get(key, key)}", kind)


def _of_rows(rows: Sequence[Feedback | None], stem: str, kind: str) -> dict[str, Any]:
    ratings = [_rating(row) for row in rows]
    rated = [rating for rating in ratings if rating is not None]
    return {
        f"{stem}/rating": ratings,
        f"{stem}/rationale": [row.comment if row and row.outcome == "score" else None for row in rows],
        f"{stem}/error_message": [row.error if row else None for row in rows],
        f"{stem}/rating/{kind}": rated.count("yes") / len(rated) if rated else None,
    }


def _of_chunks(rows: Sequence[Feedback | None], stem: str) -> dict[str, Any]:
    lists = {
        f"{stem}/{name}": [row.metadata.get(name) if row else None for row in rows]
        for name in ("ratings", "rationales", "error_messages")
    }
    messages = lists[f"{stem}/error_messages"]
    for place, row in enumerate(rows):
        if row is not None and row.error is not None and messages[place] is None:
            messages[place] = [row.error]  # no chunk was come to
    precision = [row.score if row else None for row in rows]
    return {**lists, f"{stem}/precision": precision, f"{stem}/precision/average": _mean(rows)}


def _is_of_chunks(rows: Iterable[Feedback | None], judge: str, assessment_type: AssessmentType | None) -> bool:
    if assessment_type is not None:
        return assessment_type == "RETRIEVAL"
    return judge in OF_CHUNKS or any(row is not None and "ratings" in row.metadata for row in rows)


def _mean(rows: Iterable[Feedback | None]) -> float | None:
    tally = Tally()
    for row in rows:
        if row is not None:
            tally.add(row)
    return tally.mean


def _rating(row: Feedback | None) -> str | None:
    if row is None or row.outcome != "score":
        return None
    return row.label if row.label is not None else "yes" if row.score else "no"
