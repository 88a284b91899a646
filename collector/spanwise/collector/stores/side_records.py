"""Records of senders besides runs: amendments, started runs, and reports of processes, as all stores keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Amendment, OpenRun, Process, ProcessReport
from spanwise.collector.stores.backends import SideRecord
from spanwise.collector.stores.run_codec import Fact
from spanwise.collector.stores.table_rows import INT_MAX, clean, dumps, loads
from spanwise.collector.stores.trace_assembly import FEEDBACK_FIELD
from spanwise.tracer import attribute_names as names

MAX_OPEN_RUNS, MAX_PROCESSES = 10_000, 10_000  # stored ones; the latest are kept
MAX_AMENDMENTS, MAX_AMENDMENT_BYTES = 10_000, 64 * 1024 * 1024  # all that wait for runs which have not arrived
MAX_AMENDED_BYTES = 32 * 1024 * 1024  # size of a run beyond which amendments are refused

# Amendments.

NO_TRACE = ""  # trace id of amendments by response id
ANY_PROJECT = ""  # project of amendments for a run of any project


class AmendmentTarget(NamedTuple):
    """Target of an amendment: a span, or a model response (without a trace); in one project or in any."""

    trace_id: str
    span_id: str  # span id, or response id if `trace_id` is `NO_TRACE`
    project: str


def get_amendment_target(amendment: Amendment) -> AmendmentTarget:
    """Return the target of an amendment, cleaned for the table."""
    ids = (NO_TRACE, amendment.response_id) if amendment.response_id else (amendment.trace_id, amendment.span_id)
    return AmendmentTarget(*map(clean, (*ids, amendment.project or ANY_PROJECT)))


def choose_evaluated_call(response_id: str, found: Sequence[tuple[str, Fact]]) -> list[tuple[str, Fact]]:
    """Return the span to which feedback on a response belongs: the earliest model call with its id, or else the
    earliest other span.

    Raises `Refused` if spans of several projects have this id, and the sender did not say which project it means.
    """
    projects = sorted({fact.project for _, fact in found})
    if len(projects) > 1:
        raise Refused(
            f"response {response_id!r} is of several projects ({', '.join(map(repr, projects))}); set the resource"
            " attribute 'openinference.project.name' of the feedback to one of them"
        )
    return sorted(found, key=lambda span: (span[1].kind != "llm", span[1].start_ns, span[1].span_id))[:1]


def find_amended_spans(
    target: AmendmentTarget, fields: Mapping[str, JSON], calls: Sequence[tuple[str, Fact]]
) -> list[AmendmentTarget]:
    """Return the spans that an amendment of a response concerns, of those with its id: feedback belongs to one call."""
    chosen = choose_evaluated_call(target.span_id, calls) if FEEDBACK_FIELD in fields else calls
    return [AmendmentTarget(trace_id, fact.span_id, target.project) for trace_id, fact in chosen]


def check_amended_size(what: str, size: int, limit: int) -> None:
    """Raise `Refused` if a run, or what waits for it, is too large."""
    if size > limit:
        raise Refused(f"{what} would take {size:,} bytes; the limit is {limit:,}")


# Started runs.

MAX_TEXT_CHARACTERS = 1000
OPEN_RUN_COLUMNS = tuple(field.name for field in fields(OpenRun))


def truncate_open_run(run: OpenRun) -> OpenRun:
    """Clean and truncate a run for the table."""
    fields = {name: clean(getattr(run, name)) for name in OPEN_RUN_COLUMNS}
    texts = {name: value[:MAX_TEXT_CHARACTERS] for name, value in fields.items() if isinstance(value, str)}
    return OpenRun(**{**fields, **texts, "start_ns": max(0, min(run.start_ns, INT_MAX))})


def make_open_run(row: Sequence[Any]) -> OpenRun:
    """Return the run of a row of `OPEN_RUN_COLUMNS`."""
    return OpenRun(**dict(zip(OPEN_RUN_COLUMNS, row, strict=True)))


def group_open_runs(rows: Iterable[Sequence[Any]]) -> dict[str, list[OpenRun]]:
    """Return the runs of rows of `OPEN_RUN_COLUMNS` by trace."""
    by_trace: dict[str, list[OpenRun]] = {}
    for row in rows:
        by_trace.setdefault(row[0], []).append(make_open_run(row))
    return by_trace


# Processes.

MAX_DROP_REASONS = 50  # maximum number of drop reasons in one report
MAX_INSTANCE_CHARACTERS = 200
PROCESS_FIELDS = ("service", "project", "environment", "pid")
_COUNT_FIELDS = ("started", "open", "delivered", "spilled", "pending")


class SenderProcess(NamedTuple):
    """Process named by a resource."""

    instance: str
    service: str | None
    pid: int | None


def read_sender_process(resource: Mapping[str, JSON]) -> SenderProcess | None:
    """Return the process that a resource names, or None."""
    instance, service, pid = (resource.get(name) for name in (names.INSTANCE, "service.name", names.REPORT_PID))
    if not isinstance(instance, str) or not 0 < len(instance) <= MAX_INSTANCE_CHARACTERS:
        return None
    return SenderProcess(instance, service if isinstance(service, str) else None, pid if isinstance(pid, int) else None)


def encode_report(report: ProcessReport, now: int) -> tuple[Any, ...]:
    counts: dict[str, JSON] = {name: _bounded_count(getattr(report, name)) for name in _COUNT_FIELDS}
    dropped = {
        str(reason)[:64]: _bounded_count(count) for reason, count in islice(report.dropped.items(), MAX_DROP_REASONS)
    }
    process = (clean(getattr(report, name)) for name in PROCESS_FIELDS)
    # These counts never decrease, so they tell which report is later even if the process's clock is set back.
    progress = _bounded_count(report.started + report.delivered + sum(report.dropped.values()))
    data = dumps({**counts, "dropped": dropped})
    return (clean(report.instance), now, *process, _bounded_count(report.reported_ns), progress, data)


def make_process(process: Sequence[Any], sender: Sequence[Any], reported_ns: int | None, data: str | None) -> Process:
    """Return a process.

    `process` has its id, number of spans, and last activity, `sender` the values of `PROCESS_FIELDS`, and `data` the
    counts of its report, if any.
    """
    instance, stored, seen_ns = process
    fields: dict[str, Any] = dict(zip(PROCESS_FIELDS, sender, strict=True))
    report = ProcessReport(instance=instance, reported_ns=reported_ns or 0, **fields, **loads(data)) if data else None
    return Process(instance=instance, stored=stored, seen_ns=seen_ns, **fields, report=report)


# Copies.

# Fields of `SideRecord`, by kind
SIDE_RECORD_FIELDS: Mapping[str, Sequence[str]] = {
    "open_run": (*OPEN_RUN_COLUMNS, "seen_ns"),
    "process": ("instance", "stored", "seen_ns", *PROCESS_FIELDS, "reported_ns", "progress", "report"),
    "amendment": ("trace_id", "span_id", "project", "fields", "size", "seen_ns"),
    "tombstone": ("trace_id", "until_ns"),
    "outlet": ("name", "url", "cursor", "sent", "dropped", "error", "updated_ns"),
}


def make_side_record(kind: str, row: Sequence[Any]) -> SideRecord:
    """Return the record of a row of `SIDE_RECORD_FIELDS`."""
    return SideRecord(kind, dict(zip(SIDE_RECORD_FIELDS[kind], row, strict=True)))


def _bounded_count(value: int) -> int:
    return max(0, min(value, INT_MAX))
