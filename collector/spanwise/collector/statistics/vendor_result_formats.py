"""Results in the formats of Databricks, Haystack and H2O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spanwise.collector.records import Feedback
from spanwise.collector.statistics.feedback_tally import UNPARSED, Tally

AssessmentType = Literal["ANSWER", "RETRIEVAL"]

AVERAGE_JUDGES = frozenset({"safety"})  # judges whose aggregate Databricks names "average"; the others are percentages
# Metrics that need no judge: numbers that are computed from the expected documents
GROUND_TRUTH_METRICS = frozenset({"document_recall"})
RETRIEVAL_JUDGES = frozenset({"context_sufficiency"})  # judges that give one rating to the retrieved context as a whole
CHUNK_JUDGES = frozenset({"chunk_relevance"})  # judges that give one rating per chunk, and report the precision
DATABRICKS_NAMES: Mapping[str, str] = {"groundedness_judge": "groundedness"}
CUSTOM_PROMPT_PREFIX = "custom_judge "  # first part of the name of a custom judge's prompt; the version follows
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
    """Return the results of one judge under Databricks' names: lists with one entry per row, and one aggregate.

    - `response/llm_judged/{name}/rating` ("yes", "no", None), `…/rationale`, `…/error_message`, and
      `…/rating/percentage` (`…/rating/average` for safety), the share of yes over the rows that have a rating;
    - for "context_sufficiency" the same under `retrieval/llm_judged/…`;
    - for "chunk_relevance", and judges of `assessment_type` "RETRIEVAL" (None: derived from their results),
      `retrieval/llm_judged/{name}/ratings`, `…/rationales`, `…/error_messages` (a list per row, one entry per chunk),
      `…/precision`, and `…/precision/average` over the rows that have one;
    - for "document_recall", `retrieval/ground_truth/document_recall` and `…/average`.

    The aggregate is in [0, 1]. Missing values, errors and skips are None. Spanwise's key `groundedness_judge` is
    Databricks' "groundedness".
    """
    key = KEYS_BY_DATABRICKS_NAME.get(name, name)
    return _judge_results([row for row in feedback if row.key == key], key, assessment_type)


def databricks_table(runs: Iterable[Iterable[Feedback]]) -> dict[str, Any]:
    """Return the results of all yes/no judges in the format of `databricks_results`, with one entry per run in each
    list.

    If a run has several outcomes under one key, the newest counts. Human feedback and feedback on documents do not count.
    """
    judged: list[dict[str, Feedback]] = []
    for feedback in runs:
        rows = (row for row in feedback if row.source != "human" and row.target.document is None)
        judged.append({row.key: row for row in sorted(rows, key=lambda row: row.created_ns)})
    keys = {key for outcomes in judged for key, row in outcomes.items() if _is_databricks_judge(row)}
    table: dict[str, Any] = {}
    for key in sorted(keys):
        table |= _judge_results([outcomes.get(key) for outcomes in judged], key, None)
    return table


def haystack_results(feedback: Iterable[Feedback], key: str) -> dict[str, Any]:
    """Return the scores of one key under Haystack's names.

    These are `individual_scores` (None where a score is missing) and `score`, the mean.
    """
    rows = [row for row in feedback if row.key == key]
    return {"individual_scores": [row.score for row in rows], "score": _mean_score(rows)}


def _is_databricks_judge(row: Feedback) -> bool:
    """Return whether the feedback comes from a judge of Databricks or from another yes/no judge.

    Other yes/no judges are included, because Databricks' custom judges are of this kind.
    """
    if row.evaluator in DATABRICKS_JUDGES:
        return True
    of_yes_or_no = row.label in ("yes", "no") or "ratings" in row.metadata
    return row.source == "model" and (of_yes_or_no or (row.error is not None and _has_custom_prompt(row)))


def _has_custom_prompt(row: Feedback) -> bool:
    """Return whether the feedback names the prompt of a custom judge.

    This identifies a custom judge that failed on all rows and has therefore reported no yes or no.
    """
    judge = row.metadata.get("judge")
    prompts = judge.get("prompts") if isinstance(judge, Mapping) else None
    return any(
        str(prompt).startswith(CUSTOM_PROMPT_PREFIX) for prompt in (prompts if isinstance(prompts, list) else ())
    )


def _judge_results(rows: Sequence[Feedback | None], key: str, assessment_type: AssessmentType | None) -> dict[str, Any]:
    # A judge of Databricks is identified by its evaluator, regardless of the key
    judge = next((row.evaluator for row in rows if row and row.evaluator in DATABRICKS_JUDGES), key)
    if judge in GROUND_TRUTH_METRICS:
        stem = f"retrieval/ground_truth/{key}"
        return {stem: [row.score if row else None for row in rows], f"{stem}/average": _mean_score(rows)}
    if assessment_type is not None:
        rates_chunks = assessment_type == "RETRIEVAL"
    else:
        rates_chunks = judge in CHUNK_JUDGES or any(row is not None and "ratings" in row.metadata for row in rows)
    if rates_chunks:
        return _chunk_results(rows, f"retrieval/llm_judged/{key}")
    step = "retrieval" if judge in RETRIEVAL_JUDGES else "response"
    kind = "average" if judge in AVERAGE_JUDGES else "percentage"
    return _row_results(rows, f"{step}/llm_judged/{DATABRICKS_NAMES.get(key, key)}", kind)


def _row_results(rows: Sequence[Feedback | None], stem: str, kind: str) -> dict[str, Any]:
    ratings: list[str | None] = []
    for row in rows:
        if row is None or row.outcome != "score":
            ratings.append(None)
        else:
            ratings.append(row.label if row.label is not None else "yes" if row.score else "no")
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
            messages[place] = [row.error]  # the judge failed before it rated a chunk
    precision = [row.score if row else None for row in rows]
    return {**lists, f"{stem}/precision": precision, f"{stem}/precision/average": _mean_score(rows)}


def _mean_score(rows: Iterable[Feedback | None]) -> float | None:
    tally = Tally()
    for row in rows:
        if row is not None:
            tally.add(row)
    return tally.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanRates:
    """Rates in [0, 1] over `cases`, with passes + failures + parse_failures = 1. All are None without cases.

    The rate `retrieval_failures` is over the cases whose context was judged, and None if there are none. The rate of
    `generation_failures` is over all cases. Cases with another error and skipped cases are not part of `cases`. They
    are counted in `failed` and `skipped`.
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
            # earlier versions recorded an unparsable judgement as an error
            errors += row.outcome == "error" and str(row.error).startswith(UNPARSED)
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


def _rate(count: int, total: int) -> float | None:
    return count / total if total else None
