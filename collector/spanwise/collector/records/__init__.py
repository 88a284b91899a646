"""The records that travel between stores, API, evaluators and pages: frozen, and without logic beyond their invariants.

Times are integer nanoseconds since the Unix epoch, ids are lower-case hex, costs are US dollars. Every field that holds
user data (`inputs`, `outputs`, `metadata`, …) holds plain JSON values.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy import lazy

if TYPE_CHECKING:
    from spanwise.collector.records._admin import AuditEvent, Key, Outlet, QueueItem, Retention
    from spanwise.collector.records._amendment import Amendment
    from spanwise.collector.records._case import Case
    from spanwise.collector.records._change import CHANGEABLE, changed
    from spanwise.collector.records._dataset import Dataset, Example, Experiment, example_id
    from spanwise.collector.records._feedback import (
        Feedback,
        Target,
        checked_feedback,
        checked_target,
        feedback_id,
        restored,
        scored,
    )
    from spanwise.collector.records._ids import canonical
    from spanwise.collector.records._lists import (
        Branch,
        Bucket,
        FeedbackStats,
        Page,
        RunScores,
        SessionSummary,
        TraceSummary,
        paged,
    )
    from spanwise.collector.records._monitor import (
        Booked,
        Booking,
        Changes,
        Claim,
        Condition,
        Decided,
        Decision,
        Finish,
        Head,
        Lease,
        Rule,
        RuleSettings,
        RuleStatus,
        Setting,
        Stratum,
        WeightedScore,
        Why,
        WorkerReport,
    )
    from spanwise.collector.records._numbering import Numbering, distinct
    from spanwise.collector.records._process import Process, ProcessReport
    from spanwise.collector.records._quick import quick
    from spanwise.collector.records._run import Document, Event, Link, OpenRun, Run, Trace, Usage
    from spanwise.collector.records._values import (
        JSON,
        DatasetKind,
        Outcome,
        Period,
        QueueStatus,
        RuleTarget,
        Scope,
        Source,
        Status,
        Verdict,
    )
else:
    __getattr__, __dir__ = lazy(
        __name__,
        _admin="AuditEvent Key Outlet QueueItem Retention",
        _amendment="Amendment",
        _case="Case",
        _change="CHANGEABLE changed",
        _dataset="Dataset Example Experiment example_id",
        _feedback="Feedback Target checked_feedback checked_target feedback_id restored scored",
        _ids="canonical",
        _lists="Branch Bucket FeedbackStats Page RunScores SessionSummary TraceSummary paged",
        _monitor="Booked Booking Changes Claim Condition Decided Decision Finish Head "
        "Lease Rule RuleSettings RuleStatus Setting Stratum WeightedScore Why WorkerReport",
        _numbering="Numbering distinct",
        _process="Process ProcessReport",
        _quick="quick",
        _run="Document Event Link OpenRun Run Trace Usage",
        _values="JSON DatasetKind Outcome Period QueueStatus RuleTarget Scope Source Status Verdict",
    )

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Amendment",
    "AuditEvent",
    "Booked",
    "Booking",
    "Branch",
    "Bucket",
    "CHANGEABLE",
    "Case",
    "Changes",
    "Claim",
    "Condition",
    "Dataset",
    "DatasetKind",
    "Decided",
    "Decision",
    "Document",
    "Event",
    "Example",
    "Experiment",
    "Feedback",
    "FeedbackStats",
    "Finish",
    "Head",
    "JSON",
    "Key",
    "Lease",
    "Link",
    "Numbering",
    "OpenRun",
    "Outcome",
    "Outlet",
    "Page",
    "Period",
    "Process",
    "ProcessReport",
    "QueueItem",
    "QueueStatus",
    "Retention",
    "Rule",
    "RuleSettings",
    "RuleStatus",
    "RuleTarget",
    "Run",
    "RunScores",
    "Scope",
    "SessionSummary",
    "Setting",
    "Source",
    "Status",
    "Stratum",
    "Target",
    "Trace",
    "TraceSummary",
    "Usage",
    "Verdict",
    "WeightedScore",
    "Why",
    "WorkerReport",
    "canonical",
    "changed",
    "checked_feedback",
    "checked_target",
    "distinct",
    "example_id",
    "feedback_id",
    "paged",
    "quick",
    "restored",
    "scored",
]
