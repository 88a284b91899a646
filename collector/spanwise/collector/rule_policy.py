"""Rule policy: filter, sampling rate, eligibility and validation of a monitoring rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from math import inf, isfinite
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused
from spanwise.collector.filters import COMPARED_CONDITIONS, Filter, extend_filter, metadata_text, validate_rule_filter
from spanwise.collector.records import (
    JSON,
    Backfill,
    Period,
    Rule,
    RuleSettings,
    SettingsVersion,
    TraceHead,
    TraceSummary,
)

SECOND_NS = 1_000_000_000
PERIOD_NS: Mapping[Period, int] = {"minute": 60 * SECOND_NS, "day": 86_400 * SECOND_NS}
MIN_PACING_FACTOR = 1e-3  # lower bound of the factor by which pacing multiplies a rule's rates
RELATIVE_CONDITIONS = ("since_ns", "until_ns")  # conditions that users give relative to now
_NUMERIC_SETTINGS = (
    "concurrency",
    "timeout_s",
    "retries",
    "priority",
    "quiet_s",
    "max_wait_s",
    "session_quiet_s",
    "max_bytes",
)
_SETTING_NAMES = tuple(field.name for field in fields(RuleSettings))


def build_rule_filter(conditions: Mapping[str, JSON]) -> Filter:
    """Build the filter of a rule or stratum. Raises `Refused` for unknown conditions, and for those relative to now.

    Older versions checked values less strictly, so stored rules may have a plain number as a latency or text
    condition. Such rules are accepted.
    """
    try:
        filter = validate_rule_filter(
            extend_filter(None, {name: _normalize_stored_value(name, value) for name, value in conditions.items()})
        )
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from error
    if relative := [name for name in RELATIVE_CONDITIONS if getattr(filter, name) is not None]:
        raise Refused(
            f"the filter of a rule cannot have the condition {relative[0]!r}, which is relative to now; a rule applies to"
            " new traces, and with its option `since` to older ones"
        )
    return filter


def _normalize_stored_value(name: str, value: JSON) -> JSON:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return (
        ("=", value)
        if name in COMPARED_CONDITIONS
        else value
        if name.startswith(("since", "until"))
        else metadata_text(value)
    )


def build_rule_filters(rule: Rule, settings: RuleSettings) -> tuple[Filter, ...]:
    """Return the rule's own filter, followed by those of its strata. `TraceHead.passes` has the results in this order.

    Raises `Refused`.
    """
    return tuple(map(build_rule_filter, (rule.filter, *(stratum.filter for stratum in settings.strata))))


def find_setting(history: Iterable[SettingsVersion], change: int) -> SettingsVersion | None:
    """Return the settings that were in force at a position of the change feed, from a history sorted newest first.

    If the position precedes the whole history, the oldest settings apply.
    """
    last = None
    for last in history:
        if last.from_change <= change:
            return last
    return last


def get_sampling_rate(settings: RuleSettings, passes: Sequence[bool | None]) -> tuple[float, int | None]:
    """Return the sampling rate for a target, and the index of the stratum that set it; None if no stratum matched.

    `passes` says for each stratum whether the trace passes its filter. None (not yet decided) counts as False, so
    call this only when all are decided.
    """
    stratum = next((index for index, passed in enumerate(passes) if passed), None)
    rate = settings.sample_rate if stratum is None else settings.strata[stratum].rate
    return rate * (1.0 if settings.paced is None else settings.paced), stratum


BUDGET_LIMITS = ("usd_per_month", "usd_per_day", "usd_per_minute", "calls_per_day", "calls_per_minute")


def make_backfill(
    rule: Rule,
    since_ns: int,
    until_ns: int,
    sample_rate: float | None = None,
    budget: Mapping[str, float] = MappingProxyType({}),
    id: str | None = None,
) -> Backfill:
    """Return a backfill with the version, the filter and the rates of a rule.

    With `sample_rate`, every trace has this rate, and the rule's strata do not apply. Raises `Refused` for a value out
    of range.
    """
    if not 0 <= since_ns < until_ns:
        raise Refused(
            f"a backfill needs a period that ends after its start, got since_ns={since_ns!r}, until_ns={until_ns!r}"
        )
    if sample_rate is not None and not 0 < sample_rate <= 1:
        raise Refused(f"the sample rate of a backfill must be above 0 and at most 1, got {sample_rate!r}")
    for name, limit in budget.items():
        if name not in BUDGET_LIMITS:
            raise Refused(f"unknown budget {name!r}; expected one of: {', '.join(BUDGET_LIMITS)}")
        _check_range(limit, inf, f"budget[{name!r}]")
    return Backfill(
        id=id or uuid4().hex[:12],
        project=rule.project,
        rule=rule.name,
        version=rule.version,
        since_ns=since_ns,
        until_ns=until_ns,
        filter=rule.filter,
        sample_rate=rule.settings.sample_rate if sample_rate is None else sample_rate,
        strata=rule.settings.strata if sample_rate is None else (),
        budget=dict(budget),
    )


def get_backfill_rule(rule: Rule, backfill: Backfill) -> Rule:
    """Return the rule as a backfill applies it: to traces of any age, with the rates of the backfill."""
    settings = replace(rule.settings, sample_rate=backfill.sample_rate, strata=backfill.strata, paced=None)
    return replace(rule, filter=backfill.filter, settings=settings, active_from=0, since_ns=None)


def get_sampling_unit(rule: Rule, head: TraceHead | TraceSummary) -> str:
    """Return the key that sampling hashes: one per trace, or one per session within a project."""
    if rule.target == "session" and head.session_id is not None:
        return f"{head.project}/{head.session_id}"
    return head.trace_id


def get_initial_cursor(rule: Rule) -> str | None:
    """Return the position in the change feed at which a rule without decisions starts."""
    return None if rule.since_ns is not None else str(rule.active_from)


def get_budget_name(rule: Rule, limit: str) -> str:
    """Return the name under which a rule's budget is booked, for a limit such as `usd_per_day`."""
    return f"{rule.project}/{rule.name}/{limit}"


