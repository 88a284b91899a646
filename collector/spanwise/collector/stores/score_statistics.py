"""Statistics over stored scores: agreement of judges with people, means of rules, two versions of an application."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from spanwise.collector.alert_policy import GROUPING_FIELDS
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.records import JSON, Experiment, Feedback, Rule, Source, Target, WeightedScore, iterate_pages
from spanwise.collector.statistics import (
    GRAIN_S,
    CorrectedMean,
    JudgeCheck,
    SampledMean,
    SampledPercentile,
    VersionDifference,
    VersionScore,
    check_judge,
    compare_versions,
    estimate_means,
    estimate_percentiles,
    estimate_ppi_mean,
    estimate_sums,
)
from spanwise.collector.stores.store_interfaces import ControlStore, Store, TraceStore

# Statistics over stored scores: agreement of judges with people, weighted means and percentiles of rules.

MAX_LABELS = 1_000  # maximum number of human labels per key, newest first
_TRACES_PER_QUERY = 100  # traces per query; their ids are part of a URL


class JudgeAgreement:
    """Agreement of judges with human feedback. Each query is sent once, so create one instance per request or table."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._read: dict[str, tuple[list[Feedback], list[Feedback]]] = {}
        self._checked: dict[tuple[str, str | None], JudgeCheck] = {}

    def of(self, key: str, version: str | None = None) -> JudgeCheck:
        """Compare a version of a judge (None: the newest) with human feedback under the same key."""
        if (key, version) not in self._checked:
            if key not in self._read:
                votes = list_human_feedback(self._store, key)
                self._read[key] = list(list_judge_scores(self._store, key, [vote.target for vote in votes])), votes
            self._checked[key, version] = check_judge(*self._read[key], version)
        return self._checked[key, version]

    def said(self, judges: Mapping[str, str | None]) -> dict[str, str]:
        """Return a sentence on the agreement for each judge, given by key and version."""
        return {key: str(self.of(key, version).agreement) for key, version in judges.items()}


def get_judge_keys(experiment: Experiment) -> dict[str, str | None]:
    """Return the keys that judges score, with the judges' versions, from the experiment's list of evaluators."""
    return {
        str(metric["key"]): version if isinstance(version := evaluator.get("version"), str) else None
        for evaluator in experiment.evaluators
        if evaluator.get("source") == "model" and isinstance(metrics := evaluator.get("metrics"), list)
        for metric in metrics
        if isinstance(metric, Mapping) and "key" in metric
    }


def list_human_feedback(store: TraceStore, key: str, most: int = MAX_LABELS) -> list[Feedback]:
    """Return human feedback under a key, newest first."""
    return list(islice(iterate_pages(partial(store.feedbacks, key=key, source="human", limit=MAX_LABELS)), most))


def list_judge_scores(
    store: TraceStore, key: str, targets: Sequence[Target], source: Source = "model"
) -> Iterator[Feedback]:
    """Yield scores of models (or code) under a key on these targets or on other parts of the same traces."""
    traces = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id is not None))
    for start in range(0, len(traces), _TRACES_PER_QUERY):
        ids = tuple(traces[start : start + _TRACES_PER_QUERY])
        yield from iterate_pages(partial(store.feedbacks, key=key, source=source, trace_ids=ids, limit=MAX_LABELS))
    for target in dict.fromkeys(target for target in targets if target.trace_id is None):
        yield from store.feedbacks(key=key, source=source, target=target, limit=MAX_LABELS)


MAX_OUTCOMES = 100_000  # maximum number of outcomes per rule; those of the latest traces are read first
_PAGE_SIZE = 1_000


def summarize_rule(
    store: ControlStore,
    rule: Rule,
    *,
    key: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    most: int = MAX_OUTCOMES,
) -> list[SampledMean]:
    """Return, for each key, the weighted mean of the scores of this version of a rule, with its interval.

    `since_ns` and `until_ns` select traces by start time, so a late score counts for the day of its trace. If there are
    more than `most` outcomes, only those of the latest traces are read.
    """
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = partial(ask, since_ns=since_ns, until_ns=until_ns, limit=min(most, _PAGE_SIZE))
    return estimate_means(islice(iterate_pages(pages), most))


