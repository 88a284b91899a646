"""Alert definition in a rules file: `alert(...)`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace

from spanwise.collector.alerts import assign_alert_version, is_operational, validate_alert
from spanwise.collector.errors import Refused
from spanwise.collector.filters import parse_duration
from spanwise.collector.records import Alert
from spanwise.evaluators.monitors.monitored_rule import FilterLike, normalize_filter

# collects the alerts of the file that is being loaded
alerts_being_loaded: ContextVar[list[Alert] | None] = ContextVar("alerts_being_loaded", default=None)


def alert(
    name: str,
    *,
    rule: str | None = None,
    key: str | None = None,
    label: str | None = None,
    measure: str | None = None,
    filter: FilterLike = None,
    below: float | None = None,
    above: float | None = None,
    drop: float | None = None,
    no_score_for: str | float | None = None,
    window: str | float = "24h",
    by: str | None = None,
    to: Sequence[str] = (),
    no_data: str | float | None = None,
    repeat: str | float | None = None,
    sure: float = 0.999,
    fire_after: int | None = None,
    resolve_after: int | None = None,
    project: str | None = None,
    enabled: bool = True,
) -> Alert:
    """Define an alert: it fires when a quantity of live traffic is surely beyond a threshold.

    The quantity is the mean score of `rule` under `key`, the share of its scores with `label`, or a `measure`: the
    share of traces for which a condition such as `"latency_ms > 8000"` is true (of those that pass `filter`), or a
    measure of the operation: evaluator_errors, lag_s, budget_used, no_worker, rules_broken, rule_paused, store_full.
    `no_score_for` fires if the rule has given no score for that time.

    Exactly one of `below`, `above` and `drop` is given, in units of the quantity; `drop` compares with the seven days
    before the window. The alert is evaluated 24 times per `window`, a whole number of hours from 1 h to 7 d. A look is
    a breach if the one-sided bound of the estimate, which holds with the probability `sure`, is beyond the threshold.
    The alert fires after `fire_after` breaches in a row (default: 3; 1 for measures of the operation), and is resolved
    after `resolve_after` looks without a breach. `by` makes one group per value of tag, model, environment,
    prompt_version, agent, name, user or metadata.KEY.

    `to` names notification targets of the server. `no_data` is the time without data after which they are notified,
    `repeat` the time after which a firing is notified again, unless it is acknowledged. Times are durations such as
    `"6h"`, or seconds. The default `project` is SPANWISE_PROJECT, else "default". Raises `ValueError` for an invalid
    definition.
    """
    definition = Alert(
        name=name,
        project=project or os.environ.get("SPANWISE_PROJECT") or "default",
        rule=rule,
        key=key,
        label=label,
        measure=measure,
        filter=normalize_filter(name, filter, "alert"),
        below=below,
        above=above,
        drop=drop,
        no_score_for_s=_parse_seconds(name, "no_score_for", no_score_for),
        window_s=_parse_seconds(name, "window", window) or 0.0,
        by=by,
        sure=sure,
        to=(to,) if isinstance(to, str) else tuple(to),
        no_data_s=_parse_seconds(name, "no_data", no_data),
        repeat_s=_parse_seconds(name, "repeat", repeat),
        enabled=enabled,
    )
    default = 1 if is_operational(definition) else 3
    definition = replace(definition, fire_after=fire_after or default, resolve_after=resolve_after or default)
    try:
        validate_alert(definition)
    except Refused as error:
        raise ValueError(str(error)) from None
    definition = assign_alert_version(definition)
    if (alerts := alerts_being_loaded.get()) is not None:
        alerts.append(definition)
    return definition


def _parse_seconds(name: str, argument: str, value: str | float | None) -> float | None:
    try:
        return parse_duration(value) / 1e9 if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"alert {name!r}: {argument}: {error}") from None
