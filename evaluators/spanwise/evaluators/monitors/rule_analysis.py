"""Analysis of rules: preview on stored traffic, comparison with a shadow rule, estimated means."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter, extend_filter, parse_time
from spanwise.collector.records import (
    BackfillPreview,
    Case,
    Decision,
    Feedback,
    Page,
    Rule,
    Target,
    TraceSummary,
    WeightedScore,
    iterate_pages,
)
from spanwise.collector.rule_policy import MIN_PACING_FACTOR, get_sampling_rate, get_sampling_unit
from spanwise.collector.statistics import SampledMean, estimate_means, get_sampling_position
from spanwise.collector.stores import Store, summarize_rule
from spanwise.evaluators.interface import (
    DiscardedJudgements,
    StoreLocation,
    open_store_location,
    run_coroutine,
    use_judge_context,
)
from spanwise.evaluators.monitors.job_executor import SHADOW_PREFIX
from spanwise.evaluators.monitors.monitored_rule import MonitoredRule
from spanwise.evaluators.monitors.rule_decision import batch_by_size, choose_targets, make_target_case
from spanwise.evaluators.scoring import CaseScorer, Estimate, estimate, load_turns, make_case
from spanwise.evaluators.scoring.judge_calibration import open_optional_store

# maximum number of traces, the newest, that are checked one by one; their share is extrapolated to older ones
DAYS_PER_MONTH = 365.25 / 12
MAX_COUNTED_TRACES = 20_000
IDS_PER_FILTER = 500  # ids per query
# maximum traces that are read to count their targets, and maximum targets whose judge cost is estimated
MAX_PRICED_TARGETS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScore:
    """Scores that a rule's evaluators gave to one target in a preview. They are not stored."""

    target: Target
    feedback: tuple[Feedback, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePreview:
    """Preview of a rule on the `traces` traces of a period: `matched` pass its filter, and `sampled` would be sampled.

    The number `targets` counts the objects to score: the traces or sessions themselves, or the spans or documents in
    them. Spans and documents are estimated from the newest traces. If `exact` is false, not every matching trace was
    checked, and the figures are extrapolated. `estimate` covers the `priced` newest targets, and `usd` covers all
    (None: the price of a judge is unknown). `paced` is the factor by which a daily budget in US dollars reduces the
    sample rates.
    """

    rule: Rule
    seconds: float
    traces: int
    matched: int
    sampled: int
    targets: int
    exact: bool
    estimate: Estimate
    priced: int
    usd: float | None
    calls: int
    paced: float | None
    tried: tuple[TrialScore, ...] = ()


def check(rule: MonitoredRule, store: Store, *, seconds: float = 86_400.0, tries: int = 0) -> RulePreview:
    """Preview a rule on the stored traffic of the last `seconds`, and score the `tries` newest sampled targets.

    Nothing is stored, and no judge is called except for `tries`. Raises `NoJudge` if a judge is not configured.
    """
    record = rule.record
    since_ns = time.time_ns() - int(seconds * 1e9)
    filter = replace(extend_filter(None, record.filter), project=record.project, since_ns=since_ns)
    if record.scope == "live" and filter.experiment is None:
        filter = replace(filter, experiment="")
    matched = _count_traces(store, filter)
    checked, sampled = _sample_traces(record, store, filter)
    scale = matched / checked if checked >= MAX_COUNTED_TRACES and matched > checked else 1.0
    newest = sampled[: max(tries, MAX_PRICED_TARGETS)]
    cases = list(_load_cases(record, store, newest))
    targets = len(cases) * len(sampled) / len(newest) * scale if newest else 0.0
    estimated = estimate(rule.evaluators, [case for _, case in cases[:MAX_PRICED_TARGETS]])
    cost_scale = targets / estimated.cases if estimated.cases else 0.0
    usd = None if estimated.total.usd is None else estimated.total.usd * cost_scale
    return RulePreview(
        rule=record,
        seconds=seconds,
        traces=_count_traces(store, Filter(project=record.project, since_ns=since_ns, experiment=filter.experiment)),
        matched=round(checked * scale),
        sampled=round(len(sampled) * scale),
        targets=round(targets),
        exact=scale == 1.0,
        estimate=estimated,
        priced=estimated.cases,
        usd=usd,
        calls=round(estimated.total.calls * cost_scale),
        paced=_pacing_factor(record, usd, seconds),
        tried=tuple(_score_cases(rule, cases[:tries])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillEstimate:
    """Estimated targets of a backfill, calls of its judges, and their cost in US dollars (None: unknown).

    `where` names the endpoints to which text goes.
    """

    targets: int
    calls: int
    usd: float | None
    where: tuple[str, ...] = ()


def estimate_backfill(rule: MonitoredRule, store: Store, preview: BackfillPreview) -> BackfillEstimate:
    """Estimate what a backfill costs, from the latest traces that it would score. No judge is called.

    Raises `NoJudge` if a judge is not configured.
    """
    newest = [*store.traces(trace_ids=preview.newest, limit=1000)] if preview.newest else []
    cases = [case for _, case in _load_cases(rule.record, store, newest)][:MAX_PRICED_TARGETS]
    loaded = len({case.trace.trace_id for case in cases if case.trace is not None}) or len(newest)
    per_trace = len(cases) / loaded if loaded and rule.record.target in ("span", "document") else 1.0
    estimated = estimate(rule.evaluators, cases)
    targets = round(preview.scored * per_trace)
    scale = targets / estimated.cases if estimated.cases else 0.0
    total = estimated.total
    usd = None if total.usd is None else total.usd * scale
    return BackfillEstimate(targets=targets, calls=round(total.calls * scale), usd=usd, where=estimated.where)


def _count_traces(store: Store, filter: Filter) -> int:
    return sum(bucket.traces for bucket in store.aggregate(filter, newest="all"))


def _sample_traces(rule: Rule, store: Store, filter: Filter) -> tuple[int, list[TraceSummary]]:
    """Return the number of the newest matching traces, and those of them that would be sampled. A session is
    represented by its newest trace.
    """
    matching = list(islice(_filter_scope(rule, _summaries(store, filter)), MAX_COUNTED_TRACES))
    strata = [_matching_ids(store, matching, stratum.filter) for stratum in rule.settings.strata]

    def is_sampled(summary: TraceSummary) -> bool:
        rate, _ = get_sampling_rate(rule.settings, [summary.trace_id in ids for ids in strata])
        return get_sampling_position(get_sampling_unit(rule, summary)) < rate

    return len(matching), [summary for summary in matching if is_sampled(summary)]


def _filter_scope(rule: Rule, summaries: Iterator[TraceSummary]) -> Iterator[TraceSummary]:
    sessions: set[str] = set()
    for summary in summaries:
        if rule.scope == "experiments" and summary.experiment_id is None:
            continue
        if rule.target == "session":
            if summary.session_id is None or summary.session_id in sessions:
                continue
            sessions.add(summary.session_id)
        yield summary


def _matching_ids(store: Store, summaries: Sequence[TraceSummary], filter: Mapping[str, object]) -> set[str]:
    """Return the ids of those traces that pass a second filter. It may use the same fields as the first one."""
    ids = [summary.trace_id for summary in summaries]
    passing: set[str] = set()
    for start in range(0, len(ids), IDS_PER_FILTER):
        batch = tuple(ids[start : start + IDS_PER_FILTER])
        found = _summaries(store, extend_filter(None, {**filter, "trace_ids": batch}))
        passing.update(summary.trace_id for summary in found)
    return passing


def _summaries(store: Store, filter: Filter) -> Iterator[TraceSummary]:
    return iterate_pages(lambda cursor: store.traces(filter, limit=1000, cursor=cursor))


def _pacing_factor(rule: Rule, usd: float | None, seconds: float) -> float | None:
    budget, days = rule.settings.budget, {"usd_per_day": 1.0, "usd_per_month": DAYS_PER_MONTH}
    limits = [budget[key] / length for key, length in days.items() if key in budget]
    if not limits or usd is None or not rule.settings.pace:
        return None
    daily = usd * 86_400 / seconds
    return max(MIN_PACING_FACTOR, min(1.0, min(limits) / daily)) if daily else 1.0


def _load_cases(rule: Rule, store: Store, sampled: Sequence[TraceSummary]) -> Iterator[tuple[Target, Case]]:
    """Yield the targets that a worker would score, each with its case. The traces may represent sessions."""
    if rule.target == "session":
        for session in (summary.session_id or "" for summary in sampled):
            yield Target(session_id=session, project=rule.project), make_case(load_turns(session, store, rule.project))
        return
    for batch in batch_by_size((summary.trace_id, None) for summary in sampled):
        for trace in store.many(batch):
            targets = [Target(trace_id=trace.trace_id)] if rule.target == "trace" else choose_targets(rule, trace)[0]
            cases = ((target, make_target_case(target, trace)) for target in targets)
            yield from ((target, case) for target, case in cases if case is not None)


def _score_cases(rule: MonitoredRule, cases: Sequence[tuple[Target, Case]]) -> Iterator[TrialScore]:
    """Score the targets, newest first. Judge traces are discarded, because no stored feedback would refer to them."""
    scorer = CaseScorer(rule.evaluators)

    async def score(target: Target, case: Case) -> tuple[Feedback, ...]:
        return (*await scorer.score_on_loop(case, target), *await scorer.score_concurrently(case, target))

    for target, case in cases:
        with use_judge_context(judgements=DiscardedJudgements()):
            yield TrialScore(target=target, feedback=run_coroutine(score(target, case)))


MAX_COMPARED_SCORES = 50_000  # maximum number of scores of each rule, the newest
_ScoreKey = tuple[str | None, str | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDifference:
    """Comparison of one key on the traces or sessions that both rules have scored: both means, and the mean difference
    (new minus old).
    """

    key: str
    old: SampledMean
    new: SampledMean
    change: SampledMean

    @property
    def beyond_chance(self) -> bool:
        """Return whether the 95 % interval of the mean difference excludes 0."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and not low <= 0 <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleComparison:
    """Comparison of two rules on the same targets. Costs are US dollars per target, None if unknown.

    The counts `only_old` and `only_new` are of traces or sessions that only one of the rules has scored or tried to
    score.
    """

    old: Rule
    new: Rule
    both: int
    only_old: int
    only_new: int
    differences: tuple[KeyDifference, ...]
    cost_old: float | None
    cost_new: float | None


def diff(store: StoreLocation, rule: str, shadow: str | None = None, *, project: str = "default") -> RuleComparison:
    """Compare the scores of a rule and its shadow on the same targets. If the rule has several shadows, `shadow`
    selects one.

    The argument `store` may be a path or URL. Raises `NotFound` for an unknown rule, and `Refused` if the rule has no
    shadow, or several and none is selected.
    """
    with open_store_location(store) as opened:
        return _compare_rules(opened, *_find_rule_pair(opened, rule, shadow, project))


def _compare_rules(store: Store, old: Rule, new: Rule) -> RuleComparison:
    old_scores, new_scores = _mean_scores(store, old), _mean_scores(store, new)
    old_targets, new_targets = {key[:2] for key in old_scores}, {key[:2] for key in new_scores}
    pairs = [(score, new_scores[key]) for key, score in old_scores.items() if key in new_scores]
    changes = [replace(b, score=float(b.score or 0) - float(a.score or 0)) for a, b in pairs]
    means = zip(
        estimate_means([a for a, _ in pairs]),
        estimate_means([b for _, b in pairs]),
        estimate_means(changes),
        strict=True,
    )
    return RuleComparison(
        old=old,
        new=new,
        both=len(old_targets & new_targets),
        only_old=len(old_targets - new_targets),
        only_new=len(new_targets - old_targets),
        differences=tuple(KeyDifference(key=a.key, old=a, new=b, change=change) for a, b, change in means),
        cost_old=_mean_cost(store, old),
        cost_new=_mean_cost(store, new),
    )


def _find_rule_pair(store: Store, rule: str, shadow: str | None, project: str) -> tuple[Rule, Rule]:
    rules = {record.name: record for record in store.rules(project=project)}
    shadows = [shadow] if shadow else sorted(name for name, record in rules.items() if record.shadow_of == rule)
    for name in (rule, *shadows):
        if name not in rules:
            raise NotFound(f"there is no rule {name!r} in project {project!r}; it has {', '.join(rules) or 'none'}")
    if not shadows:
        raise Refused(f"rule {rule!r} has no shadow; define another rule with shadow_of={rule!r}")
    if len(shadows) > 1:
        raise Refused(f"rule {rule!r} has several shadows ({', '.join(shadows)}); select one")
    return rules[rule], rules[shadows[0]]


def _mean_scores(store: Store, rule: Rule) -> dict[_ScoreKey, WeightedScore]:
    """Return the mean score of a rule's targets by trace, session and key."""

    def ask(cursor: str | None) -> Page[WeightedScore]:
        return store.weighted(rule.name, version=rule.version, project=rule.project, cursor=cursor)

    scores: dict[_ScoreKey, list[WeightedScore]] = {}
    for score in islice(iterate_pages(ask), MAX_COMPARED_SCORES):
        if score.score is not None:
            key = score.key.removeprefix(SHADOW_PREFIX)
            scores.setdefault((score.trace_id, score.session_id, key), []).append(replace(score, key=key))
    return {
        key: replace(same[0], score=fmean(float(score.score or 0) for score in same)) for key, same in scores.items()
    }


def _mean_cost(store: Store, rule: Rule) -> float | None:
    def ask(cursor: str | None) -> Page[Decision]:
        return store.decisions(
            rule=rule.name, version=rule.version, project=rule.project, verdict="scored", cursor=cursor
        )

    newest = islice(iterate_pages(ask), MAX_COMPARED_SCORES)
    known = [decision.cost for decision in newest if decision.cost is not None]
    return fmean(known) if known else None


def summary(
    rule: str,
    *,
    key: str | None = None,
    project: str | None = None,
    since: str | int | None = None,
    until: str | int | None = None,
    store: Store | str | None = None,
) -> list[SampledMean]:
    """Return per key the estimated mean over all eligible targets, with its 95 % interval, for the version in force.

    Each score is weighted by the inverse of its target's sampling probability. `since` and `until` (`"7d"`, an ISO
    date) bound the start time of the traces, not the time of scoring. The default `project` is SPANWISE_PROJECT, else
    "default". Raises `NotFound`.
    """
    project = project or os.environ.get("SPANWISE_PROJECT") or "default"
    since_ns, until_ns = (parse_time(time) if isinstance(time, str) else time for time in (since, until))
    with open_optional_store(store) as opened:
        assert opened is not None
        rules = {record.name: record for record in opened.rules(project=project)}
        if rule not in rules:
            known = ", ".join(map(repr, rules)) or "none"
            raise NotFound(f"there is no rule {rule!r} in project {project!r}; rules there: {known}")
        return summarize_rule(opened, rules[rule], key=key, since_ns=since_ns, until_ns=until_ns)
