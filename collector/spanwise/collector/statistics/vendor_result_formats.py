"""Results in the formats of Databricks, Haystack and H2O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spanwise.collector.records import Feedback
from spanwise.collector.statistics.feedback_tally import UNPARSED, Tally

AssessmentType = Literal["ANSWER", "RETRIEVAL"]

AVERAGE_JUDGES = frozenset({"safety"})  # judges whose aggregate Databricks names "average"; the others are percentages
# Metrics without a judge: numbers, computed from expected documents
GROUND_TRUTH_METRICS = frozenset({"document_recall"})
RETRIEVAL_JUDGES = frozenset({"context_sufficiency"})  # judges with one rating, but on the retrieved context
CHUNK_JUDGES = frozenset({"chunk_relevance"})  # judges with one rating per chunk, and their precision
DATABRICKS_NAMES: Mapping[str, str] = {"groundedness_judge": "groundedness"}
CUSTOM_PROMPT_PREFIX = "custom_judge "  # name of the prompt of custom judges, before its version
KEYS_BY_DATABRICKS_NAME: Mapping[str, str] = {theirs: key for key, theirs in DATABRICKS_NAMES.items()}
DATABRICKS_JUDGES = (
    AVERAGE_JUDGES
    | GROUND_TRUTH_METRICS
    | RETRIEVAL_JUDGES
    | CHUNK_JUDGES
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
    """Return the results of one judge under Databricks' names: lists over rows, and one value in [0, 1] for the set.

    - `response/llm_judged/{name}/rating` ("yes", "no", None), `…/rationale`, `…/error_message`, and
      `…/rating/percentage` (`…/rating/average` for safety), the share of yes over the rows that have a rating;
    - for "context_sufficiency" the same under `retrieval/llm_judged/…`;
    - for "chunk_relevance", and judges of `assessment_type` "RETRIEVAL" (None: derived from their results),
      `retrieval/llm_judged/{name}/ratings`, `…/rationales`, `…/error_messages` (a list per row, one entry per chunk),
      `…/precision`, and `…/precision/average` over the rows that have one;
    - for "document_recall", `retrieval/ground_truth/document_recall` and `…/average`.

    Missing values, errors and skips are None. Our key `groundedness_judge` is their "groundedness".
    """
    key = KEYS_BY_DATABRICKS_NAME.get(name, name)
    return _judge_results([row for row in feedback if row.key == key], key, assessment_type)


def databricks_table(runs: Iterable[Iterable[Feedback]]) -> dict[str, Any]:
    """Return the results of all yes/no judges of runs in the format of `databricks_results`: lists with one entry per
    run.

    Of several outcomes under one key the newest counts; human feedback does not count.
    """
    judged = [_latest_by_key(feedback) for feedback in runs]
    keys = {key for outcomes in judged for key, row in outcomes.items() if _is_databricks_judge(row)}
    table: dict[str, Any] = {}
    for key in sorted(keys):
        table |= _judge_results([outcomes.get(key) for outcomes in judged], key, None)
    return table


def haystack_results(feedback: Iterable[Feedback], key: str) -> dict[str, Any]:
    """Return the scores of one key under Haystack's names: `individual_scores` (None where missing) and `score`, their
    mean.
    """
    rows = [row for row in feedback if row.key == key]
    return {"individual_scores": [row.score for row in rows], "score": _mean_score(rows)}


def _latest_by_key(feedback: Iterable[Feedback]) -> dict[str, Feedback]:
    """Return the newest feedback by key, without human feedback under the same key."""
    said = (row for row in feedback if row.source != "human" and row.target.document is None)
    return {row.key: row for row in sorted(said, key=lambda row: row.created_ns)}


def _is_databricks_judge(row: Feedback) -> bool:
    """Return whether the feedback is of one of Databricks' judges, or of another yes/no judge, as its custom judges
    are.
    """
    if row.evaluator in DATABRICKS_JUDGES:
        return True
    of_yes_or_no = row.label in ("yes", "no") or "ratings" in row.metadata
    return row.source == "model" and (of_yes_or_no or (row.error is not None and _has_custom_prompt(row)))


def _has_custom_prompt(row: Feedback) -> bool:
    """Return whether the prompt is that of a custom judge. A failure also names it, although a judge that failed on all
    rows has no yes or no.
    """
    judge = row.metadata.get("judge")
    prompts = judge.get("prompts") if isinstance(judge, Mapping) else None
    return any(
        str(prompt).startswith(CUSTOM_PROMPT_PREFIX) for prompt in (prompts if isinstance(prompts, list) else ())
    )


def _judge_results(rows: Sequence[Feedback | None], key: str, assessment_type: AssessmentType | None) -> dict[str, Any]:
    # Regardless of its key
    judge = next((row.evaluator for row in rows if row and row.evaluator in DATABRICKS_JUDGES), key)
    if judge in GROUND_TRUTH_METRICS:
        stem = f"retrieval/ground_truth/{key}"
        return {stem: [row.score if row else None for row in rows], f"{stem}/average": _mean_score(rows)}
    if _is_chunk_judge(rows, judge, assessment_type):
        return _chunk_results(rows, f"retrieval/llm_judged/{key}")
    step = "retrieval" if judge in RETRIEVAL_JUDGES else "response"
    kind = "average" if judge in AVERAGE_JUDGES else "percentage"
    return _row_results(rows, f"{step}/llm_judged/{DATABRICKS_NAMES.get(key, key)}", kind)


def _row_results(rows: Sequence[Feedback | None], stem: str, kind: str) -> dict[str, Any]:
    ratings = [_rating(row) for row in rows]
    rated = [rating for rating in ratings if rating is not None]
    return {
        f"{stem}/rating": ratings,
        f"{stem}/rationale": [row.comment if row and row.outcome == "score" else None for row in rows],
        f"{stem}/error_message": [row.error if row else None for row in rows],
        f"{stem}/rating/{kind}": rated.count("yes") / len(rated) if rated else None,
    }


def _chunk_results(rows: Sequence[Feedback | None], stem: str) -> dict[str, Any]:
    lists = {
        f"{stem}/{name}": [row.metadata.get(name) if row else None for row in rows]
        for name in ("ratings", "rationales", "error_messages")
    }
    messages = lists[f"{stem}/error_messages"]
    for place, row in enumerate(rows):
        if row is not None and row.error is not None and messages[place] is None:
            messages[place] = [row.error]  # failed before any chunk
    precision = [row.score if row else None for row in rows]
    return {**lists, f"{stem}/precision": precision, f"{stem}/precision/average": _mean_score(rows)}


def _is_chunk_judge(rows: Iterable[Feedback | None], judge: str, assessment_type: AssessmentType | None) -> bool:
    if assessment_type is not None:
        return assessment_type == "RETRIEVAL"
    return judge in CHUNK_JUDGES or any(row is not None and "ratings" in row.metadata for row in rows)


def _mean_score(rows: Iterable[Feedback | None]) -> float | None:
    tally = Tally()
    for row in rows:
        if row is not None:
            tally.add(row)
    return tally.mean


def _rating(row: Feedback | None) -> str | None:
    if row is None or row.outcome != "score":
        return None
    return row.label if row.label is not None else "yes" if row.score else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanRates:
    """Rates in [0, 1] over `cases`: passes + failures + parse_failures = 1; all None without cases.

    `retrieval_failures` is over the cases whose context was judged, None without any; `generation_failures` is over all. Cases with another error, and skipped cases, are in neither rate. They are counted in `failed` and `skipped`.
    """

    cases: int
    passes: float | None
    failures: float | None
    retrieval_failures: float | None
    generation_failures: float | None
    parse_failures: float | None
    failed: int
    skipped: int


def compute_boolean_rates(feedback: Iterable[Feedback], id: str) -> BooleanRates:
    """Return the rates of the family whose keys begin with `id` ("pii": `pii`, `pii_fail`, `pii_retrieval_fail`, …)."""
    tallies = {key: Tally(passes=bool) for key in (id, f"{id}_retrieval_fail", f"{id}_generation_fail")}
    unparsed = errors = 0
    for row in feedback:
        if row.key in tallies:
            tallies[row.key].add(row)
        if row.key == id:
            unparsed += row.label == UNPARSED
            errors += row.outcome == "error" and str(row.error).startswith(UNPARSED)  # format of earlier versions
    passes, retrieval, generation = tallies.values()
    cases = passes.n + errors
    return BooleanRates(
        cases=cases,
        passes=_rate(passes.passed, cases),
        failures=_rate(passes.n - passes.passed - unparsed, cases),
        retrieval_failures=retrieval.share,
        generation_failures=_rate(generation.passed, cases),
        parse_failures=_rate(unparsed + errors, cases),
        failed=passes.failed - errors,
        skipped=passes.skipped,
    )


def _rate(count: int, of: int) -> float | None:
    return count / of if of else None
