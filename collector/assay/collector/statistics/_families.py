"""H2O's boolean families: rates over all cases that were judged, or could not be because nothing could be parsed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from assay.collector.records import Feedback

PARSE = "parse failure"  # how the error of a case begins whose judgement could not be parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rates in [0, 1] over `cases`: passes + failures + parse_failures = 1; all None when there are no cases.

    `retrieval_failures` are over the cases whose context was judged, None without any; `generation_failures` over all.
    Cases with another error, or skipped, are in neither rate and counted in `failed` and `skipped`.
    """

    cases: int
    passes: float | None
    failures: float | None
    retrieval_failures: float | None
    generation_failures: float | None
    parse_failures: float | None
    failed: int
    skipped: int


def boolean_family(feedback: Iterable[Feedback], id: str) -> Family:
    """The rates of the family whose keys begin with `id` ("pii": `pii`, `pii_fail`, `pii_retrieval_fail`, …)."""
    rows: dict[str, list[Feedback]] = {}
    for one in feedback:
        rows.setdefault(one.key, []).append(one)
    passes = rows.get(id, [])
    verdicts = [bool(one.score) for one in passes if one.outcome == "score" and one.score is not None]
    unparsed = sum(one.outcome == "error" and str(one.error).startswith(PARSE) for one in passes)
    cases = len(verdicts) + unparsed
    return Family(
        cases=cases,
        passes=_share(sum(verdicts), cases),
        failures=_share(len(verdicts) - sum(verdicts), cases),
        retrieval_failures=_mean(rows.get(f"{id}_retrieval_fail", [])),
        generation_failures=_share(_true(rows.get(f"{id}_generation_fail", [])), cases),
        parse_failures=_share(unparsed, cases),
        failed=sum(one.outcome == "error" for one in passes) - unparsed,
        skipped=sum(one.outcome == "skip" for one in passes),
    )


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _true(rows: list[Feedback]) -> int:
    return sum(bool(one.score) for one in rows if one.outcome == "score")


def _mean(rows: list[Feedback]) -> float | None:
    return _share(_true(rows), sum(one.outcome == "score" for one in rows))
