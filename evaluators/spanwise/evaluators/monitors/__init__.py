"""Monitoring rules on live traffic: definition, sampling decisions, execution, worker processes.

Modules, in the order in which data flows:

- `monitored_rule`: Rule definition: `monitor(...)`, content version, and its state in the store.
- `alert_definition`: Alert definition in a rules file: `alert(...)`.
- `rule_loading`: Rule loading: Python files and API data, file watching, description of the loaded rules.
- `rule_spending`: Spending of a rule: budget ledger in the store, and pacing of the sample rate over the day and the month.
- `rule_decision`: Decision of a rule on a trace: filter, sampling probability, targets, readiness, decision record.
- `feed_follower`: Change feed of a rule: lease, slices, decisions, and their delivery to the store.
- `backfill_walk`: Walk of a backfill: pages of its period, decisions on their traces, and the job that a rule executes now.
- `rule_jobs`: Jobs of a rule: claimed targets, evaluator threads and event loop, concurrency, circuit breaker.
- `job_executor`: Executor of jobs: claims due targets, loads their cases, watches timeouts, stores outcomes.
- `monitor_runtime`: Monitor: threads that follow the feed, execute jobs, renew claims and send reports.
- `worker`: Worker process entry point: loads rules, sends heartbeats, restarts the monitor when API rules change.
- `worker_process`: Worker process as the supervisor handles it: limits, start, pipe messages, deadlines, cause of
  death.
- `supervisor`: Supervisor: starts, restarts and stops worker processes; quarantines rules that crash them.
- `rule_analysis`: Analysis of rules: preview on stored traffic, comparison with a shadow rule, estimated means.
"""

from spanwise.evaluators.monitors.alert_definition import alert
from spanwise.evaluators.monitors.job_executor import Stuck
from spanwise.evaluators.monitors.monitor_runtime import Monitor
from spanwise.evaluators.monitors.monitored_rule import MonitoredRule, monitor
from spanwise.evaluators.monitors.rule_analysis import (
    BackfillEstimate,
    KeyDifference,
    RuleComparison,
    RulePreview,
    TrialScore,
    check,
    diff,
    estimate_backfill,
    summary,
)
from spanwise.evaluators.monitors.rule_loading import BrokenRules, RulesFile, load, load_file, load_rule
from spanwise.evaluators.monitors.supervisor import Supervisor
from spanwise.evaluators.monitors.worker_process import LoadedRules, WorkerPlan, default_memory_limit

__all__ = [
    "BackfillEstimate",
    "BrokenRules",
    "KeyDifference",
    "LoadedRules",
    "Monitor",
    "MonitoredRule",
    "RuleComparison",
    "RulePreview",
    "RulesFile",
    "Stuck",
    "Supervisor",
    "TrialScore",
    "WorkerPlan",
    "alert",
    "check",
    "default_memory_limit",
    "diff",
    "estimate_backfill",
    "load",
    "load_file",
    "load_rule",
    "monitor",
    "summary",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "rule_jobs",
    "rule_spending",
]