def describe_pause(rule: Rule) -> str:
    """Return "the rule is paused", with the actor and the time if they are known."""
    by = f" by {rule.paused_by}" if rule.paused_by else ""
    if rule.paused_ns is None:
        return f"the rule is paused{by}"
    return f"the rule is paused{by} since {datetime.fromtimestamp(rule.paused_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"


def find_period(period: Period, now_ns: int) -> tuple[int, int]:
    """Return start and end of the UTC minute, day or month of a time, in nanoseconds."""
    if period == "month":
        first = datetime.fromtimestamp(now_ns // SECOND_NS, UTC).replace(day=1, hour=0, minute=0, second=0)
        later = (first + timedelta(days=31)).replace(day=1)
        return int(first.timestamp()) * SECOND_NS, int(later.timestamp()) * SECOND_NS
    start_ns = now_ns - now_ns % PERIOD_NS[period]
    return start_ns, start_ns + PERIOD_NS[period]


def get_budget_period(limit: str) -> Period:
    """Return the period of a limit such as `usd_per_day`."""
    periods: tuple[Period, ...] = ("minute", "month")
    return next((period for period in periods if limit.endswith(f"_per_{period}")), "day")


def find_exclusion_reason(rule: Rule, head: TraceHead) -> str | None:
    """Return the reason why a rule ignores a trace regardless of its filter; None if it does not."""
    if head.project != rule.project:
        return f"the trace is of project {head.project!r}, the rule of {rule.project!r}"
    if head.judgement:
        return "it is a trace of an evaluator"
    if head.experiment_id is not None and rule.scope == "live":
        return f"it belongs to experiment {head.experiment_id!r}, and the rule applies only to live traffic"
    if head.experiment_id is None and rule.scope == "experiments":
        return "it belongs to no experiment, and the rule applies only to experiments"
    if head.change <= rule.active_from and (rule.since_ns is None or head.start_ns < rule.since_ns):
        return f"it last changed before version {rule.version!r} of the rule was activated"
    return None


def update_settings(settings: RuleSettings, changes: RuleSettings | Mapping[str, Any]) -> RuleSettings:
    """Return the settings with some of them replaced. Raises `Refused` for an unknown name or an invalid value."""
    if isinstance(changes, RuleSettings):
        return changes
    if unknown := next((name for name in changes if name not in _SETTING_NAMES), None):
        from spanwise.tracer.suggestions import did_you_mean  # loads the tracer, so import it only for errors

        raise Refused(f"unknown setting {unknown!r} of a rule{did_you_mean(unknown, _SETTING_NAMES, form=': {}')}")
    try:
        return record_encoding.decode(RuleSettings, record_encoding.encode({**asdict(settings), **changes}))
    except ValueError as error:
        raise Refused(str(error)) from error


def validate_rule(rule: Rule) -> None:
    """Raise `Refused` for an invalid rule: an empty name, an invalid filter, or a number out of range."""
    if not rule.name.strip() or not rule.version:
        raise Refused(f"a rule needs a name and a version, got {rule.name!r} and {rule.version!r}")
    settings = rule.settings
    try:
        build_rule_filters(rule, settings)
        for rate in (settings.sample_rate, *(stratum.rate for stratum in settings.strata)):
            _check_range(rate, 1, "a rate")
        if settings.paced is not None:
            _check_range(settings.paced, 1, "paced")
        for name in _NUMERIC_SETTINGS:
            _check_range(getattr(settings, name), inf, name)
        for name, limit in settings.budget.items():
            _check_range(limit, inf, f"budget[{name!r}]")
    except Refused as error:
        raise Refused(f"rule {rule.name!r}: {error}") from error


def _check_range(value: float, most: float, name: str) -> None:
    if not (0 <= value <= most and isfinite(value)):
        raise Refused(f"{name} must be {f'between 0 and {most:g}' if most < inf else '>= 0'}, got {value!r}")
