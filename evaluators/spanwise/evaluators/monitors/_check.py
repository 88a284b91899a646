"""Before a rule runs: how many traces it would have matched, sampled and paid for, and what it says of some of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from spanwise.collector.filters import Filter, combined
from spanwise.collector.records import Case, Feedback, Rule, Target, TraceSummary, paged
from spanwise.collector.rules import LEAST_PACED, rate_of, unit_of
from spanwise.collector.statistics import u
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._load import lots
from spanwise.evaluators.monitors._rule import Monitored
from spanwise.evaluators.monitors._targets import case_at, chosen
from spanwise.evaluators.protocol import Untraced, finish, judging
from spanwise.evaluators.scoring import Estimate, Scoring, case_of, estimate, turns_of

LOOKED = 20_000  # traces that are counted one by one, the newest; of more the share of these stands for all
LOT = 500  # ids in one question
PRICED = 50  # traces that are read for their targets, and targets that are rehearsed for what judges would cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a rule's evaluators say of one target; nothing of it is stored."""

    target: Target
    feedback: tuple[Feedback, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a rule would have done over some time: of `traces` there, `matched` pass and `sampled` are taken.

    `targets` are what of these is scored: the traces (sessions) themselves, or spans or documents in them, by the mean
    of the newest that are read. Where `exact` is false, more matched than are looked at one by one, and what is said is
    extrapolated. `estimate` is of the `priced` newest targets, `usd` of all of them (None: some judge has no known
    price). `paced` is the factor on the rates that a budget in US dollars a day asks for.
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
    tried: tuple[Tried, ...] = ()


def check(rule: Monitored, store: Store, *, seconds: float = 86_400.0, tries: int = 0) -> Check:
    """What a rule would have done over the last `seconds`; `tries` of the newest that it takes are really scored.

    Nothing is stored, and nobody is asked but for `tries`. Raises `NoJudge` for a judge that is not named.
    """
    since_ns = time.time_ns() - int(seconds * 1e9)
    wanted = _wanted(rule.record, since_ns)
    matched, looked = _count(store, wanted), _looked(rule.record, store, wanted)
    taken = [summary for summary, is_taken in looked if is_taken]
    share = matched / len(looked) if len(looked) >= LOOKED and matched > len(looked) else 1.0
    read = taken[: max(tries, PRICED)]
    seen = list(_seen(rule.record, store, read))
    targets = len(seen) * len(taken) / len(read) * share if read else 0.0
    estimated = estimate(rule.evaluators, [case for _, case in seen[:PRICED]])
    scale = targets / estimated.cases if estimated.cases else 0.0
    usd = None if estimated.total.usd is None else estimated.total.usd * scale
    return Check(
        rule=rule.record,
        seconds=seconds,
        traces=_count(store, Filter(project=rule.record.project, since_ns=since_ns, experiment=wanted.experiment)),
        matched=round(len(looked) * share),
        sampled=round(len(taken) * share),
        targets=round(targets),
        exact=share == 1.0,
        estimate=estimated,
        priced=estimated.cases,
        usd=usd,
        calls=round(estimated.total.calls * scale),
        paced=_paced(rule.record, usd, seconds),
        tried=tuple(_tried(rule, seen[:tries])),
    )


def _wanted(rule: Rule, since_ns: int) -> Filter:
    """The rule's filter over its own project and scope since a time."""
    wanted = replace(combined(None, rule.filter), project=rule.project, since_ns=since_ns)
    return replace(wanted, experiment="") if rule.scope == "live" and wanted.experiment is None else wanted


def _count(store: Store, filter: Filter) -> int:
    return sum(bucket.traces for bucket in store.aggregate(filter, newest="all"))


def _looked(rule: Rule, store: Store, wanted: Filter) -> list[tuple[TraceSummary, bool]]:
    """The newest traces that match, and whether each would be taken; of a session its newest stands for it."""
    matching = list(islice(_in_scope(rule, _summaries(store, wanted)), LOOKED))
    strata = [_passing(store, matching, stratum.filter) for stratum in rule.settings.strata]
    rates = (rate_of(rule.settings, [it.trace_id in ids for ids in strata])[0] for it in matching)
    return [(it, u(unit_of(rule, it)) < rate) for it, rate in zip(matching, rates, strict=True)]


def _in_scope(rule: Rule, summaries: Iterator[TraceSummary]) -> Iterator[TraceSummary]:
    sessions: set[str] = set()
    for summary in summaries:
        if rule.scope == "experiments" and summary.experiment_id is None:
            continue
        if rule.target == "session":
            if summary.session_id is None or summary.session_id in sessions:
                continue
            sessions.add(summary.session_id)
        yield summary


def _passing(store: Store, summaries: Sequence[TraceSummary], filter: Mapping[str, object]) -> set[str]:
    """Ids of those of the traces that pass a further filter, which may speak of the same things as the first."""
    ids = [summary.trace_id for summary in summaries]
    lots = (tuple(ids[start : start + LOT]) for start in range(0, len(ids), LOT))
    passing = (_summaries(store, combined(None, {**filter, "trace_ids": lot})) for lot in lots)
    return {summary.trace_id for some in passing for summary in some}


def _summaries(store: Store, filter: Filter) -> Iterator[TraceSummary]:
    return paged(lambda cursor: store.traces(filter, limit=1000, cursor=cursor))


def _paced(rule: Rule, usd: float | None, seconds: float) -> float | None:
    limit = rule.settings.budget.get("usd_per_day")
    if limit is None or usd is None or not rule.settings.pace:
        return None
    daily = usd * 86_400 / seconds
    return max(LEAST_PACED, min(1.0, limit / daily)) if daily else 1.0


def _seen(rule: Rule, store: Store, taken: Sequence[TraceSummary]) -> Iterator[tuple[Target, Case]]:
    """What a worker would score of traces, or of the sessions that they stand for, each with what evaluators see."""
    if rule.target == "session":
        for session in (summary.session_id or "" for summary in taken):
            yield Target(session_id=session), case_of(turns_of(session, store, rule.project))
        return
    for lot in lots((summary.trace_id, None) for summary in taken):
        for trace in store.many(lot):
            targets = [Target(trace_id=trace.trace_id)] if rule.target == "trace" else chosen(rule, trace)[0]
            cases = ((target, case_at(target, trace)) for target in targets)
            yield from ((target, case) for target, case in cases if case is not None)


def _tried(rule: Monitored, seen: Sequence[tuple[Target, Case]]) -> Iterator[Tried]:
    """Really scored, newest first. What judges do meanwhile leaves no trace: nothing would lead to it."""
    scoring = Scoring(rule.evaluators)
    for target, case in seen:
        with judging(judgements=Untraced()):
            yield Tried(target=target, feedback=finish(_said(scoring, case, target)))


async def _said(scoring: Scoring, case: Case, target: Target) -> tuple[Feedback, ...]:
    return (*await scoring.on_loop(case, target), *await scoring.later(case, target))
