"""The records that travel between stores, API, evaluators and pages: frozen, and without logic beyond their invariants.

Times are integer nanoseconds since the Unix epoch, ids are lower-case hex, costs are US dollars. Every field that holds
user data (`inputs`, `outputs`, `metadata`, …) holds plain JSON values.
"""

from assay.collector.records._admin import Key, QueueItem, Retention
from assay.collector.records._case import Case
from assay.collector.records._change import CHANGEABLE, changed
from assay.collector.records._dataset import Dataset, Example, Experiment, example_id
from assay.collector.records._feedback import Feedback, Target, feedback_id, restored, scored
from assay.collector.records._ids import canonical
from assay.collector.records._lists import Bucket, FeedbackStats, Page, RunScores, SessionSummary, TraceSummary, paged
from assay.collector.records._monitor import Decision, Lease, Rule
from assay.collector.records._numbering import Numbering, distinct
from assay.collector.records._process import Process, ProcessReport
from assay.collector.records._run import Document, Event, Link, OpenRun, Run, Trace, Usage
from assay.collector.records._values import JSON, DatasetKind, Outcome, QueueStatus, Source, Status, Verdict

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Bucket",
    "CHANGEABLE",
    "Case",
    "Dataset",
    "DatasetKind",
    "Decision",
    "Document",
    "Event",
    "Example",
    "Experiment",
    "Feedback",
    "FeedbackStats",
    "JSON",
    "Key",
    "Lease",
    "Link",
    "Numbering",
    "OpenRun",
    "Outcome",
    "Page",
    "Process",
    "ProcessReport",
    "QueueItem",
    "QueueStatus",
    "Retention",
    "Rule",
    "Run",
    "RunScores",
    "SessionSummary",
    "Source",
    "Status",
    "Target",
    "Trace",
    "TraceSummary",
    "Usage",
    "Verdict",
    "canonical",
    "changed",
    "distinct",
    "example_id",
    "feedback_id",
    "paged",
    "restored",
    "scored",
]