GRAIN_NS = GRAIN_S * 10**9  # sums of scores exist for multiples of this time
MAX_CORRECTED_SCORES = 5_000  # newest scores of a judge whose mean is corrected
NO_PROBABILITY = "no label has a sampling probability; collect labels with `spanwise judges label`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePoint:
    """Estimate of one key over the traces that started in [start_ns, start_ns + width_ns).

    With a `label`, the estimate is its share among all labelled scores. `group` is the value of the field by which the
    points are grouped.
    """

    start_ns: int
    width_ns: int
    label: str | None = None
    group: str | None = None
    estimate: SampledMean | SampledPercentile


def estimate_over_time(
    store: ControlStore,
    rule: Rule,
    *,
    since_ns: int,
    until_ns: int,
    bucket_ns: int,
    key: str | None = None,
    by: str | None = None,
    groups: Sequence[str] = (),
) -> list[ScorePoint]:
    """Return the weighted mean of each key, and the share of each label, in equal buckets of a window.

    Each point equals `summarize_rule` over the same span: its scores are those of this version of the rule, of traces
    that started in the bucket. The times are multiples of `GRAIN_NS`. The points are in the order of group, key, label
    and time; buckets without outcomes are left out.
    """
    sums = store.score_sums(
        rule.name,
        project=rule.project,
        key=key,
        version=rule.version,
        since_ns=since_ns,
        until_ns=until_ns,
        block_s=bucket_ns // 10**9,
        by=by,
        groups=groups,
        joined=False,
    )
    return [
        ScorePoint(
            start_ns=one.start_ns,
            width_ns=bucket_ns,
            label=one.label,
            group=one.group,
            estimate=estimate_sums([one])[0],
        )
        for one in sums
    ]


