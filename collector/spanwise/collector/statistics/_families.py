"""H2O's boolean families: rates over all cases that were judged, or could not be because nothing could be parsed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spanwise.collector.records import Feedback
from spanwise.collector.statistics._tally import UNPARSED, Tally


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
    tallies = {key: Tally(passes=bool) for key in (id, f"{id}_retrieval_fail", f"{id}_generation_fail")}
    unparsed = errors = 0
    for row in feedback:
        if row.key in tallies:
            tallies[row.key].add(row)
        if row.key == id:
            unparsed += row.label == UNPARSED
            errors += row.outcome == "error" and str(row.error).startswith(UNPARSED)  # as earlier versions said it
    passes, retrieval, generation = tallies.values()
    cases = passes.n + errors
    return Family(
        cases=cases,
        passes=_share(passes.passed, cases),
        failures=_share(passes.n - passes.passed - unparsed, cases),
        retrieval_failures=retrieval.share,
        generation_failures=_share(generation.passed, cases),
        parse_failures=_share(unparsed + errors, cases),
        failed=passes.failed - errors,
        skipped=passes.skipped,
    )


def _share(count: int, of: int) -> float | None:
    return count / of if of else None
