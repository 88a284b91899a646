"""Comparison of two versions of an application by the scores that one rule gave to live traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.records import JSON, Rule, WeightedScore, iterate_pages
from spanwise.collector.statistics import VersionDifference, VersionScore, compare_versions
from spanwise.collector.stores.control_store import Store

VERSION_FIELDS = ("tag", "model", "environment", "prompt_version", "agent", "name", "user")  # and `metadata.KEY`
MAX_VERSION_SCORES = 100_000  # scores of the rule that are read, those of the latest traces first
MIN_SHARED = 0.8  # share of each version's scores in hours in which the other has scores, too
_TRACES_PER_QUERY = 500
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
    for start in range(0, len(ids), _TRACES_PER_QUERY):
        filter = extend_filter(version, {"trace_ids": tuple(ids[start : start + _TRACES_PER_QUERY])})
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