def estimate_percentiles_over_time(
    store: ControlStore,
    rule: Rule,
    percent: float,
    *,
    since_ns: int,
    until_ns: int,
    bucket_ns: int,
    key: str | None = None,
    most: int = MAX_OUTCOMES,
) -> list[ScorePoint]:
    """Return a weighted percentile of the scores of each key, in equal buckets of a window.

    Reads the scores themselves: those of the latest traces, if there are more than `most` outcomes. Raises `ValueError`
    for a percent that is not between 0 and 100.
    """
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = partial(ask, since_ns=since_ns, until_ns=until_ns, limit=min(most, _PAGE_SIZE))
    by_bucket = defaultdict(list)
    for row in islice(iterate_pages(pages), most):
        by_bucket[(row.start_ns - since_ns) // bucket_ns].append(row)
    return sorted(
        (
            ScorePoint(start_ns=since_ns + bucket * bucket_ns, width_ns=bucket_ns, estimate=estimate)
            for bucket, rows in by_bucket.items()
            for estimate in estimate_percentiles(rows, percent)
        ),
        key=lambda point: (point.estimate.key, point.start_ns),
    )


def correct_judge_mean(store: TraceStore, check: JudgeCheck, key: str) -> CorrectedMean | None:
    """Return the mean of human labels that a judge's scores and the labels on some of them imply; None without labels.

    It is the estimate of `spanwise.evaluators.corrected_mean` for the newest `MAX_CORRECTED_SCORES` scores of this
    version of the judge. Labels that were not drawn with a probability are left out, unless all scores are labelled.
    """
    pairs = [
        pair for pair in check.pairs if isinstance(pair.judged, float | int) and isinstance(pair.people, float | int)
    ]
    if not pairs:
        return None
    values: dict[Target, float] = {}
    ask = partial(store.feedbacks, key=key, source="model", limit=_PAGE_SIZE)
    for row in islice(iterate_pages(ask), MAX_CORRECTED_SCORES):
        if row.version == check.version and row.score is not None:
            values.setdefault(row.target, float(row.score))
    is_random = len(pairs) >= len(values)
    used = [pair for pair in pairs if is_random or pair.probability is not None]
    scores = list(values.values())
    if not used or len(used) > len(scores):
        judge = sum(scores) / len(scores) if scores else None
        counts = {"judge": judge, "votes": len(pairs), "cases": len(scores)}
        return CorrectedMean(mean=None, low=None, high=None, method="none", why=NO_PROBABILITY, **counts)  # type: ignore[arg-type]
    labels = [
        (float(pair.judged), float(pair.people), 1.0 if is_random or pair.probability is None else pair.probability)
        for pair in used
    ]
    return estimate_ppi_mean(scores, labels)


# Comparison of two versions of an application by the scores that one rule gave to live traffic.

VERSION_FIELDS = GROUPING_FIELDS  # and `metadata.KEY`
MAX_VERSION_SCORES = 100_000  # scores of the rule that are read, those of the latest traces first
MIN_SHARED = 0.8  # share of each version's scores in hours in which the other has scores, too
_VERSION_TRACES_PER_QUERY = 500
_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVersions:
    """Two versions, `a` and `b`, as traces with two values of the field `by`.

    `shared` is the share of each version's scores in hours in which the other one has scores, too, the smaller of the
    two. Left out are scores of traces of both versions (`of_both`), and scores without a known sampling probability
    (`unknown`). `differences` has a conclusion for each key.
    """

    rule: str
    by: str
    a: str
    b: str
    shared: float
    of_both: int
    unknown: int
    differences: Mapping[str, VersionDifference]

    @property
    def ran_together(self) -> bool:
        """Return whether both versions ran in the same hours."""
        return self.shared >= MIN_SHARED

    def describe_hours(self) -> str:
        """Return a sentence that says whether both versions ran in the same hours."""
        if not any(each.difference is not None for each in self.differences.values()):
            return "At least one version has no scores."
        percent = f"{100 * self.shared:.0f} %"
        if self.ran_together:
            return f"Both versions ran in the same hours ({percent} of the scores or more)."
        return (
            f"This is a before-and-after comparison: only {percent} of the scores of one version are from hours in which "
            "the other ran, too. Other things have changed as well."
        )


def compare_rule_versions(
    store: Store,
    rule: Rule,
    *,
    by: str,
    a: str,
    b: str,
    key: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    margin: float | None = None,
    scale: tuple[float, float] | None = None,
    rising: Mapping[str, bool] | None = None,
) -> RuleVersions:
    """Compare the scores that a rule gave to traces of two versions, key by key.

    `by` is the field that tells the versions: one of `VERSION_FIELDS`, or `metadata.KEY`. `since_ns` and `until_ns`
    select traces by their start. `scale` are the lowest and the highest possible score; None takes those
    that the rule records for a key, otherwise 0 and 1. `rising` tells per key whether a higher score is better; for
    other keys, the rule's record does. Without either, conclusions say only "higher" and "lower".

    Scores are weighted as in `summarize_rule`; a user is a cluster, otherwise a session, otherwise a trace. Raises
    `Refused` for an unknown field, equal versions, a rule whose targets are sessions, a margin below 0, an empty scale,
    and scores outside the scale.
    """
    if margin is not None and not margin >= 0:
        raise Refused(f"margin must be a number >= 0, got {margin!r}")
    if scale is not None and not scale[0] < scale[1]:
        raise Refused(f"scale must be a lower and a higher score, got {scale!r}")
    metrics = {str(metric.get("key")): metric for metric in rule.metrics}
    directions = {key: metric.get("higher_is_better") is not False for key, metric in metrics.items()}
    directions |= rising or {}
    scales: dict[str, tuple[float, float]] = {}
    conditions = {value: extend_filter(None, make_version_condition(by, value)) for value in (a, b)}
    if a == b:
        raise Refused(f"a and b are the same version, {a!r}; name two versions")
    if rule.target == "session":
        raise Refused(
            f"rule {rule.name!r} scores sessions, which belong to no version; name a rule of traces, spans or documents"
        )
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = iterate_pages(partial(ask, since_ns=since_ns, until_ns=until_ns, limit=1000))
    scores = [score for score in islice(pages, MAX_VERSION_SCORES) if score.outcome == "score"]
    clusters = [_find_clusters(store, conditions[value], scores) for value in (a, b)]
    of_both = clusters[0].keys() & clusters[1].keys()
    sides: dict[str, tuple[list[VersionScore], list[VersionScore]]] = {}
    unknown = 0
    for score in scores:
        trace_id = score.trace_id or ""
        side = 0 if trace_id in clusters[0] else 1
        if score.score is None or score.probability == 0 or trace_id in of_both or trace_id not in clusters[side]:
            continue
        if score.probability is None:
            unknown += 1
            continue
        value = float(score.score)
        if score.key not in scales:
            scales[score.key] = scale or find_scale(metrics.get(score.key, {}))
        low, high = scales[score.key]
        if not low <= value <= high:
            raise Refused(
                f"a score of {score.key!r} is {value:g}, outside of the scale from {low:g} to {high:g}; name the scale of its scores"
            )
        version_score = VersionScore(
            score=value,
            weight=1 / score.probability,
            cluster=clusters[side][trace_id],
            start_ns=score.start_ns,
            trace_id=trace_id,
        )
        sides.setdefault(score.key, ([], []))[side].append(version_score)
    return RuleVersions(
        rule=rule.name,
        by=by,
        a=a,
        b=b,
        shared=min((_share_of_hours(*each) for each in sides.values()), default=0.0),
        of_both=sum(1 for score in scores if score.trace_id in of_both),
        unknown=unknown,
        differences={
            name: compare_versions(*sides[name], rising=directions.get(name), margin=margin, scale=scales[name])
            for name in sorted(sides)
        },
    )


def find_scale(metric: Mapping[str, JSON]) -> tuple[float, float]:
    """Return the lowest and the highest possible score of a recorded metric; 0 and 1 if they are not recorded."""
    ends = metric.get("range")
    if isinstance(ends, list | tuple) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends):
        return float(ends[0]), float(ends[1])
    return 0.0, 1.0


