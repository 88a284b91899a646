"""Per key: how many scores, their mean, minimum and maximum, what failed, what was skipped, what share passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics._tally import Passes, Tally, true_passes


def summarise(feedback: Iterable[Feedback], passes: Mapping[str, Passes] | None = None) -> dict[str, FeedbackStats]:
    """Statistics per key, by key. `passes` says per key whether a score passes; booleans pass when true elsewhere.

    Every row counts: take `newest` first where rows may repeat each other.
    """
    known = passes or {}
    tallies: dict[str, Tally] = {}
    for row in feedback:
        if row.key not in tallies:
            tallies[row.key] = Tally(known.get(row.key, true_passes))
        tallies[row.key].add(row)
    return {key: tallies[key].stats(key) for key in sorted(tallies)}
