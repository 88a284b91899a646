"""Rule definition: `monitor(...)`, content version, and its state in the store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, TypeAlias, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, extend_filter, filter_to_dict, parse, parse_time, validate_filter
from spanwise.collector.records import JSON, Backfill, Rule, RuleSettings, RuleTarget, Scope, Stratum, canonical_json
from spanwise.collector.rule_policy import BUDGET_LIMITS, describe_pause
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import (
    Evaluator,
    SourceUnavailable,
    as_evaluator,
    check_keys,
    digest_source,
    list_evaluators,
)
from spanwise.tracer.suggestions import did_you_mean

_VERSIONED_FIELDS = ("filter", "target", "kind", "scope", "evaluators")


def assign_version(rule: Rule) -> Rule:
    """Return the rule with its version: 12 hex digits, a hash of filter, target, kind, scope and evaluators."""
    return replace(rule, version=_digest({name: getattr(rule, name) for name in _VERSIONED_FIELDS}))


def make_evaluator_entry(rule: str, evaluator: Evaluator, version: str | None) -> Mapping[str, JSON]:
    """Return the stored form of an evaluator: registry id and parameters, or name and hash of the source text.

    Raises `ValueError` for code whose source text is not available, unless `version` is given instead of the hash.
    """
    entry: dict[str, Any] = {"key": evaluator.key, "version": evaluator.revision}
    origin, function = evaluator.origin, evaluator.function
    code: Any
    if origin and (evaluator.spec is not None or origin["type"] in list_evaluators()):
        try:
            return {**entry, **evaluator.to_dict()}
        except ValueError:  # a parameter is a function, which cannot be stored
            entry["type"], code = origin["type"], dict(origin["init_parameters"])
    elif identity := vars(type(function)).get("RULE_IDENTITY"):
        entry["function"], digest = identity
        return {**entry, "source": version or _digest({entry["function"].replace(":", "."): digest})}
    else:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        entry["function"], code = f"{function.__module__}:{name}", function
    try:
        return {**entry, "source": version or _source_digest(code)}
    except SourceUnavailable as error:
        remedy = f'pass a version, such as monitor({rule!r}, …, version="1"), and change it when the code changes'
        raise ValueError(f"rule {rule!r}: {error}; {remedy}") from None


def _source_digest(code: Any) -> str:
    """Return a digest of a function's source text, or of parameters that include functions. Raises
    `SourceUnavailable`.
    """
    if isinstance(code, Mapping):
        return _digest(
            {name: _source_digest(value) if callable(value) else repr(value) for name, value in code.items()}
        )
    return _digest(digest_source(code))


def _digest(value: JSON) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:12]


FilterLike: TypeAlias = "Filter | Mapping[str, Any] | str | None"
# collects the rules of the file that is being loaded
rules_being_loaded: ContextVar[list[MonitoredRule] | None] = ContextVar("rules_being_loaded", default=None)


@dataclass(frozen=True, slots=True)
class MonitoredRule:
    """Rule with its evaluator objects. `record` is the stored form."""

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
) -> MonitoredRule:
    """Define a rule: these evaluators run on the traces that pass `filter`, sampled at `sample_rate`.

    Filters use the store's grammar: `{"name": "answer"}`, or as on the command line `"name=answer latency_ms>200"`.
    `strata` are pairs `(filter, rate)`; the first stratum whose filter a trace passes determines its rate. `target`
    selects the objects to score: traces, their spans (of one `kind`), their documents, or sessions once they are quiet.
    `scope` selects traces of live traffic, of experiments, or both.

    A `budget` has the keys usd_per_month, usd_per_day, usd_per_minute, calls_per_day and calls_per_minute. Dollars per
    month and per day are paced unless `pace=False`. `timeout`, `quiet`, `max_wait` and `session_quiet` are in seconds. If a trace
    does not report its completion, it is ready `quiet` seconds after its last span. A target larger than `max_bytes`
    is skipped.

    The default `project` is SPANWISE_PROJECT, else "default". `since` includes traces that started at or after that
    time (`"7d"`, an ISO date). By default, filter, target, scope and the evaluators' source and parameters determine
    the version. `version` is required if an evaluator has no source text. `shadow_of` names the rule that this one is
    compared with. Raises `ValueError` for an invalid definition.
    """
    built = tuple(map(as_evaluator, [evaluators] if callable(evaluators) else evaluators))
    _check_definition(name, built, target, kind, scope, shadow_of)
    settings = RuleSettings(
        sample_rate=_check_rate(name, sample_rate),
        strata=tuple(
            Stratum(filter=normalize_filter(name, condition), rate=_check_rate(name, rate))
            for condition, rate in strata
        ),
        budget=_check_budget(name, budget or {}),
        pace=pace,
        concurrency=int(_check_number(name, "concurrency", concurrency)),
        timeout_s=_check_number(name, "timeout", timeout),
        retries=int(_check_number(name, "retries", retries, zero=True)),
        priority=_check_number(name, "priority", priority),
        quiet_s=_check_number(name, "quiet", quiet, zero=True),
        max_wait_s=_check_number(name, "max_wait", max_wait, zero=True),
        session_quiet_s=_check_number(name, "session_quiet", session_quiet, zero=True),
        max_bytes=int(_check_number(name, "max_bytes", max_bytes)),
    )
    record = Rule(
        name=name,
        version="",
        evaluators=tuple(make_evaluator_entry(name, evaluator, version) for evaluator in built),
        metrics=tuple(metric.to_dict() for evaluator in built for metric in evaluator.metrics),
        project=project or os.environ.get("SPANWISE_PROJECT") or "default",
        filter=normalize_filter(name, filter),
        target=target,
        kind=kind,
        scope=scope,
        settings=settings,
        shadow_of=shadow_of,
        since_ns=parse_time(since) if isinstance(since, str) else since,
        enabled=enabled,
        metadata=metadata or {},
    )
    rule = MonitoredRule(assign_version(record), built)
    if (rules := rules_being_loaded.get()) is not None:
        rules.append(rule)
    return rule


def _check_definition(
    name: str, evaluators: Sequence[Evaluator], target: str, kind: str | None, scope: str, shadow_of: str | None
) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"the name of a rule must be a non-empty text, such as 'grounded', got {name!r}")
    if shadow_of == name:
        raise ValueError(f"rule {name!r} cannot be its own shadow; give the shadow another name")
    try:
        check_evaluators(evaluators)
    except ValueError as error:
        raise ValueError(f"rule {name!r}: {error}") from None
    for argument, value, allowed in (("target", target, get_args(RuleTarget)), ("scope", scope, get_args(Scope))):
        if value not in allowed:
            raise ValueError(f"rule {name!r}: unknown {argument} {value!r}; expected one of: {', '.join(allowed)}")
    if kind is not None and target not in ("span", "document"):
        raise ValueError(
            f"rule {name!r}: kind={kind!r} selects spans, but the target is {target!r}; use the filter instead"
        )


def check_evaluators(evaluators: Sequence[Evaluator]) -> None:
    """Raise `ValueError` if a rule must not have these evaluators."""
    if not evaluators:
        raise ValueError("it has no evaluators; add at least one")
    if sets := [evaluator.key for evaluator in evaluators if evaluator.summary]:
        raise ValueError(f"{sets[0]!r} evaluates sets of cases, which live traffic does not have; remove it")
    check_keys(evaluators)


def normalize_filter(name: str, given: FilterLike, kind: str = "rule") -> Mapping[str, JSON]:
    """Return the normal form of the filter of a rule or an alert. Raises `ValueError` for a filter with a time range."""
    try:
        if isinstance(given, str):
            given = parse(given.split())
        filter = validate_filter(given if isinstance(given, Filter) else extend_filter(None, dict(given or {})))
    except (ValueError, TypeError, Refused) as error:
        raise ValueError(f"{kind} {name!r}: {error}") from None
    if filter.since_ns is not None or filter.until_ns is not None:
        remedy = "remove since and until" + (" (see since=)" if kind == "rule" else "")
        raise ValueError(f"{kind} {name!r}: its filter must not have a time range; {remedy}")
    return filter_to_dict(filter)


def _check_rate(name: str, rate: float) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ValueError(f"rule {name!r}: a sample rate must be a number from 0 to 1, got {rate!r}")
    return float(rate)


def _check_number(name: str, argument: str, value: float, *, zero: bool = False) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not is_number or value < 0 or (value == 0 and not zero):
        raise ValueError(f"rule {name!r}: {argument} must be a number {'>= 0' if zero else '> 0'}, got {value!r}")
    return value


def _check_budget(name: str, budget: Mapping[str, float]) -> Mapping[str, float]:
    for key, limit in budget.items():
        if key not in BUDGET_LIMITS:
            hint = did_you_mean(key, BUDGET_LIMITS) or f"; expected one of: {', '.join(BUDGET_LIMITS)}"
            raise ValueError(f"rule {name!r}: unknown budget {key!r}{hint}")
        _check_number(name, f"budget[{key!r}]", limit, zero=True)
    return dict(budget)


API_OWNER = "api"  # owner of rules that were created through the API; the store already has them
REASON_UNSAVED = "the rule is not saved yet"
RuleKey: TypeAlias = tuple[str, str]  # (project, name)


class ActiveRule:
    """Rule that this worker has loaded. `in_force` is the store's record of the rule.

    `idle` is the reason why the worker does not execute the rule, or None.
    """

    def __init__(self, rule: MonitoredRule) -> None:
        self.record = rule.record
        self.evaluators: tuple[Evaluator, ...] = rule.evaluators
        self.in_force = rule.record
        self.idle: str | None = REASON_UNSAVED
        self.is_paused = False
        self.barred: str | None = None  # reason why the rule cannot be executed as it is defined
        self.suspended: str | None = None  # reason why this process does not execute the rule, whatever the store says
        self.backfill: Backfill | None = None  # backfill of this version that is executed now
        self.barred_backfills: Mapping[str, str] = {}  # ids of backfills that cannot be executed, with the reasons

    @property
    def name(self) -> RuleKey:
        """Return project and name."""
        return rule_key(self.record)

    @property
    def reported_idle(self) -> str | None:
        """Return the reason for idling, for reports.

        A pause is left out: the store knows of it, and a report could be outdated.
        """
        return None if self.is_paused else self.idle

    def update(self, current: Rule | None) -> None:
        """Update the state from the rule that the store has in force under this name. None means that the rule was
        removed.
        """
        self.is_paused = current is not None and current.version == self.record.version and not current.enabled
        if current is None:
            self.idle = "the rule was removed"
        elif current.version != self.record.version:
            self.idle = f"version {self.record.version} was superseded by {current.version}"
        elif not current.enabled:
            self.idle = describe_pause(current)
        else:
            self.idle = self.barred or self.suspended
        if current is not None and current.version == self.record.version:
            self.in_force = current


def rule_key(rule: Rule) -> RuleKey:
    """Return project and name of a rule."""
    return rule.project, rule.name


def save_rules(store: Store, active_rules: Sequence[ActiveRule], owner: str | None, *, activate: bool) -> None:
    """Put rules in force.

    A version that was superseded is put in force again only with `activate`. Without it, the worker keeps the rule
    but does not execute it. Raises `Refused` for a rule that belongs to another owner.
    """
    # rules of the API are already in the store
    records = [rule.record for rule in active_rules if owner is None or rule.record.owner != API_OWNER]
    if records and not activate:
        # if a version was superseded, save the version that is in force instead
        current = {rule_key(rule): rule for rule in store.rules()}
        superseded = {
            (rule_key(rule), rule.version)
            for rule in store.rules(all_versions=True)
            if rule_key(rule) in current and rule.version != current[rule_key(rule)].version
        }
        records = [
            current[rule_key(record)] if (rule_key(record), record.version) in superseded else record
            for record in records
        ]
    if records:
        store.save_rule(*records, owner=owner, activate=activate)
    refresh_rules(store, active_rules)


def refresh_rules(store: Store, active_rules: Sequence[ActiveRule]) -> None:
    """Update the state of all rules from the store."""
    current = {rule_key(rule): rule for rule in store.rules()}
    for active_rule in active_rules:
        active_rule.update(current.get(active_rule.name))