def make_version_condition(by: str, value: str) -> dict[str, object]:
    """Return the filter condition that a trace has this value of a field. Raises `Refused` for an unknown field."""
    if by == "tag":
        return {"tags": (value,)}
    if by.startswith("metadata.") and by != "metadata.":
        return {"metadata": {by.removeprefix("metadata."): value}}
    if by in VERSION_FIELDS:
        return {by: value}
    raise Refused(f"unknown field {by!r}; expected one of: {', '.join(VERSION_FIELDS)}, metadata.KEY")


def _find_clusters(store: Store, version: Filter, scores: list[WeightedScore]) -> dict[str, str]:
    """Return the cluster of each scored trace of a version, by trace id."""
    ids = list(dict.fromkeys(score.trace_id for score in scores if score.trace_id))
    found: dict[str, str] = {}
    for start in range(0, len(ids), _VERSION_TRACES_PER_QUERY):
        filter = extend_filter(version, {"trace_ids": tuple(ids[start : start + _VERSION_TRACES_PER_QUERY])})
        for trace in iterate_pages(partial(store.traces, filter, limit=1000)):
            if trace.user_id:
                found[trace.trace_id] = f"user {trace.user_id}"
            else:
                found[trace.trace_id] = f"session {trace.session_id}" if trace.session_id else trace.trace_id
    return found


def _share_of_hours(a: list[VersionScore], b: list[VersionScore]) -> float:
    """Return the share of the scores in hours in which the other version has scores, too; the smaller of the two."""
    hours = [{score.start_ns // _HOUR_NS for score in side} for side in (a, b)]
    both = hours[0] & hours[1]
    return min(
        (sum(1 for score in side if score.start_ns // _HOUR_NS in both) / len(side) for side in (a, b) if side),
        default=0.0,
    )
