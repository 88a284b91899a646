"""Table of the store operations: method, path, required permission and project scope of each.

If two paths match a URL, the first row of the table answers. Longer paths therefore come first. A name in a path may
hold slashes (`:path`). The module `spanwise.collector.api.routes` adds the endpoints that are not store operations.
The column `project` is documented in `spanwise.collector.operations.project_scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spanwise.collector.operations.request_mapping import REQUIRED, define_changes, list_project_scopes, store_operation
from spanwise.collector.records import DatasetKind, Example, Feedback
from spanwise.collector.stores import ControlStore as Control
from spanwise.collector.stores import TraceStore as Traces

# maximum items of one request, far below the server's limit, so that no batch is refused for its number of items
MAX_BATCH_ITEMS, MAX_BATCH_IDS = 1000, 500


class TraceOperations:
    """Operations of `TraceStore`.

    `close` is not an HTTP operation. `feedback` is sent as an `add_feedback` request, `each` as several `traces`
    requests, and `to_pandas` as several `table_page` requests.
    """

    append = store_operation(Traces.append, "POST /api/traces", "traces", project="method")
    amend = store_operation(Traces.amend, "PATCH /api/runs/{trace_id}/{span_id}", "traces", project="method")
    add_amendments = store_operation(
        Traces.add_amendments, "POST /api/amendments", "traces", project="method", batch=MAX_BATCH_ITEMS
    )
    traces = store_operation(Traces.traces, "GET /api/traces", "traces", project="filter")
    delete = store_operation(
        Traces.delete, "DELETE /api/traces", "traces", permission="admin", project="filter", client_timeout=False
    )
    many = store_operation(
        Traces.many,
        "POST /api/traces/many",
        "traces",
        permission="read",
        project="method",
        batch=MAX_BATCH_IDS,
        scans=True,
    )
    tree = store_operation(Traces.tree, "GET /api/traces/{trace_id}/tree", "traces", project="trace")
    runs = store_operation(Traces.runs, "GET /api/traces/{trace_id}/runs", "traces", project="trace")
    run = store_operation(Traces.run, "GET /api/traces/{trace_id}/run", "traces", project="trace")
    trace = store_operation(Traces.trace, "GET /api/traces/{trace_id}", "traces", project="method")
    table_page = store_operation(Traces.table_page, "GET /api/tables/{table}", "traces", project="method")
    scores = store_operation(Traces.scores, "GET /api/scores", "feedback", project="method")
    sessions = store_operation(Traces.sessions, "GET /api/sessions", "traces", project="filter")
    aggregate = store_operation(Traces.aggregate, "GET /api/aggregate", "traces", project="filter", scans=True)
    measure_sums = store_operation(
        Traces.measure_sums,
        "POST /api/measure-sums",
        "traces",
        permission="read",
        project="argument",
        scans=True,
    )
    values = store_operation(Traces.values, "GET /api/values/{field}", "traces", project="argument")
    changes = store_operation(
        Traces.changes,
        "POST /api/changes",
        "traces",
        permission="read",
        project="method",
        query_timeout=False,  # pages are small, and a time limit could stop a monitor at one page forever
    )
    heads = store_operation(
        Traces.heads, "POST /api/heads", "traces", permission="read", project="argument", query_timeout=False
    )
    explain = store_operation(
        Traces.explain, "POST /api/explain/{trace_id}", "traces", permission="read", project="trace"
    )
    count = store_operation(Traces.count, "GET /api/count", "traces")

    running = store_operation(Traces.running, "GET /api/running", "traces", project="argument")
    add_running = store_operation(
        Traces.add_running, "POST /api/running", "traces", project="method", batch=MAX_BATCH_ITEMS
    )
    processes = store_operation(Traces.processes, "GET /api/processes", "traces", project="method")
    add_reports = store_operation(
        Traces.add_reports, "POST /api/processes", "traces", project="method", batch=MAX_BATCH_ITEMS
    )

    outlets = store_operation(Traces.outlets, "GET /api/outlets", "feedback", permission="admin")
    feedbacks = store_operation(Traces.feedbacks, "GET /api/feedback", "feedback", project="method")
    add_feedback = store_operation(
        Traces.add_feedback,
        "POST /api/feedback",
        "feedback",
        permission="feedback",
        project="method",
        batch=MAX_BATCH_ITEMS,
    )
    change_feedback = store_operation(
        Traces.change_feedback,
        "PATCH /api/feedback",
        "feedback",
        wire={"changes": (dict[str, define_changes(Feedback)], REQUIRED)},  # type: ignore[misc]
    )
    delete_feedback = store_operation(
        Traces.delete_feedback,
        "DELETE /api/feedback",
        "feedback",
        alias={"ids": "id"},
        batch=MAX_BATCH_IDS,
        client_timeout=False,
    )

    prune = store_operation(
        Traces.prune, "POST /api/prune", "keeping", permission="admin", count="deleted", client_timeout=False
    )
    vacuum = store_operation(
        Traces.vacuum, "POST /api/vacuum", "keeping", permission="admin", count="freed_bytes", client_timeout=False
    )


class ControlOperations:
    """Operations of `ControlStore` except `close`."""

    datasets = store_operation(Control.datasets, "GET /api/datasets", "datasets")
    versions = store_operation(Control.versions, "GET /api/datasets/{name:path}/versions", "datasets")
    examples = store_operation(Control.examples, "GET /api/datasets/{dataset:path}/examples", "datasets")
    save_examples = store_operation(
        Control.save_examples,
        "POST /api/datasets/{dataset:path}/examples",
        "datasets",
        wire={"examples": (Sequence[Example], ()), "kind": (DatasetKind | None, None)},
    )
    dataset = store_operation(Control.dataset, "GET /api/datasets/{name:path}", "datasets")
    delete_dataset = store_operation(Control.delete_dataset, "DELETE /api/datasets/{name:path}", "datasets")

    experiments = store_operation(Control.experiments, "GET /api/experiments", "experiments", project="argument")
    save_experiment = store_operation(Control.save_experiment, "POST /api/experiments", "experiments", project="method")
    experiment = store_operation(
        Control.experiment, "GET /api/experiments/{id_or_name:path}", "experiments", project="method"
    )
    change_experiment = store_operation(
        Control.change_experiment, "PATCH /api/experiments/{id:path}", "experiments", project="method"
    )
    delete_experiment = store_operation(
        Control.delete_experiment, "DELETE /api/experiments/{id:path}", "experiments", project="method"
    )

    rules = store_operation(Control.rules, "GET /api/rules", "monitor", project="argument")
    save_rule = store_operation(Control.save_rule, "POST /api/rules", "monitor", project="method")
    settings = store_operation(Control.settings, "GET /api/settings/{name:path}", "monitor", project="argument")
    change_rule = store_operation(Control.change_rule, "PATCH /api/rules/{name:path}", "monitor", project="argument")
    delete_rule = store_operation(Control.delete_rule, "DELETE /api/rules/{name:path}", "monitor", project="argument")

    cursor = store_operation(Control.cursor, "GET /api/cursor", "monitor", project="argument")
    decide = store_operation(Control.decide, "POST /api/decide", "monitor")
    decisions = store_operation(Control.decisions, "GET /api/decisions", "monitor", project="argument")
    delete_decisions = store_operation(Control.delete_decisions, "DELETE /api/decisions", "monitor", project="argument")
    claim = store_operation(Control.claim, "POST /api/claim", "monitor", project="argument")
    renew = store_operation(Control.renew, "POST /api/renew", "monitor")
    finish = store_operation(Control.finish, "POST /api/finish", "monitor")

    acquire = store_operation(Control.acquire, "POST /api/leases/acquire", "monitor")
    release = store_operation(Control.release, "POST /api/leases/release", "monitor")
    leases = store_operation(Control.leases, "GET /api/leases", "monitor")
    delete_lease = store_operation(Control.delete_lease, "DELETE /api/leases/{name:path}", "monitor")
    book = store_operation(Control.book, "POST /api/budgets/book", "monitor")
    settle = store_operation(Control.settle, "POST /api/budgets/settle", "monitor")
    booked = store_operation(Control.booked, "GET /api/budgets", "monitor")
    spend = store_operation(Control.spend, "GET /api/spend", "monitor", project="argument")
    delete_budget = store_operation(Control.delete_budget, "DELETE /api/budgets/{budget:path}", "monitor")
    why = store_operation(Control.why, "GET /api/why/{trace_id}", "monitor", project="trace")
    status = store_operation(Control.status, "GET /api/status", "monitor", project="argument")
    report = store_operation(Control.report, "POST /api/workers", "monitor")
    weighted = store_operation(Control.weighted, "GET /api/weighted", "monitor", project="argument")
    score_sums = store_operation(
        Control.score_sums, "GET /api/score-sums", "monitor", project="argument", alias={"groups": "group"}
    )

    score_groups = store_operation(Control.score_groups, "GET /api/score-groups", "monitor", project="argument")

    undecided = store_operation(Control.undecided, "GET /api/undecided/{rule:path}", "monitor", project="argument")
    alerts = store_operation(Control.alerts, "GET /api/alerts", "alerts", project="argument")
    save_alert = store_operation(Control.save_alert, "POST /api/alerts", "alerts", project="method")
    record_look = store_operation(Control.record_look, "POST /api/alert-looks", "alerts", project="method")
    alert_events = store_operation(Control.alert_events, "GET /api/alert-events", "alerts", project="argument")
    alert_groups = store_operation(Control.alert_groups, "GET /api/alert-groups", "alerts", project="argument")
    acknowledge_alert = store_operation(
        Control.acknowledge_alert, "POST /api/alerts/{name:path}/acknowledge", "alerts", project="argument"
    )
    snooze_alert = store_operation(
        Control.snooze_alert, "POST /api/alerts/{name:path}/snooze", "alerts", project="argument"
    )
    test_alert = store_operation(Control.test_alert, "POST /api/alerts/{name:path}/test", "alerts", project="argument")
    change_alert = store_operation(Control.change_alert, "PATCH /api/alerts/{name:path}", "alerts", project="argument")
    delete_alert = store_operation(Control.delete_alert, "DELETE /api/alerts/{name:path}", "alerts", project="argument")

    notifications = store_operation(Control.notifications, "GET /api/notifications", "monitor", project="argument")
    # for notifiers; the targets belong to the server, not to one project
    count_due_deliveries = store_operation(
        Control.count_due_deliveries, "GET /api/deliveries", "monitor", permission="admin"
    )
    due_deliveries = store_operation(
        Control.due_deliveries, "GET /api/deliveries/{target:path}", "monitor", permission="admin"
    )
    record_delivery = store_operation(Control.record_delivery, "POST /api/deliveries", "monitor", permission="admin")

    is_full = store_operation(Control.is_full, "GET /api/full", "keeping")
    preview_backfill = store_operation(
        Control.preview_backfill,
        "POST /api/backfills/preview",
        "monitor",
        permission="read",
        project="argument",
        scans=True,
        query_timeout=False,
    )
    start_backfill = store_operation(Control.start_backfill, "POST /api/backfills", "monitor", project="argument")
    backfills = store_operation(Control.backfills, "GET /api/backfills", "monitor", project="argument")
    change_backfill = store_operation(
        Control.change_backfill, "POST /api/backfills/{id}", "monitor", project="argument"
    )

    retention = store_operation(Control.retention, "GET /api/retention", "keeping")
    set_retention = store_operation(Control.set_retention, "POST /api/retention", "keeping", permission="admin")

    keys = store_operation(Control.keys, "GET /api/keys", "keys", permission="admin")
    save_key = store_operation(Control.save_key, "POST /api/keys", "keys", permission="admin")
    delete_key = store_operation(Control.delete_key, "DELETE /api/keys/{id}", "keys", permission="admin")

    audit = store_operation(Control.audit, "GET /api/audit", "keys", permission="admin")

    queues = store_operation(Control.queues, "GET /api/queues", "queues")
    enqueue = store_operation(Control.enqueue, "POST /api/queues", "queues", batch=MAX_BATCH_ITEMS)
    resolve = store_operation(
        Control.resolve,
        "PATCH /api/queues/items/{item_id}",
        "queues",
        wire={"status": (Literal["waiting", "done", "skipped"], REQUIRED)},
    )
    queue = store_operation(Control.queue, "GET /api/queues/{name:path}", "queues")


PROJECT_SCOPES = list_project_scopes(TraceOperations, ControlOperations)
