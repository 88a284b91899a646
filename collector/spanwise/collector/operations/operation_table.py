"""Table of the store operations: method, path and required permission of each.

If two paths match a URL, the first row of the table answers. Longer paths therefore come first. A name in a path may
hold slashes (`:path`). The module `spanwise.collector.api.routes` adds the endpoints that are not store operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spanwise.collector.operations.request_mapping import REQUIRED, define_changes, store_operation
from spanwise.collector.records import DatasetKind, Example, Feedback
from spanwise.collector.stores import ControlStore, TraceStore

# maximum items of one request, far below the server's limit, so that no batch is refused for its number of items
MAX_BATCH_ITEMS, MAX_BATCH_IDS = 1000, 500


class TraceOperations:
    """Operations of `TraceStore`.

    `close` is not an HTTP operation. `feedback` is sent as an `add_feedback` request, and `each` as several
    `traces` requests.
    """

    append = store_operation(
        TraceStore.append,
        "POST /api/traces",
        tag="traces",
        says="Keep runs, and feedback on them, together or not at all; answered when they are durable.",
    )
    amend = store_operation(TraceStore.amend, "PATCH /api/runs/{trace_id}/{span_id}", tag="traces")
    add_amendments = store_operation(
        TraceStore.add_amendments, "POST /api/amendments", tag="traces", batch=MAX_BATCH_ITEMS
    )
    traces = store_operation(
        TraceStore.traces,
        "GET /api/traces",
        tag="traces",
        says="Traces that pass the conditions in the query string, latest first.",
    )
    delete = store_operation(
        TraceStore.delete,
        "DELETE /api/traces",
        tag="traces",
        needs="admin",
        patient=True,
        says="Remove the traces that pass, with all that hangs on them. No conditions at all are refused.",
    )
    many = store_operation(TraceStore.many, "POST /api/traces/many", tag="traces", needs="read", batch=MAX_BATCH_IDS)
    tree = store_operation(TraceStore.tree, "GET /api/traces/{trace_id}/tree", tag="traces")
    runs = store_operation(TraceStore.runs, "GET /api/traces/{trace_id}/runs", tag="traces")
    run = store_operation(TraceStore.run, "GET /api/traces/{trace_id}/run", tag="traces")
    trace = store_operation(TraceStore.trace, "GET /api/traces/{trace_id}", tag="traces")
    scores = store_operation(TraceStore.scores, "GET /api/scores", tag="feedback")
    sessions = store_operation(TraceStore.sessions, "GET /api/sessions", tag="traces")
    aggregate = store_operation(TraceStore.aggregate, "GET /api/aggregate", tag="traces")
    values = store_operation(TraceStore.values, "GET /api/values/{field}", tag="traces")
    changes = store_operation(TraceStore.changes, "POST /api/changes", tag="traces", needs="read")
    explain = store_operation(TraceStore.explain, "POST /api/explain/{trace_id}", tag="traces", needs="read")
    count = store_operation(TraceStore.count, "GET /api/count", tag="traces")

    running = store_operation(TraceStore.running, "GET /api/running", tag="traces")
    add_running = store_operation(TraceStore.add_running, "POST /api/running", tag="traces", batch=MAX_BATCH_ITEMS)
    processes = store_operation(TraceStore.processes, "GET /api/processes", tag="traces")
    add_reports = store_operation(TraceStore.add_reports, "POST /api/processes", tag="traces", batch=MAX_BATCH_ITEMS)

    outlets = store_operation(TraceStore.outlets, "GET /api/outlets", tag="feedback", needs="admin")
    feedbacks = store_operation(
        TraceStore.feedbacks,
        "GET /api/feedback",
        tag="feedback",
        says="Feedback on traces that pass, or on one target (a JSON object), newest first.",
    )
    add_feedback = store_operation(
        TraceStore.add_feedback, "POST /api/feedback", tag="feedback", needs="feedback", batch=MAX_BATCH_ITEMS
    )
    change_feedback = store_operation(
        TraceStore.change_feedback,
        "PATCH /api/feedback",
        tag="feedback",
        wire={"changes": (dict[str, define_changes(Feedback)], REQUIRED)},  # type: ignore[misc]
        says="Change fields of feedback by id; all or none. What it is about and whose it is cannot change.",
    )
    delete_feedback = store_operation(
        TraceStore.delete_feedback,
        "DELETE /api/feedback",
        tag="feedback",
        alias={"ids": "id"},
        batch=MAX_BATCH_IDS,
        patient=True,
    )

    prune = store_operation(
        TraceStore.prune, "POST /api/prune", tag="keeping", needs="admin", count="deleted", patient=True
    )
    vacuum = store_operation(
        TraceStore.vacuum, "POST /api/vacuum", tag="keeping", needs="admin", count="freed_bytes", patient=True
    )


class ControlOperations:
    """Operations of `ControlStore` except `close`."""

    datasets = store_operation(ControlStore.datasets, "GET /api/datasets", tag="datasets")
    versions = store_operation(ControlStore.versions, "GET /api/datasets/{name:path}/versions", tag="datasets")
    examples = store_operation(ControlStore.examples, "GET /api/datasets/{dataset:path}/examples", tag="datasets")
    save_examples = store_operation(
        ControlStore.save_examples,
        "POST /api/datasets/{dataset:path}/examples",
        tag="datasets",
        wire={"examples": (Sequence[Example], ()), "kind": (DatasetKind | None, None)},
        says="Add, overwrite or remove examples. Makes the dataset if it is new, a new version if anything changed.",
    )
    dataset = store_operation(ControlStore.dataset, "GET /api/datasets/{name:path}", tag="datasets")
    delete_dataset = store_operation(ControlStore.delete_dataset, "DELETE /api/datasets/{name:path}", tag="datasets")

    experiments = store_operation(ControlStore.experiments, "GET /api/experiments", tag="experiments")
    save_experiment = store_operation(
        ControlStore.save_experiment,
        "POST /api/experiments",
        tag="experiments",
        says="Create or overwrite, by id: one, or all of a list or none.",
    )
    experiment = store_operation(ControlStore.experiment, "GET /api/experiments/{id_or_name:path}", tag="experiments")
    change_experiment = store_operation(
        ControlStore.change_experiment, "PATCH /api/experiments/{id:path}", tag="experiments"
    )
    delete_experiment = store_operation(
        ControlStore.delete_experiment, "DELETE /api/experiments/{id:path}", tag="experiments"
    )

    rules = store_operation(ControlStore.rules, "GET /api/rules", tag="monitor")
    save_rule = store_operation(
        ControlStore.save_rule,
        "POST /api/rules",
        tag="monitor",
        says="Put rules in force, by project and name, all or none; a new version supersedes the one before.",
    )
    settings = store_operation(ControlStore.settings, "GET /api/settings/{name:path}", tag="monitor")
    change_rule = store_operation(ControlStore.change_rule, "PATCH /api/rules/{name:path}", tag="monitor")
    delete_rule = store_operation(ControlStore.delete_rule, "DELETE /api/rules/{name:path}", tag="monitor")

    cursor = store_operation(ControlStore.cursor, "GET /api/cursor", tag="monitor")
    decide = store_operation(
        ControlStore.decide,
        "POST /api/decide",
        tag="monitor",
        says="Keep what was decided, each in one transaction with the rule's cursor; whether it was kept.",
    )
    decisions = store_operation(ControlStore.decisions, "GET /api/decisions", tag="monitor")
    delete_decisions = store_operation(ControlStore.delete_decisions, "DELETE /api/decisions", tag="monitor")
    claim = store_operation(
        ControlStore.claim,
        "POST /api/claim",
        tag="monitor",
        says="Take what is due of a rule, oldest first, to be run within some seconds; durable when it is answered.",
    )
    renew = store_operation(
        ControlStore.renew,
        "POST /api/renew",
        tag="monitor",
        says="Hold claims some seconds longer; false for those that somebody else has by now.",
    )
    finish = store_operation(
        ControlStore.finish,
        "POST /api/finish",
        tag="monitor",
        says="Keep what came of claims, feedback first; of each finished, waiting, or refused and why.",
    )

    acquire = store_operation(
        ControlStore.acquire,
        "POST /api/leases/acquire",
        tag="monitor",
        says="Take or renew a lease; null while another holder has it.",
    )
    release = store_operation(
        ControlStore.release,
        "POST /api/leases/release",
        tag="monitor",
        says="Give a lease back; false if this holder has it not.",
    )
    leases = store_operation(ControlStore.leases, "GET /api/leases", tag="monitor")
    delete_lease = store_operation(ControlStore.delete_lease, "DELETE /api/leases/{name:path}", tag="monitor")
    book = store_operation(
        ControlStore.book,
        "POST /api/budgets/book",
        tag="monitor",
        says="Reserve amounts, each unless it would pass its limit; whether it is reserved. An id books once.",
    )
    settle = store_operation(
        ControlStore.settle,
        "POST /api/budgets/settle",
        tag="monitor",
        says="Put in the place of what was reserved, by id, what it came to.",
    )
    booked = store_operation(ControlStore.booked, "GET /api/budgets", tag="monitor")
    delete_budget = store_operation(ControlStore.delete_budget, "DELETE /api/budgets/{budget:path}", tag="monitor")
    why = store_operation(ControlStore.why, "GET /api/why/{trace_id}", tag="monitor")
    status = store_operation(ControlStore.status, "GET /api/status", tag="monitor")
    report = store_operation(ControlStore.report, "POST /api/workers", tag="monitor")
    weighted = store_operation(ControlStore.weighted, "GET /api/weighted", tag="monitor")

    retention = store_operation(ControlStore.retention, "GET /api/retention", tag="keeping")
    set_retention = store_operation(ControlStore.set_retention, "POST /api/retention", tag="keeping", needs="admin")

    keys = store_operation(ControlStore.keys, "GET /api/keys", tag="keys", needs="admin")
    save_key = store_operation(ControlStore.save_key, "POST /api/keys", tag="keys", needs="admin")
    delete_key = store_operation(ControlStore.delete_key, "DELETE /api/keys/{id}", tag="keys", needs="admin")

    audit = store_operation(ControlStore.audit, "GET /api/audit", tag="keys", needs="admin")

    queues = store_operation(ControlStore.queues, "GET /api/queues", tag="queues")
    enqueue = store_operation(ControlStore.enqueue, "POST /api/queues", tag="queues", batch=MAX_BATCH_ITEMS)
    resolve = store_operation(
        ControlStore.resolve,
        "PATCH /api/queues/items/{item_id}",
        tag="queues",
        wire={"status": (Literal["waiting", "done", "skipped"], REQUIRED)},
    )
    queue = store_operation(
        ControlStore.queue,
        "GET /api/queues/{name:path}",
        tag="queues",
        says="Items of a queue, oldest first; `status=` (empty) for all of them.",
    )
