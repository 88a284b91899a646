"""Alerts: looks at the estimates of live traffic, changes of status, and checks on past traffic.

The definitions are validated in `spanwise.collector.alert_policy`; the statistics of a look are in
`spanwise.collector.statistics.alert_evaluation`. Modules, in the order in which data flows:

- `alert_runner`: Alert runner: a thread that looks at each alert when a look is due, under one lease for the whole store.
- `alert_look`: Look at an alert: read the sums of its window, and evaluate the condition for each group.
- `operational_measures`: Operational measures of alerts, read from the state of rules and of the store.
- `status_changes`: Status changes of an alert: next state of each group, history events, notifications.
- `moving_traces`: Traces that moved the estimate of an alert most.
- `stored_alerts`: Lookup of stored alerts: by name, and with the states of their groups.
- `alert_check`: Check of an alert: run it over past traffic, and say when it would have fired.
"""

from spanwise.collector.alert_policy import (
    OPERATIONAL_MEASURES,
    assign_alert_version,
    get_interval_ns,
    is_operational,
    validate_alert,
)
from spanwise.collector.alerts.alert_check import CHECKED_DAYS, check_alert
from spanwise.collector.alerts.alert_runner import ALERT_LEASE, AlertRunner
from spanwise.collector.alerts.status_changes import (
    describe_condition,
    describe_quantity,
    describe_status,
    format_duration,
    format_time,
    format_value,
)
from spanwise.collector.alerts.stored_alerts import STATUS_ORDER, GroupsByAlert, find_alert, get_groups, read_groups

__all__ = [
    "ALERT_LEASE",
    "CHECKED_DAYS",
    "OPERATIONAL_MEASURES",
    "STATUS_ORDER",
    "AlertRunner",
    "GroupsByAlert",
    "assign_alert_version",
    "check_alert",
    "describe_condition",
    "describe_quantity",
    "describe_status",
    "find_alert",
    "format_duration",
    "format_time",
    "format_value",
    "get_groups",
    "get_interval_ns",
    "is_operational",
    "read_groups",
    "validate_alert",
]
