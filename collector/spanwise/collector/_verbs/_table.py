"""The table: one row per verb of the stores.

Where two paths fit one address the row above answers, so that the longer one comes first. A name may hold slashes
(`:path`). What the API has beside the verbs of the stores is in `spanwise.collector.api._routes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spanwise.collector._verbs._forms import REQUIRED, change_of
from spanwise.collector._verbs._verb import verb
from spanwise.collector.records import DatasetKind, Example, Feedback
from spanwise.collector.stores import ControlStore, TraceStore

# Of one request: far below what the server takes, so that no batch is refused for its size alone
BATCH, IDS = 1000, 500


class Traces:
    """The verbs of `TraceStore`, but for `close`, `feedback`, which is `add_feedback` of one, and `each`, which is many
    `traces`.
    """

    append = verb(
        TraceStore.append,
        "POST /api/traces",
        tag="traces",
        says="Keep runs, and feedback on them, together or not at all; answered when they are durable.",
    )
    amend = verb(TraceStore.amend, "PATCH /api/runs/{trace_id}/{span_id}", tag="traces")
    add_amendments = verb(TraceStore.add_amendments, "POST /api/amendments", tag="traces", batch=BATCH)
    traces = verb(
        TraceStore.traces,
        "GET /api/traces",
        tag="traces",
        says="Traces that pass the conditions in the query string, latest first.",
    )
    delete = verb(
        TraceStore.delete,
        "DELETE /api/traces",
        tag="traces",
        needs="admin",
        patient=True,
        says="Remove the traces that pass, with all that hangs on them. No conditions at all are refused.",
    )
    many = verb(TraceStore.many, "POST /api/traces/many", tag="traces", needs="read", batch=IDS)
    tree = verb(TraceStore.tree, "GET /api/traces/{trace_id}/tree", tag="traces")
    runs = verb(TraceStore.runs, "GET /api/traces/{trace_id}/runs", tag="traces")
    run = verb(TraceStore.run, "GET /api/traces/{trace_id}/run", tag="traces")
    trace = verb(TraceStore.trace, "GET /api/traces/{trace_id}", tag="traces")
    scores = verb(TraceStore.scores, "GET /api/scores", tag="feedback")
    sessions = verb(TraceStore.sessions, "GET /api/sessions", tag="traces")
    aggregate = verb(TraceStore.aggregate, "GET /api/aggregate", tag="traces")
    values = verb(TraceStore.values, "GET /api/values/{field}", tag="traces")
    changes = verb(TraceStore.changes, "POST /api/changes", tag="traces", needs="read")
    explain = verb(TraceStore.explain, "POST /api/explain/{trace_id}", tag="traces", needs="read")
    count = verb(TraceStore.count, "GET /api/count", tag="traces")

    running = verb(TraceStore.running, "GET /api/running", tag="traces")
    add_running = verb(TraceStore.add_running, "POST /api/running", tag="traces", batch=BATCH)
    processes = verb(TraceStore.processes, "GET /api/processes", tag="traces")
    add_reports = verb(TraceStore.add_reports, "POST /api/processes", tag="traces", batch=BATCH)

    outlets = verb(TraceStore.outlets, "GET /api/outlets", tag="feedback", needs="admin")
    feedbacks = verb(
        TraceStore.feedbacks,
        "GET /api/feedback",
        tag="feedback",
        says="Feedback on traces that pass, or on one target (a JSON object), newest first.",
    )
    add_feedback = verb(TraceStore.add_feedback, "POST /api/feedback", tag="feedback", needs="feedback", batch=BATCH)
    change_feedback = verb(
        TraceStore.change_feedback,
        "PATCH /api/feedback",
        tag="feedback",
        wire={"changes": (dict[str, change_of(Feedback)], REQUIRED)},  # type: ignore[misc]
        says="Change fields of feedback by id; all or none. What it is about and whose it is cannot change.",
    )
    delete_feedback = verb(
        TraceStore.delete_feedback, "DELETE /api/feedback", tag="feedback", alias={"ids": "id"}, batch=IDS, patient=True
    )

    prune = verb(TraceStore.prune, "POST /api/prune", tag="keeping", needs="admin", count="deleted", patient=True)
    vacuum = verb(
        TraceStore.vacuum, "POST /api/vacuum", tag="keeping", needs="admin", count="freed_bytes", patient=True
    )


class Control:
    """The verbs of `ControlStore`, but for `close`."""

    datasets = verb(ControlStore.datasets, "GET /api/datasets", tag="datasets")
    versions = verb(ControlStore.versions, "GET /api/datasets/{name:path}/versions", tag="datasets")
    examples = verb(ControlStore.examples, "GET /api/datasets/{dataset:path}/examples", tag="datasets")
    save_examples = verb(
        ControlStore.save_examples,
        "POST /api/datasets/{dataset:path}/examples",
        tag="datasets",
        wire={"examples": (Sequence[Example], ()), "kind": (DatasetKind | None, None)},
        says="Add, overwrite or remove examples. Makes the dataset if it is new, a new version if anything changed.",
    )
    dataset = verb(ControlStore.dataset, "GET /api/datasets/{name:path}", tag="datasets")
    delete_dataset = verb(ControlStore.delete_dataset, "DELETE /api/datasets/{name:path}", tag="datasets")

    experiments = verb(ControlStore.experiments, "GET /api/experiments", tag="experiments")
    save_experiment = verb(
        ControlStore.save_experiment,
        "POST /api/experiments",
        tag="experiments",
        says="Create or overwrite, by id: one, or all of a list or none.",
    )
    experiment = verb(ControlStore.experiment, "GET /api/experiments/{id_or_name:path}", tag="experiments")
    change_experiment = verb(ControlStore.change_experiment, "PATCH /api/experiments/{id:path}", tag="experiments")
    delete_experiment = verb(ControlStore.delete_experiment, "DELETE /api/experiments/{id:path}", tag="experiments")

    rules = verb(ControlStore.rules, "GET /api/rules", tag="monitor")
    save_rule = verb(
        ControlStore.save_rule,
        "POST /api/rules",
        tag="monitor",
        says="Put rules in force, by project and name, all or none; a new version supersedes the one before.",
    )
    settings = verb(ControlStore.settings, "GET /api/settings/{name:path}", tag="monitor")
    change_rule = verb(ControlStore.change_rule, "PATCH /api/rules/{name:path}", tag="monitor")
    delete_rule = verb(ControlStore.delete_rule, "DELETE /api/rules/{name:path}", tag="monitor")

    cursor = verb(ControlStore.cursor, "GET /api/cursor", tag="monitor")
    decide = verb(
        ControlStore.decide,
        "POST /api/decide",
        tag="monitor",
        says="Keep what was decided, each in one transaction with the rule's cursor; whether it was kept.",
    )
    decisions = verb(ControlStore.decisions, "GET /api/decisions", tag="monitor")
    delete_decisions = verb(ControlStore.delete_decisions, "DELETE /api/decisions", tag="monitor")
    claim = verb(
        ControlStore.claim,
        "POST /api/claim",
        tag="monitor",
        says="Take what is due of a rule, oldest first, to be run within some seconds; durable when it is answered.",
    )
    renew = verb(
        ControlStore.renew,
        "POST /api/renew",
        tag="monitor",
        says="Hold claims some seconds longer; false for those that somebody else has by now.",
    )
    finish = verb(
        ControlStore.finish,
        "POST /api/finish",
        tag="monitor",
        says="Keep what came of claims, feedback first; of each finished, waiting, or refused and why.",
    )

    acquire = verb(
        ControlStore.acquire,
        "POST /api/leases/acquire",
        tag="monitor",
        says="Take or renew a lease; null while another holder has it.",
    )
    release = verb(
        ControlStore.release,
        "POST /api/leases/release",
        tag="monitor",
        says="Give a lease back; false if this holder has it not.",
    )
    leases = verb(ControlStore.leases, "GET /api/leases", tag="monitor")
    delete_lease = verb(ControlStore.delete_lease, "DELETE /api/leases/{name:path}", tag="monitor")
    book = verb(
        ControlStore.book,
        "POST /api/budgets/book",
        tag="monitor",
        says="Reserve amounts, each unless it would pass its limit; whether it is reserved. An id books once.",
    )
    settle = verb(
        ControlStore.settle,
        "POST /api/budgets/settle",
        tag="monitor",
        says="Put in the place of what was reserved, by id, what it came to.",
    )
    booked = verb(ControlStore.booked, "GET /api/budgets", tag="monitor")
    delete_budget = verb(ControlStore.delete_budget, "DELETE /api/budgets/{budget:path}", tag="monitor")
    why = verb(ControlStore.why, "GET /api/why/{trace_id}", tag="monitor")
    status = verb(ControlStore.status, "GET /api/status", tag="monitor")
    report = verb(ControlStore.report, "POST /api/workers", tag="monitor")
    weighted = verb(ControlStore.weighted, "GET /api/weighted", tag="monitor")

    retention = verb(ControlStore.retention, "GET /api/retention", tag="keeping")
    set_retention = verb(ControlStore.set_retention, "POST /api/retention", tag="keeping", needs="admin")

    keys = verb(ControlStore.keys, "GET /api/keys", tag="keys", needs="admin")
    save_key = verb(ControlStore.save_key, "POST /api/keys", tag="keys", needs="admin")
    delete_key = verb(ControlStore.delete_key, "DELETE /api/keys/{id}", tag="keys", needs="admin")

    audit = verb(ControlStore.audit, "GET /api/audit", tag="keys", needs="admin")

    queues = verb(ControlStore.queues, "GET /api/queues", tag="queues")
    enqueue = verb(ControlStore.enqueue, "POST /api/queues", tag="queues", batch=BATCH)
    resolve = verb(
        ControlStore.resolve,
        "PATCH /api/queues/items/{item_id}",
        tag="queues",
        wire={"status": (Literal["waiting", "done", "skipped"], REQUIRED)},
    )
    queue = verb(
        ControlStore.queue,
        "GET /api/queues/{name:path}",
        tag="queues",
        says="Items of a queue, oldest first; `status=` (empty) for all of them.",
    )
