"""What our tracer says beside its spans, as OTLP log events: that a run has started, what became of all spans."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spanwise.collector.dialects._raw import RawLog
from spanwise.collector.dialects._read import whose
from spanwise.collector.dialects._values import as_text, count, from_json, text
from spanwise.collector.records import JSON, OpenRun, ProcessReport
from spanwise.tracer import attributes as names

_SPAN_ID = re.compile("[0-9a-f]{16}")
_LONGEST = 200  # characters of an instance's name


def started(log: RawLog) -> OpenRun | None:
    """An open run, if the record says that one has started. Raises `ValueError` if it names no span."""
    if log.event != names.STARTED_EVENT:
        return None
    if log.span_id is None:
        raise ValueError(f"event {log.event!r} says that a span has started, and names none")
    attributes, (_, project, environment) = log.attributes, whose(log.resource)
    return OpenRun(
        trace_id=log.trace_id,
        span_id=log.span_id,
        name=as_text(attributes.get(names.STARTED_NAME) or ""),
        parent_id=_id(attributes.get(names.STARTED_PARENT)),
        kind=as_text(attributes.get(names.KIND) or "unknown").lower(),
        start_ns=log.time_ns,
        local_root=_id(attributes.get(names.LOCAL_ROOT)),
        project=project,
        environment=environment,
        instance=text(log.resource.get(names.INSTANCE)),
    )


def report(log: RawLog) -> ProcessReport | None:
    """A process's report, if the record is one. Raises `ValueError` if it does not say of which process."""
    if log.event != names.REPORT_EVENT:
        return None
    instance, (_, project, environment) = log.resource.get(names.INSTANCE), whose(log.resource)
    if not isinstance(instance, str) or not 0 < len(instance) <= _LONGEST:
        raise ValueError(f"event {log.event!r} needs a resource whose {names.INSTANCE!r} says which process it is of")
    said = log.attributes
    return ProcessReport(
        instance=instance,
        reported_ns=log.time_ns,
        started=count(said.get(names.REPORT_STARTED)) or 0,
        open=count(said.get(names.REPORT_OPEN)) or 0,
        delivered=count(said.get(names.REPORT_DELIVERED)) or 0,
        spilled=count(said.get(names.REPORT_SPILLED)) or 0,
        pending=count(said.get(names.REPORT_PENDING)) or 0,
        dropped=_by_reason(from_json(said.get(names.REPORT_DROPPED))),
        pid=count(said.get(names.REPORT_PID, log.resource.get(names.REPORT_PID))),
        service=text(log.resource.get("service.name")),
        project=project,
        environment=environment,
    )


def _by_reason(value: JSON) -> dict[str, int]:
    counts = {reason: count(number) for reason, number in value.items()} if isinstance(value, Mapping) else {}
    return {reason: number for reason, number in counts.items() if number}


def _id(value: JSON) -> str | None:
    return value if isinstance(value, str) and _SPAN_ID.fullmatch(value) else None
