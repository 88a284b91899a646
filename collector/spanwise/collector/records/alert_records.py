"""Alert records: definitions, the state of each group, looks, and the history of status changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spanwise.collector.records.json_values import JSON
from spanwise.collector.records.notification_records import Notification

AlertStatus = Literal["no data", "ok", "firing", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Alert definition: a quantity, a condition on it, and the targets that are notified.

    The quantity is one of:

    - the mean score of `rule` under `key`, or the share of its scores with `label`;
    - a `measure` of traces, such as `latency_ms > 8000`: the share of the traces (those that pass `filter`) for which
      it is true;
    - a `measure` of the operation, such as `lag_s` (see `spanwise.collector.alerts.OPERATIONAL_MEASURES`);
    - the seconds since the last score of `rule`, if `no_score_for_s` is given.

    The condition is one of `below`, `above` and `drop` (against the seven days before the window). An alert belongs to
    a project, and its name is unique there. `version` is a hash of the fields that define quantity and condition. The
    other fields (`to`, `no_data_s`, `repeat_s`, `enabled`) can change without a new version. The store sets
    `looked_ns`, `left_out_groups`, `left_out_names` and the fields about snoozing.
    """

    name: str
    version: str = ""
    project: str = "default"
    rule: str | None = None
    key: str | None = None
    label: str | None = None
    measure: str | None = None
    filter: Mapping[str, JSON] = field(default_factory=dict)
    below: float | None = None
    above: float | None = None
    drop: float | None = None
    no_score_for_s: float | None = None
    window_s: float = 86_400.0
    by: str | None = None  # field that divides the traces into groups
    sure: float = 0.999  # probability with which the bound of one look holds
    fire_after: int = 3  # breaches in a row after which the alert fires
    resolve_after: int = 3  # looks in a row without a breach after which it is resolved
    to: tuple[str, ...] = ()  # names of notification targets
    no_data_s: float | None = None  # seconds without data after which a notification says so
    repeat_s: float | None = None  # seconds after which a firing alert is notified again, unless acknowledged
    owner: str = "api"
    enabled: bool = True
    created_ns: int = field(default_factory=time.time_ns)
    looked_ns: int = 0  # time of the last look: the end of its window
    left_out_groups: int = 0  # groups beyond the 100 with the most traffic
    left_out_names: tuple[str, ...] = ()
    snoozed_until_ns: int | None = None
    snoozed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertNumbers:
    """Numbers of one look at one group.

    `value` is the estimate, `bound` its one-sided bound (of the difference, for `drop`), and `threshold` the limit
    that the bound is compared with. `missing` says why there are no data. `undecided` is the number of traces that
    were not decided when the look had waited for ten minutes. `left_out` counts scores with an unknown sampling
    probability.
    """

    value: float | None = None
    bound: float | None = None
    threshold: float | None = None
    baseline: float | None = None  # mean of the seven days before the window, for `drop`
    baseline_variance: float | None = None
    n: int = 0
    effective_n: float = 0.0
    filled_blocks: int = 0
    failed: int = 0
    skipped: int = 0
    left_out: int = 0
    undecided: int = 0
    missing: str = ""
    is_breach: bool | None = None
    since_ns: int = 0  # window
    until_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """State of one group of an alert (`group` None: the alert has no groups), and the numbers of its last look.

    `changed_ns` is the time of the look that changed the status. `event` identifies that change, `changes` counts them.
    While a `drop` fires, `baseline` is the mean, with its variance, that the firing began with, for the version
    `rule_version` of the rule. `no_data_ns` is the time since when looks have had no data.
    """

    project: str
    alert: str
    group: str | None = None
    status: AlertStatus = "no data"
    breaches: int = 0
    clears: int = 0
    numbers: AlertNumbers = AlertNumbers()
    changed_ns: int = 0
    event: str = ""
    changes: int = 0
    baseline: tuple[float, float] | None = None
    rule_version: str = ""
    no_data_ns: int | None = None
    notified_targets: tuple[str, ...] = ()  # targets to which the present firing was reported
    notified_event: str = ""  # the change that was notified last
    notified_ns: int = 0
    acknowledged_event: str = ""  # the change that was acknowledged
    acknowledged_by: str = ""
    acknowledged_ns: int | None = None
    snoozed_until_ns: int | None = None
    snoozed_by: str = ""

    @property
    def is_acknowledged(self) -> bool:
        """Return whether the present status is acknowledged."""
        return bool(self.event) and self.acknowledged_event == self.event


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """Change of the status of a group, with the numbers of the look that caused it.

    The status "closed" ends a firing because the alert was edited or deleted; `reason` says so.
    """

    id: str
    project: str
    alert: str
    version: str
    group: str | None
    before: AlertStatus
    after: AlertStatus | Literal["closed"]
    at_ns: int
    numbers: AlertNumbers = AlertNumbers()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertResult:
    """Result of one look at an alert, to be stored in one transaction with its notifications.

    `token` is that of the lease under which the look ran, `now_ns` the time of the runner's clock. `groups` are the new states, without those fields that people
    set. `dropped` are groups that are no longer kept.
    """

    project: str
    alert: str
    version: str
    token: int
    looked_ns: int
    now_ns: int
    groups: tuple[AlertGroup, ...]
    events: tuple[AlertEvent, ...] = ()
    notifications: tuple[Notification, ...] = ()
    dropped: tuple[str, ...] = ()
    left_out_groups: int = 0
    left_out_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFiring:
    """Time for which an alert would have fired: from `since_ns` until `until_ns` (None: it fires at the end)."""

    group: str | None
    since_ns: int
    until_ns: int | None
    numbers: AlertNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCheck:
    """Result of running an alert over past traffic: when it would have fired, and how long it had no data.

    `looks` counts the looks of all groups, `without_data` those without data, and `missing` says which data were missing most
    often.
    """

    alert: str
    since_ns: int
    until_ns: int
    looks: int
    without_data: int
    firings: tuple[AlertFiring, ...]
    missing: str = ""
    groups: int = 1

    @property
    def share_without_data(self) -> float:
        """Return the share of the looks that had no data."""
        return self.without_data / self.looks if self.looks else 1.0
