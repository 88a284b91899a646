"""Weighted percentiles of rules' scores, with Woodruff's interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spanwise.collector.records import WeightedScore
from spanwise.collector.statistics.survey_sampling import MIN_SHOWN_EFFECTIVE, estimate_means, estimate_share_error

_TOLERANCE = 1e-12  # of cumulative shares


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPercentile:
    """Estimated percentile of the scores under one key, over all targets that a rule could have evaluated.

    `value` is the smallest score such that at least `percent` % of the weight is at or below it. The 95 % interval
    extends from `low` to `high`; it is None if the spread of the scores is unknown. Counts are as in `SampledMean`.
    """

    key: str
    percent: float
    value: float | None
    low: float | None
    high: float | None
    n: int
    effective: float
    unknown: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def too_few(self) -> bool:
        """Return whether there are so few scores that the percentile is displayed as uncertain."""
        return self.n > 0 and self.effective < MIN_SHOWN_EFFECTIVE


def estimate_percentiles(scores: Iterable[WeightedScore], percent: float) -> list[SampledPercentile]:
    """Return, per key in alphabetical order, a percentile of the scores with weights 1/p, and its interval.

    The interval is Woodruff's (1952): that of the share of scores at or below the percentile, whose two ends are read
    off the scores. Its width comes from the variance of `estimate_means`. Raises `ValueError` for a percent that is not
    between 0 and 100.
    """
    if not 0 < percent < 100:
        raise ValueError(f"a percentile needs a percent above 0 and below 100, got {percent!r}")
    by_key: dict[str, list[WeightedScore]] = {}
    for row in scores:
        by_key.setdefault(row.key, []).append(row)
    return [_estimate_percentile(key, by_key[key], percent) for key in sorted(by_key)]


def _estimate_percentile(key: str, rows: Sequence[WeightedScore], percent: float) -> SampledPercentile:
    pairs = sorted(
        (float(row.score), 1 / row.probability)
        for row in rows
        if row.outcome == "score" and row.score is not None and row.probability
    )
    weights = list(accumulate(weight for _, weight in pairs))
    value = _read_percentile(pairs, weights, percent / 100)
    indicators = [
        _replace_score(row, None if row.score is None or value is None else float(row.score <= value)) for row in rows
    ]
    [share] = estimate_means(indicators)
    half = None if value is None else estimate_share_error(indicators, percent / 100)
    return SampledPercentile(
        key=key,
        percent=percent,
        value=value,
        low=None if half is None else _read_percentile(pairs, weights, max(0.0, percent / 100 - half)),
        high=None if half is None else _read_percentile(pairs, weights, min(1.0, percent / 100 + half)),
        n=share.n,
        effective=share.effective,
        unknown=share.unknown,
        failed=share.failed,
        skipped=share.skipped,
    )


def _replace_score(row: WeightedScore, score: float | None) -> WeightedScore:
    return WeightedScore(
        trace_id=row.trace_id,
        session_id=row.session_id,
        key=row.key,
        score=score,
        probability=row.probability,
        created_ns=row.created_ns,
        start_ns=row.start_ns,
        outcome=row.outcome,
    )


def _read_percentile(pairs: Sequence[tuple[float, float]], weights: Sequence[float], share: float) -> float | None:
    """Return the smallest score such that at least this share of the weight is at or below it."""
    if not pairs:
        return None
    wanted = share * weights[-1] * (1 - _TOLERANCE)
    return next(score for (score, _), weight in zip(pairs, weights, strict=True) if weight >= wanted)
