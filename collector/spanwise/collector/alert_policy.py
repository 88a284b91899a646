"""Alert policy: validation and version of an alert definition, time between its looks, operational measures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.filters import COMPARED_CONDITIONS
from spanwise.collector.records import Alert, AlertEvent, AlertGroup, Notification, canonical_json
from spanwise.collector.rule_policy import build_rule_filter
from spanwise.collector.statistics import WINDOW_BLOCKS

MIN_WINDOW_S, MAX_WINDOW_S = 3_600, 7 * 86_400
BASELINE_S = 7 * 86_400  # seconds before the window with which `drop` compares
MIN_INTERVAL_S = 60  # seconds between two looks
MAX_GROUPS = 100
MAX_SURE = 0.999999
CLOCK_TOLERANCE_NS = 3_600_000_000_000  # a look that is further in the future is from before the clock was set back
# Measures of the operation, read from the store's state: whether they need a threshold, and their description
OPERATIONAL_MEASURES: Mapping[str, tuple[bool, str]] = MappingProxyType(
    {
        "evaluator_errors": (True, "share of a rule's results that are errors"),
        "lag_s": (True, "seconds by which a rule's decisions lag behind its traffic"),
        "budget_used": (True, "used share of a rule's budget, reserved amounts included"),
        "no_worker": (False, "no live worker runs the rule"),
        "rules_broken": (False, "a rules file does not load"),
        "rule_paused": (False, "evaluators of the rule are paused because of their errors"),
        "store_full": (False, "the disk of the store is full"),
    }
)
GROUPING_FIELDS = ("tag", "model", "environment", "prompt_version", "agent", "name", "user")  # and metadata.KEY
_UNKEPT_CONDITIONS = frozenset(
    ("feedback", "document_feedback", "missing", "untried", "failed", "skipped", "text", "complete", "experiments")
)
_VERSIONED_FIELDS = (
    *("rule", "key", "label", "measure", "filter", "below", "above", "drop", "no_score_for_s", "window_s", "by"),
    *("sure", "fire_after", "resolve_after"),
)
_MEASURE_PATTERN = re.compile(r"\s*([a-z_]+)\s*(<=|>=|<|>)\s*([-+.0-9eE]+)\s*")


class TraceMeasure(NamedTuple):
    """Condition on single traces, such as `latency_ms > 8000`: a field, an operator and a number."""

    field: str
    operator: str
    number: float


def parse_measure(text: str) -> TraceMeasure:
    """Parse a condition on traces. Raises `Refused`."""
    match = _MEASURE_PATTERN.fullmatch(text)
    try:
        if match and match[1] in COMPARED_CONDITIONS and isfinite(float(match[3])):
            return TraceMeasure(match[1], match[2], float(match[3]))
    except ValueError:
        pass
    raise Refused(
        f"unknown measure {text!r}; write a condition such as 'latency_ms > 8000' (fields: "
        f"{', '.join(COMPARED_CONDITIONS)}), or one of: {', '.join(OPERATIONAL_MEASURES)}"
    )


def is_operational(alert: Alert) -> bool:
    """Return whether the alert reads the state of the operation, which needs no estimate."""
    return alert.no_score_for_s is not None or alert.measure in OPERATIONAL_MEASURES


def has_kept_sums(alert: Alert) -> bool:
    """Return whether the alert has a measure of traces whose sums a store keeps: one whose conditions only new runs
    change, and neither feedback nor time.
    """
    return alert.measure is not None and not is_operational(alert) and not _UNKEPT_CONDITIONS & {*alert.filter}


def get_interval_ns(alert: Alert) -> int:
    """Return the nanoseconds between two looks: a 24th of the window; a minute for operational alerts."""
    if is_operational(alert):
        return MIN_INTERVAL_S * 1_000_000_000
    return max(MIN_INTERVAL_S, get_block_s(alert)) * 1_000_000_000


def get_block_s(alert: Alert) -> int:
    """Return the seconds of one of the blocks that divide the window."""
    return int(alert.window_s) // WINDOW_BLOCKS


def assign_alert_version(alert: Alert) -> Alert:
    """Return the alert with its version: 12 hex digits, a hash of quantity and condition."""
    content = {name: getattr(alert, name) for name in _VERSIONED_FIELDS}
    return replace(alert, version=hashlib.sha256(canonical_json(content)).hexdigest()[:12])


def validate_alert(alert: Alert) -> None:
    """Raise `Refused` for an invalid definition."""
    try:
        _check_quantity(alert)
        _check_condition(alert)
        _check_settings(alert)
    except Refused as error:
        raise Refused(f"alert {alert.name!r}: {error}") from error


def _check_quantity(alert: Alert) -> None:
    if not alert.name.strip() or len(alert.name) > 200 or not alert.name.isprintable() or alert.name in (".", ".."):
        raise Refused(f"the name must be a text of 1 to 200 printable characters, not a dot, got {alert.name!r:.80}")
    if build_rule_filter(alert.filter).dataset is not None:
        raise Refused("traces of live traffic have no dataset; remove it from the filter")
    if alert.filter and (alert.measure is None or is_operational(alert)):
        raise Refused("only measures of traces have a filter; scores have the filter of their rule")
    if alert.measure is None:
        if alert.rule is None:
            raise Refused("name the rule whose scores it reads, or a measure")
        if alert.no_score_for_s is not None and (alert.by is not None or alert.label is not None):
            raise Refused("no_score_for has no groups and labels; remove by and label")
        if alert.key is None and alert.no_score_for_s is None:
            raise Refused(f"name the key of the scores of rule {alert.rule!r} that it reads")
        return
    if alert.no_score_for_s is not None or alert.key is not None or alert.label is not None:
        raise Refused("a measure cannot be combined with key, label or no_score_for")
    if alert.measure in OPERATIONAL_MEASURES:
        if alert.by is not None:
            raise Refused(f"the measure {alert.measure!r} has no groups; remove by")
    else:
        parse_measure(alert.measure)
        if alert.rule is not None:
            raise Refused(f"the measure {alert.measure!r} reads all traces; use a filter instead of a rule")


def _check_condition(alert: Alert) -> None:
    conditions = {
        name: getattr(alert, name)
        for name in ("below", "above", "drop", "no_score_for_s")
        if getattr(alert, name) is not None
    }
    if alert.measure is not None and not OPERATIONAL_MEASURES.get(alert.measure, (True, ""))[0]:
        if conditions:
            raise Refused(f"the measure {alert.measure!r} is true or false; remove {', '.join(conditions)}")
        return
    if len(conditions) != 1:
        raise Refused(f"an alert needs exactly one of below, above, drop and no_score_for; got {len(conditions)}")
    [(name, value)] = conditions.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise Refused(f"{name} must be a finite number, got {value!r}")
    if name in ("drop", "no_score_for_s") and value < 0:
        raise Refused(f"{name} must be >= 0, got {value!r}")
    if name == "drop" and is_operational(alert):
        raise Refused(f"the measure {alert.measure!r} has no baseline; use above or below")


def _check_settings(alert: Alert) -> None:
    if not MIN_WINDOW_S <= alert.window_s <= MAX_WINDOW_S or alert.window_s % 3_600:
        raise Refused(f"window must be a whole number of hours from 1 h to 7 d, got {alert.window_s:g} seconds")
    if not 0.5 < alert.sure <= MAX_SURE:
        raise Refused(f"sure must be a probability above 0.5 and at most {MAX_SURE}, got {alert.sure!r}")
    for name in ("fire_after", "resolve_after"):
        if getattr(alert, name) < 1:
            raise Refused(f"{name} must be at least 1 look, got {getattr(alert, name)!r}")
    for name in ("no_data_s", "repeat_s"):
        if (value := getattr(alert, name)) is not None and not (value > 0 and isfinite(value)):
            raise Refused(f"{name} must be a positive number of seconds, got {value!r}")
    is_metadata = alert.by is not None and alert.by.startswith("metadata.") and alert.by != "metadata."
    if alert.by is not None and alert.by not in GROUPING_FIELDS and not is_metadata:
        raise Refused(f"unknown field {alert.by!r} in by; expected one of: {', '.join(GROUPING_FIELDS)}, metadata.KEY")


def close_group(alert: Alert, group: AlertGroup, reason: str, now_ns: int) -> tuple[AlertEvent, Notification | None]:
    """Return the event that closes a firing group, and a notification to those to whom the firing was reported."""
    event = AlertEvent(
        id=f"{group.event}-closed",
        project=alert.project,
        alert=alert.name,
        version=alert.version,
        group=group.group,
        before="firing",
        after="closed",
        at_ns=now_ns,
        numbers=group.numbers,
        reason=reason,
    )
    if not group.notified_targets or group.notified_event != group.event:
        return event, None
    name = alert.name if group.group is None else f"{alert.name} [{group.group}]"
    return event, Notification(
        id=event.id,
        project=alert.project,
        alert=alert.name,
        group=group.group,
        status="closed",
        headline=f"{name} is closed: {reason}",
        created_ns=now_ns,
        targets=group.notified_targets,
    )
