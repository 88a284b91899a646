"""`/v1/logs`: events named `gen_ai.evaluation.result` become feedback, what our tracer says beside its spans is kept;
records that no dialect knows are accepted, counted and not kept, as most logs are not for us.

Source of the names: OpenTelemetry GenAI semantic conventions v1.41.1, `model/gen-ai/events.yaml`; what they lack
(source, author, …) travels under `spanwise.feedback.*`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from spanwise.collector.clocks import SENT, bounded_time
from spanwise.collector.dialects import Fault, LogDialect, LogItem, RawLog, read_log
from spanwise.collector.intake import _json, _protobuf
from spanwise.collector.intake._decode import Codec, Group
from spanwise.collector.intake._decoded import check_ids
from spanwise.collector.intake._errors import ItemRefused
from spanwise.collector.intake._signal import Signal
from spanwise.collector.intake._texts import check_names
from spanwise.collector.records import Amendment, Feedback, ProcessReport
from spanwise.tracer import attributes as names

SOME_SPAN = "1" * 16


def read_item(log: RawLog, fault: Fault, dialects: Sequence[LogDialect] | None = None) -> LogItem | None:
    """What is kept of a log record; nothing of one that no dialect knows. Raises `ItemRefused` for one that makes no
    sense.
    """
    sent = log.time_ns = log.time_ns or time.time_ns()
    if (kept := bounded_time(sent)) != sent:
        log.time_ns, log.attributes = kept, {**log.attributes, f"{SENT}created_ns": sent}
    try:
        item = read_log(log, fault, dialects)
    except ValueError as error:
        if log.event != names.REPORT_EVENT:
            _check(log)
        raise ItemRefused("value", str(error)) from error
    if isinstance(item, Feedback):
        check_names(item)
    if item is not None and not _speaks_of_no_trace(item):
        _check(log)
    return item


def _speaks_of_no_trace(item: LogItem) -> bool:
    if isinstance(item, Feedback):
        return item.target.trace_id is None  # but of a session, or an experiment
    return isinstance(item, ProcessReport) or (isinstance(item, Amendment) and item.response_id is not None)


def _check(log: RawLog) -> None:
    """Raises `ItemRefused` unless the record speaks of a trace, and perhaps of a span in it."""
    check_ids(log.trace_id, log.span_id or SOME_SPAN, "")


def _parse(body: bytes) -> Iterable[Group]:
    return _protobuf.groups(ExportLogsServiceRequest.FromString(body).resource_logs, "scope_logs", "log_records")


PROTOBUF: Codec[LogItem] = Codec(
    errors=_protobuf.ERRORS,
    parse=_parse,
    split=_protobuf.split,
    parse_item=_protobuf.parser(LogRecord, "log"),
    resource=_protobuf.resource,
    raw=_protobuf.raw_log,
    read=read_item,
)
JSON_: Codec[LogItem] = _json.codec("Logs", "logRecords", _json.JSONRecord, _json.raw_log, read_item)

LOGS = Signal("logs", PROTOBUF, JSON_, ExportLogsServiceResponse, "rejected_log_records")
