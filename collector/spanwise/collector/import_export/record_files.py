"""Files of records, as OTLP JSON and JSON Lines: export of a store, and idempotent import in batches."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.dialects import (
    Amendment,
    FaultHandler,
    LogItem,
    RawLog,
    RawSpan,
    TranslatedSpan,
    write_feedback_attributes,
)
from spanwise.collector.dialects.translation import SPAN_KINDS, STATUSES
from spanwise.collector.errors import Closed, Refused, SpanwiseError, Unavailable
from spanwise.collector.filters import EVALUATOR_KIND, Filter
from spanwise.collector.ingest import json_decoder
from spanwise.collector.ingest.otlp_signals import read_log_item, read_span_item
from spanwise.collector.ingest.request_decoder import Codec, Limits, decode
from spanwise.collector.operations import MAX_LIST_SIZE
from spanwise.collector.record_corrections import present_feedback, present_names, present_run
from spanwise.collector.records import (
    JSON,
    Dataset,
    Example,
    Experiment,
    Feedback,
    QueueItem,
    Retention,
    Rule,
    Run,
    TraceSummary,
    canonical_json,
    iterate_pages,
    split_batches,
)
from spanwise.collector.stores import Store
from spanwise.tracer import attribute_names as names

# OTLP JSON encoding of runs and feedback that decodes to equal records.
#
# Decoding an ordinary OTLP span may lose or change some fields of a record. The attribute `EXACT_ATTRIBUTE` holds
# these fields as JSON. Other products can ignore this attribute, and read an ordinary span.


def encode_value(plain: JSON) -> dict[str, Any]:
    """Encode a value as `AnyValue`. Non-finite numbers, and integers beyond 64 bits, become strings."""
    match plain:
        case None:
            return {}
        case bool():
            return {"boolValue": plain}
        case int():
            return {"intValue": str(plain)} if -(2**63) <= plain < 2**63 else {"stringValue": str(plain)}
        case float():
            return {"doubleValue": plain} if math.isfinite(plain) else {"stringValue": str(plain)}
        case Mapping():
            return {"kvlistValue": {"values": encode_attributes(plain)}}
        case list() | tuple():
            return {"arrayValue": {"values": [encode_value(element) for element in plain]}}
    return {"stringValue": str(plain)}


def encode_attributes(plain: Mapping[str, JSON]) -> list[dict[str, Any]]:
    """Encode a list of `KeyValue`."""
    return [{"key": str(name), "value": encode_value(value)} for name, value in plain.items()]


SpanKey = tuple[str, str]  # trace id and span id
EXACT_ATTRIBUTE = "spanwise.exact"
# practically no limits, because users import their own files
FILE_LIMITS = Limits(spans=10**9, values=10**9, value_bytes=2**31, attributes=10**6)
_ID_FIELDS = ("trace_id", "span_id", "parent_id")


def _read_run(span: RawSpan, fault: FaultHandler) -> Run:
    span.attributes = dict(present_names(span.attributes))
    exact = span.attributes.pop(EXACT_ATTRIBUTE, None)
    translated = read_span_item(span, fault)
    run = translated.run if isinstance(translated, TranslatedSpan) else translated
    if not isinstance(exact, str):
        return run
    fields = record_encoding.decode(dict[str, Any], exact)
    return present_run(msgspec.convert({**msgspec.to_builtins(run), **fields}, Run))


SPAN_CODEC: Codec[Run] = json_decoder.make_codec(
    "Spans", "spans", json_decoder.JSONSpan, json_decoder.convert_span, _read_run
)


def encode_runs(runs: Sequence[Run]) -> tuple[bytes, list[Run]]:
    """Encode runs as an `ExportTraceServiceRequest` in JSON. Return it, and the runs whose ids OTLP does not allow."""
    spans = {_span_key(run): _encode_span(run) for run in runs}
    decoded = _decode_spans(runs, spans)
    inexact = [run for run in runs if decoded.get(_span_key(run)) != run]
    for run in inexact:
        key = _span_key(run)
        # if the decoder refuses the span, for example because a value is nested too deep, encode only the minimal
        # fields
        if key not in decoded:
            spans[key] = _encode_minimal_span(run)
        fields = {
            name: getattr(run, name)
            for name in Run.__dataclass_fields__
            if name not in _ID_FIELDS and (key not in decoded or getattr(run, name) != getattr(decoded[key], name))
        }
        spans[key]["attributes"] += encode_attributes({EXACT_ATTRIBUTE: record_encoding.encode(fields).decode()})
    lost = {_span_key(run) for run in inexact} - _decode_spans(inexact, spans).keys()
    encodable = [run for run in runs if _span_key(run) not in lost]
    return _encode_trace_request(encodable, spans), [run for run in runs if _span_key(run) in lost]


def _span_key(run: Run) -> SpanKey:
    return run.trace_id, run.span_id


def _decode_spans(runs: Iterable[Run], spans: Mapping[SpanKey, Any]) -> dict[SpanKey, Run]:
    """Return the runs that the decoder reads from these spans."""
    return {_span_key(run): run for run in decode(SPAN_CODEC, _encode_trace_request(runs, spans), FILE_LIMITS).items}


def _encode_trace_request(runs: Iterable[Run], spans: Mapping[SpanKey, Any]) -> bytes:
    groups: dict[bytes, tuple[Mapping[str, JSON], dict[tuple[str, str], list[Any]]]] = {}
    for run in runs:
        _, scopes = groups.setdefault(canonical_json(run.resource), (run.resource, {}))
        name, version = run.attributes.get("otel.scope.name"), run.attributes.get("otel.scope.version")
        scopes.setdefault((str(name or "spanwise"), str(version or "")), []).append(spans[_span_key(run)])
    resource_spans = []
    for resource, scopes in groups.values():
        parts = [{"scope": {"name": name, "version": version}, "spans": of} for (name, version), of in scopes.items()]
        resource_spans.append({"resource": {"attributes": encode_attributes(resource)}, "scopeSpans": parts})
    return record_encoding.encode({"resourceSpans": resource_spans})


def _encode_minimal_span(run: Run) -> dict[str, Any]:
    parent = {"parentSpanId": run.parent_id} if run.parent_id else {}
    times = {"startTimeUnixNano": str(run.start_ns), "endTimeUnixNano": str(run.end_ns)}
    return {"traceId": run.trace_id, "spanId": run.span_id, **parent, "name": run.name, **times, "attributes": []}


def _status_code(run: Run) -> int:
    """Return OTLP's status code.

    OTLP has no code for a cancelled run. An attribute marks it (code 0), or else an exception event does (code 2).
    """
    if run.status != "cancelled":
        return STATUSES.index(run.status)
    return 0 if names.CANCELLED in run.attributes else 2


def _encode_span(run: Run) -> dict[str, Any]:
    kind = run.attributes.get("otel.span.kind")
    message = {"message": run.error} if run.error is not None else {}
    encoded = {
        **_encode_minimal_span(run),
        "kind": SPAN_KINDS.index(kind) if kind in SPAN_KINDS[2:] else 1,
        "status": {"code": _status_code(run), **message},
        "attributes": encode_attributes({**run.attributes, **_standard_attributes(run)}),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.time_ns), "attributes": encode_attributes(event.attributes)}
            for event in run.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": encode_attributes(link.attributes)}
            for link in run.links
        ],
    }
    state = run.attributes.get("otel.trace_state")
    return {**encoded, "traceState": state} if isinstance(state, str) else encoded


def _standard_attributes(run: Run) -> dict[str, JSON]:
    """Return the fields of a run under the names of OpenInference, OpenTelemetry GenAI and Spanwise."""
    usage = run.usage
    attributes: dict[str, JSON] = {
        names.KIND: None if run.kind == "unknown" else run.kind.upper(),
        **_content_attributes(names.INPUT_VALUE, names.INPUT_MIME, run.inputs),
        **_content_attributes(names.OUTPUT_VALUE, names.OUTPUT_MIME, run.outputs),
        names.DOCUMENTS_JSON: record_encoding.encode(run.documents).decode() if run.documents else None,
        names.REQUEST_MODEL: run.model,
        names.INPUT_TOKENS: usage.input_tokens if usage else None,
        names.OUTPUT_TOKENS: usage.output_tokens if usage else None,
        **{f"gen_ai.usage.{name}": count for name, count in (usage.details.items() if usage else ())},
        names.COST: run.cost,
        names.SESSION: run.session_id,
        names.USER: run.user_id,
        names.TAGS: list(run.tags) or None,
        names.METADATA: record_encoding.encode(run.metadata).decode() if run.metadata else None,
        names.EXPERIMENT: run.experiment_id,
        names.EXAMPLE: run.example_id,
        names.REPETITION: run.repetition or None,
        names.PROMPT_NAME: run.prompt_name,
        names.PROMPT_VERSION: run.prompt_version,
        names.AGENT_NAME: run.agent_name,
        names.FINISH_REASONS: list(run.finish_reasons) or None,
        names.TIME_TO_FIRST_CHUNK: None if run.time_to_first_token_ms is None else run.time_to_first_token_ms / 1000,
        names.TOOL_DEFINITIONS: record_encoding.encode(run.tools).decode() if run.tools else None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _content_attributes(name: str, mime: str, content: JSON) -> dict[str, JSON]:
    if content is None:
        return {}
    if isinstance(content, str):
        return {name: content}
    return {name: record_encoding.encode(content).decode(), mime: "application/json"}


def _read_feedback(log: RawLog, fault: FaultHandler) -> LogItem | None:
    exact = present_names(log.attributes).get(EXACT_ATTRIBUTE)
    return (
        present_feedback(record_encoding.decode(Feedback, exact))
        if isinstance(exact, str)
        else read_log_item(log, fault)
    )


EVENT_CODEC: Codec[LogItem] = json_decoder.make_codec(
    "Logs", "logRecords", json_decoder.JSONRecord, json_decoder.convert_log_record, _read_feedback
)


def encode_feedback(feedback: Sequence[Feedback]) -> bytes:
    """Encode an `ExportLogsServiceRequest` as JSON."""
    records = [_encode_log_record(row) for row in feedback]
    for row, record in zip(feedback, records, strict=True):
        if decode(EVENT_CODEC, _encode_log_request([record]), FILE_LIMITS).items != [row]:
            record["attributes"] += encode_attributes({EXACT_ATTRIBUTE: record_encoding.encode(row).decode()})
    return _encode_log_request(records)


def _encode_log_request(records: Sequence[dict[str, Any]]) -> bytes:
    return record_encoding.encode(
        {"resourceLogs": [{"scopeLogs": [{"scope": {"name": "spanwise"}, "logRecords": records}]}]}
    )


def _encode_log_record(row: Feedback) -> dict[str, Any]:
    target = row.target
    trace = {"traceId": target.trace_id} if target.trace_id else {}
    span = {"spanId": target.span_id} if target.span_id else {}
    named = {"timeUnixNano": str(row.created_ns), "eventName": names.EVALUATION_EVENT}
    return {**named, **trace, **span, "attributes": encode_attributes(write_feedback_attributes(row))}


# File exporter: all records of a store, or the traces that pass a filter, line by line.

T = TypeVar("T")
FORMATS = ("otlp", "jsonl")
RUNS_PER_LINE, TRACES_PER_BATCH = 500, 100  # spans per line, unless a single trace has more; traces per read
UNLIMITED = 1_000_000


def export_lines(store: Store, format: str, filter: Filter | None = None) -> Iterator[tuple[bytes, Counter[str]]]:
    """Yield lines without line ends, each with its number of records by kind.

    - The format `otlp` has runs and feedback. Records that it cannot represent count as "left out".
    - The format `jsonl` has every record: also datasets with their versions, experiments, rules in force, retention,
      queues and decisions.

    With a filter, the lines hold only the traces that pass and their feedback. Keys, leases and budgets are not
    exported, because they belong to one server.
    """
    if format not in FORMATS:
        raise Refused(f"unknown format {format!r}; expected one of: {', '.join(FORMATS)}")
    if filter == Filter():
        filter = None
    if format == "jsonl":
        records = chain(
            (("run", run) for runs in _runs(store, filter) for run in runs),
            (("feedback", feedback) for feedback in _feedback(store, filter)),
        )
        if filter is None:
            decisions = iterate_pages(partial(store.decisions, limit=RUNS_PER_LINE))
            records = chain(_control_records(store), records, (("decision", decision) for decision in decisions))
        for kind, record in records:
            yield record_encoding.encode({"record": kind, "value": record}), Counter({kind: 1})
        return
    for runs in _runs(store, filter):
        for batch in split_batches(iter(runs), RUNS_PER_LINE):
            line, inexpressible = encode_runs(batch)
            yield line, Counter({"run": len(batch) - len(inexpressible), "left out": len(inexpressible)})
    for feedback in split_batches(_feedback(store, filter), RUNS_PER_LINE):
        yield encode_feedback(feedback), Counter(feedback=len(feedback))


def write_file(lines: Iterable[tuple[bytes, Counter[str]]], path: Path) -> Counter[str]:
    """Write lines to a new file and return the number of records by kind.

    The file has a temporary name until it is complete. Raises `Refused` if `path` exists.
    """
    if path.exists():
        raise Refused(f"file {str(path)!r} already exists: choose another name")
    temporary = path.with_name(path.name + ".part")
    counts = Counter[str]()
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            for line, line_counts in lines:
                file.write(line + b"\n")
                counts += line_counts
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return counts


def _control_records(store: Store) -> Iterator[tuple[str, Any]]:
    for dataset in store.datasets():
        # examples of the previous version; each version is written as changes from it, oldest first
        before: dict[str, Example] = {}
        for version in reversed(store.versions(dataset.name)):
            now = {example.id: example for example in store.examples(dataset.name, version.version)}
            changed = [example for id, example in now.items() if before.get(id) != example]
            removed = [id for id in before if id not in now]
            yield "dataset", {"dataset": version, "examples": changed, "removed": removed}
            before = now
    yield from (("experiment", experiment) for experiment in _list_all("experiments", store.experiments))
    yield from (("rule", rule) for rule in store.rules())
    yield from (("retention", rule) for rule in store.retention())
    for name in store.queues():
        items = _list_all(f"items in queue {name!r}", partial(store.queue, name, status=None))
        yield from (("queue item", item) for item in items)


def _list_all(what: str, ask: Callable[..., Sequence[Any]]) -> Sequence[Any]:
    """Return the complete result of an operation without pages. Raises `Refused` if the server limits its length."""
    try:
        return ask(limit=UNLIMITED)
    except Refused:
        found = ask(limit=MAX_LIST_SIZE)
    if len(found) == MAX_LIST_SIZE:
        raise Refused(
            f"the server returns at most {MAX_LIST_SIZE:,} {what}: export from its database file with --store"
        )
    return found


def _runs(store: Store, filter: Filter | None) -> Iterator[list[Run]]:
    """Yield the runs of all traces that pass, never splitting a trace. Without a filter, include evaluators' own
    traces.
    """
    summaries = store.each(filter)
    if filter is None:
        summaries = chain(summaries, store.each(kind=EVALUATOR_KIND))
    for batch in _split_trace_batches(summaries):
        traces = store.many([summary.trace_id for summary in batch])
        if runs := [run for trace in traces for run in trace.runs]:
            yield runs


def _split_trace_batches(summaries: Iterable[TraceSummary]) -> Iterator[list[TraceSummary]]:
    batch: list[TraceSummary] = []
    span_count = 0
    for summary in summaries:
        if batch and (span_count + summary.span_count > RUNS_PER_LINE or len(batch) == TRACES_PER_BATCH):
            yield batch
            batch, span_count = [], 0
        batch.append(summary)
        span_count += summary.span_count
    if batch:
        yield batch


def _feedback(store: Store, filter: Filter | None) -> Iterator[Feedback]:
    yield from iterate_pages(partial(store.feedbacks, filter, limit=RUNS_PER_LINE))


# File importer: idempotent import of OTLP and JSON Lines in batches.
#
# Importing a file twice changes nothing. Lines or items that cannot be imported are counted and reported; the others
# are imported. Each batch is durable once it is written. After a crash, import the whole file again.

MAX_LINE_BYTES = 512 * 1024 * 1024  # maximum length of a line
BATCH_ITEMS = 500  # items per write
BATCH_BYTES = 8_000_000  # a batch is written when its lines exceed about this size
MAX_REASONS = 20  # maximum number of reasons in the result
MAX_ATTEMPTS = 60  # maximum attempts to write while the store is unavailable


@dataclass(slots=True)
class ImportResult:
    """Result of an import: number of imported items and of intentionally skipped items by kind, and number of invalid
    items.
    """

    kept: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    reasons: list[str] = field(default_factory=list)  # the first `MAX_REASONS`

    def refuse(self, line: int, reason: str, count: int = 1) -> None:
        """Count invalid items of a line."""
        self.bad += count
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(f"line {line}: {reason[:500]}")


class DatasetVersion(msgspec.Struct):
    """Version of a dataset, as changes from the previous one."""

    dataset: Dataset
    examples: list[Example] = []
    removed: list[str] = []


RECORD_TYPES: Mapping[str, Any] = {
    "run": Run,
    "feedback": Feedback,
    "dataset": DatasetVersion,
    "experiment": Experiment,
    "rule": Rule,
    "retention": Retention,
    "queue item": QueueItem,
}
SIGNAL_FIELDS = frozenset(("resourceSpans", "resourceLogs", "resourceMetrics"))
SKIPPED_RECORDS = frozenset(("decision",))  # a decision refers to leases and the change feed of its original store


def import_file(store: Store, file: BinaryIO) -> ImportResult:
    """Import a file. Raises `Unavailable` if the store stays unavailable."""
    return _FileImporter(store).run(file)


class _FileImporter:
    """Import of one file, with the runs and the feedback of the batch that is not yet written."""

    def __init__(self, store: Store) -> None:
        self._store, self._result = store, ImportResult()
        self._runs: list[tuple[int, Run]] = []  # with their line numbers
        self._feedback: list[tuple[int, Feedback]] = []
        self._batch_bytes = 0

    def run(self, file: BinaryIO) -> ImportResult:
        for number, line in enumerate(_read_lines(file), 1):
            if line is None:
                self._result.refuse(number, f"longer than {MAX_LINE_BYTES:,} bytes")
            elif line.strip():
                self._import_line(number, line)
                self._batch_bytes += len(line)
            if max(len(self._runs), len(self._feedback)) >= BATCH_ITEMS or self._batch_bytes > BATCH_BYTES:
                self._flush()
        self._flush()
        return self._result

    def _import_line(self, number: int, line: bytes) -> None:
        try:
            fields = record_encoding.decode(dict[str, msgspec.Raw], line)
            if "record" in fields:
                kind = record_encoding.decode(str, bytes(fields["record"]))
                self._import_record(number, kind, bytes(fields.get("value", msgspec.Raw(b""))))
                return
            if fields.keys().isdisjoint(SIGNAL_FIELDS):
                self._result.refuse(number, "neither an OTLP request nor a Spanwise record")
            if "resourceSpans" in fields:
                self._import_spans(number, line)
            if "resourceLogs" in fields:
                self._import_logs(number, line)
            if "resourceMetrics" in fields:
                self._result.left_out["metrics"] += 1
        except (Unavailable, Closed):
            raise
        except (SpanwiseError, ValueError, TypeError, RecursionError) as error:
            self._result.refuse(number, str(error))

    def _import_record(self, number: int, kind: str, value: bytes) -> None:
        if kind in SKIPPED_RECORDS:
            self._result.left_out[kind] += 1
            return
        if kind not in RECORD_TYPES:
            raise Refused(f"unknown record {kind!r}; expected one of: {', '.join(RECORD_TYPES)}")
        record = record_encoding.decode(RECORD_TYPES[kind], value)
        if kind == "run":
            self._runs.append((number, present_run(record)))
        elif kind == "feedback":
            self._feedback.append((number, present_feedback(record)))
        else:
            _write_with_retries(lambda: _RECORD_WRITERS[kind](self._store, record))
            self._result.kept[kind] += 1

    def _import_spans(self, number: int, line: bytes) -> None:
        decoded = decode(SPAN_CODEC, line, FILE_LIMITS)
        self._runs += ((number, run) for run in decoded.items)
        if decoded.refused:
            self._result.refuse(number, decoded.reason, decoded.refused_count)

    def _import_logs(self, number: int, line: bytes) -> None:
        decoded = decode(EVENT_CODEC, line, FILE_LIMITS)
        for item in decoded.items:
            if isinstance(item, Feedback):
                self._feedback.append((number, item))
            elif isinstance(item, Amendment):
                self._flush()  # the amended run may be in the batch that is not yet written
                _write_with_retries(partial(self._store.add_amendments, [item]))
                self._result.kept["amendment"] += 1
            else:
                self._result.left_out["log record"] += 1
        if decoded.ignored:
            self._result.left_out["log record"] += decoded.ignored
        if decoded.refused:
            self._result.refuse(number, decoded.reason, decoded.refused_count)

    def _flush(self) -> None:
        runs, feedback, self._runs, self._feedback, self._batch_bytes = self._runs, self._feedback, [], [], 0
        self._write("run", runs, self._store.append)
        self._write("feedback", feedback, self._store.add_feedback)

    def _write(self, kind: str, items: Sequence[tuple[int, T]], write: Callable[[list[T]], object]) -> None:
        """Write items. If the store refuses them, split them repeatedly to find the invalid ones."""
        if not items:
            return
        try:
            _write_with_retries(lambda: write([item for _, item in items]))
            self._result.kept[kind] += len(items)
        except Closed:
            raise
        except (Refused, ValueError, TypeError, OverflowError) as error:
            if len(items) == 1:
                self._result.refuse(items[0][0], str(error))
                return
            half = len(items) // 2
            self._write(kind, items[:half], write)
            self._write(kind, items[half:], write)


def _write_with_retries(write: Callable[[], object]) -> None:
    """Call `write` again while the store is unavailable, up to `MAX_ATTEMPTS` times."""
    for remaining in reversed(range(MAX_ATTEMPTS)):
        try:
            write()
            return
        except Unavailable as error:
            if not remaining:
                raise
            time.sleep(min(error.retry_after, 5.0))


def _read_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; None for one that is too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


def _save_version(store: Store, version: DatasetVersion) -> None:
    """Save a version of a dataset, unless the store already has this version or a later one."""
    dataset = version.dataset
    stored = next((one.version for one in store.datasets() if one.name == dataset.name), 0)
    if stored >= dataset.version:
        return
    options = {
        "kind": dataset.kind,
        "schema": dataset.schema,
        "description": dataset.description,
        "metadata": dataset.metadata,
    }
    store.save_examples(dataset.name, version.examples, remove=version.removed, **options)  # type: ignore[arg-type]


_RECORD_WRITERS: Mapping[str, Callable[[Store, Any], object]] = {
    "dataset": _save_version,
    "experiment": lambda store, experiment: store.save_experiment(experiment),
    "rule": lambda store, rule: store.save_rule(rule),
    "retention": lambda store, rule: store.set_retention(rule),
    "queue item": lambda store, item: store.enqueue([item]),
}
