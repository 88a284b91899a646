"""`monitor(…)`: a rule as people write it, and the record that stores keep of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, askable, combined, normal_form
from spanwise.collector.querystring import moment, parse
from spanwise.collector.records import JSON, Rule, RuleSettings, RuleTarget, Scope, Stratum
from spanwise.evaluators.monitors._version import entry_of, version_of
from spanwise.evaluators.protocol import Evaluator, as_evaluator, check_keys
from spanwise.tracer.hints import did_you_mean

FilterLike: TypeAlias = "Filter | Mapping[str, Any] | str | None"
BUDGETS = ("usd_per_day", "usd_per_minute", "calls_per_day", "calls_per_minute")
collecting: ContextVar[list[Monitored] | None] = ContextVar("collecting", default=None)  # of the file being loaded


@dataclass(frozen=True, slots=True)
class Monitored:
    """A rule with the evaluators themselves: `record` is what a store keeps."""

    record: Rule
    evaluators: tuple[Evaluator, ...]


def monitor(
    name: str,
    *,
    evaluators: Iterable[Any],
    filter: FilterLike = None,
    target: RuleTarget = "trace",
    kind: str | None = None,
    sample_rate: float = 1.0,
    strata: Iterable[tuple[FilterLike, float]] = (),
    scope: Scope = "live",
    budget: Mapping[str, float] | None = None,
    pace: bool = True,
    concurrency: int = 8,
    timeout: float = 60.0,
    retries: int = 3,
    priority: float = 1.0,
    quiet: float = 10.0,
    max_wait: float = 600.0,
    session_quiet: float = 600.0,
    max_bytes: int = 10_000_000,
    project: str | None = None,
    since: str | int | None = None,
    version: str | None = None,
    shadow_of: str | None = None,
    enabled: bool = True,
    metadata: Mapping[str, JSON] | None = None,
) -> Monitored:
    """A rule: these evaluators on the traces that pass `filter`, `sample_rate` of them.

    `filter` and the filters of `strata`, `(filter, rate)`, are in the store's grammar: `{"name": "answer"}`, or as on a
    command line `"name=answer latency_ms>200"`. The first stratum that a trace passes gives its rate. `target` says
    what is scored: traces, their spans (of one `kind`), their documents, or sessions once they are quiet. `scope` says
    whose traces: of live traffic, of experiments, or both. `budget` takes usd_per_day, usd_per_minute, calls_per_day
    and calls_per_minute; money is paced over the day unless `pace=False`. `timeout`, `quiet` (since the last span of a
    trace that does not say when it is whole), `max_wait` and `session_quiet` are in seconds, `max_bytes` is the size
    above which a target is skipped. `project` is SPANWISE_PROJECT, else "default". `since` also takes traces that began
    since then (`"7d"`, an ISO date). `version` is needed where an evaluator has no source text; by default filter,
    target, scope and the evaluators' source and parameters make it. `shadow_of` names the rule beside which this one is
    tried. Raises `ValueError` for what cannot be.
    """
    made = tuple(map(as_evaluator, [evaluators] if callable(evaluators) else evaluators))
    _check(name, made, target, kind, scope, shadow_of)
    settings = RuleSettings(
        sample_rate=_rate(name, sample_rate),
        strata=tuple(Stratum(filter=_filter(name, one), rate=_rate(name, rate)) for one, rate in strata),
        budget=_budget(name, budget or {}),
        pace=pace,
        concurrency=int(_positive(name, "concurrency", concurrency)),
        timeout_s=_positive(name, "timeout", timeout),
        retries=int(_positive(name, "retries", retries, least=0)),
        priority=_positive(name, "priority", priority),
        quiet_s=_positive(name, "quiet", quiet, least=0),
        max_wait_s=_positive(name, "max_wait", max_wait, least=0),
        session_quiet_s=_positive(name, "session_quiet", session_quiet, least=0),
        max_bytes=int(_positive(name, "max_bytes", max_bytes)),
    )
    record = Rule(
        name=name,
        version="",
        evaluators=tuple(entry_of(name, evaluator, version) for evaluator in made),
        project=project or os.environ.get("SPANWISE_PROJECT") or "default",
        filter=_filter(name, filter),
        target=target,
        kind=kind,
        scope=scope,
        settings=settings,
        shadow_of=shadow_of,
        since_ns=moment(since) if isinstance(since, str) else since,
        enabled=enabled,
        metadata=metadata or {},
    )
    rule = Monitored(version_of(record), made)
    if (rules := collecting.get()) is not None:
        rules.append(rule)
    return rule


def _check(
    name: str, evaluators: Sequence[Evaluator], target: str, kind: str | None, scope: str, shadow_of: str | None
) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a rule has a name, such as 'grounded', not {name!r}")
    if not evaluators:
        raise ValueError(f"rule {name!r} has no evaluators; give one at least")
    if sets := [evaluator.key for evaluator in evaluators if evaluator.summary]:
        raise ValueError(
            f"rule {name!r}: {sets[0]!r} looks at a whole set of cases, which traffic has not; leave it out"
        )
    if shadow_of == name:
        raise ValueError(f"rule {name!r} cannot be its own shadow; give the one that is tried another name")
    keys = [evaluator.key for evaluator in evaluators]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"rule {name!r} has two evaluators with the key {twice!r}; give one of them another key=")
    try:
        check_keys(evaluators)
    except ValueError as error:
        raise ValueError(f"rule {name!r}: {error}") from None
    for word, value, words in (("target", target, get_args(RuleTarget)), ("scope", scope, get_args(Scope))):
        if value not in words:
            raise ValueError(f"rule {name!r}: {word}={value!r} is none of {', '.join(words)}")
    if kind is not None and target not in ("span", "document"):
        raise ValueError(f"rule {name!r}: kind={kind!r} chooses spans, and its target is a {target}; use the filter")


def _filter(name: str, given: FilterLike) -> Mapping[str, JSON]:
    """The normal form of a filter; one whose times move with the clock is refused."""
    try:
        made = askable(given if isinstance(given, Filter) else _read(given))
    except (ValueError, TypeError, Refused) as error:
        raise ValueError(f"rule {name!r}: {error}") from None
    if made.since_ns is not None or made.until_ns is not None:
        raise ValueError(f"rule {name!r}: a rule's filter holds at all times; leave out since and until (see since=)")
    return normal_form(made)


def _read(given: Mapping[str, Any] | str | None) -> Filter:
    if isinstance(given, str):
        return parse(given.split())
    return combined(None, dict(given or {}))


def _rate(name: str, rate: float) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ValueError(f"rule {name!r}: a rate is a number from 0 to 1, not {rate!r}")
    return float(rate)


def _positive(name: str, what: str, value: float, least: float | None = None) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not number or (value <= 0 if least is None else value < least):
        raise ValueError(f"rule {name!r}: {what}={value!r} is no number above {0 if least is None else 'or at 0'}")
    return value


def _budget(name: str, budget: Mapping[str, float]) -> Mapping[str, float]:
    for key, limit in budget.items():
        if key not in BUDGETS:
            raise ValueError(f"rule {name!r}: a budget has no {key!r}{did_you_mean(key, BUDGETS, form=': {}')}")
        _positive(name, f"budget[{key!r}]", limit, least=0)
    return dict(budget)
