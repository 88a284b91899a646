"""Control operations in SQL, for every database: datasets, experiments, rules, decisions, leases, budgets, alerts, keys.

Modules, in the order in which data flows:

- `control_database`: Database of control records as its operations see it: transactions, connections, locks and the
  clock.
- `control_operations`: All control operations in one class; API keys, annotation queues, retention rules, audit log.
- `datasets_and_experiments`: Versioned datasets with their examples, and experiment records.
- `rule_versions`: Monitoring rules: versions, activation, and the history of their settings.
- `decisions`: Decisions of rules: recording, lists, sampling probabilities, progress; reports of monitor workers.
- `decision_rows`: Rows of decisions, addresses of their targets, and per-rule counts of traces by outcome.
- `backfills`: Backfills: jobs that score past traces by a rule, the draws of their samples, and when these count.
- `leases`: Leases with expiry and fencing token: on a rule's feed, and on decisions that a worker executes.
- `budgets`: Budgets: amounts reserved before they are spent, settled or expired; spend per rule, evaluator and model.
- `alerts`: Alerts: definitions with versions, the state of each group, the history of status changes, recorded looks.
- `notifications`: Notifications of alerts, and the durable state of their deliveries.
- `control_tables`: Tables of a control backend as rows, for copies between databases: names, keys, export and import.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "control_database",
    "control_operations",
    "control_tables",
    "decision_rows",
]
