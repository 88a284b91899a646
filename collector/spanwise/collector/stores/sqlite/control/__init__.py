"""Control backend: datasets, experiments, rules, decisions, leases, budgets, notifications, keys and the audit log.

Modules, in the order in which data flows:

- `control_backend`: Control backend: all control operations; API keys, queues, retention rules, audit log, budgets.
- `datasets_and_experiments`: Versioned datasets with their examples, and experiment records.
- `rule_versions`: Monitoring rules: versions, activation, and the history of their settings.
- `decisions`: Decisions of rules: recording, lists, sampling probabilities, progress; reports of monitor workers.
- `decision_rows`: Rows of decisions, addresses of their targets, and per-rule counts of traces by outcome.
- `backfills`: Backfills: jobs that score past traces by a rule, the draws of their samples, and when these count.
- `leases`: Leases with expiry and fencing token: on a rule's feed, and on decisions that a worker executes.
- `notifications`: Notifications of alerts, and the durable state of their deliveries.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "control_backend",
    "decision_rows",
]
