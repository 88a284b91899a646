"""The short way of our own plain spans: steps of a program, with nothing in them for any dialect but the two below.

`evaluate()` makes one for every example. What is read here equals what `read` makes of the same span (a test compares
them); anything unusual is None, and goes that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from opentelemetry.trace import SpanKind, StatusCode

from spanwise.collector.dialects._read import STATUSES, whose
from spanwise.collector.records import JSON, Run
from spanwise.tracer import attributes as names
from spanwise.tracer.spans import LiveSpan

_KINDS = {kind.upper(): kind for kind in ("chain", "tool", "agent", "guardrail", "evaluator")}  # without documents
_COUNTS = frozenset((names.LOCAL_ROOT, names.SPANS_STARTED, names.SPANS_OPEN, names.SPANS_DROPPED, names.CALLS_SENT))
_COUNTS_AND_NULL = _COUNTS | {names.OUTPUT_VALUE, names.OUTPUT_MIME}  # see `_openinference`
_READ = frozenset((names.KIND, names.INPUT_VALUE, names.INPUT_MIME, names.OUTPUT_VALUE, names.OUTPUT_MIME))
_EXPERIMENT = frozenset((names.EXPERIMENT, names.EXAMPLE, names.REPETITION))
_KNOWN = _COUNTS | _READ | _EXPERIMENT


def plain(span: LiveSpan, resource: Mapping[str, JSON]) -> Run | None:
    """The run that a finished span of ours is; None if it is not plain."""
    # its own fields: the SDK's properties wrap or copy what they give, and cost more than all the rest
    attributes, code = span._attributes, span._status.status_code
    kind = _KINDS.get(attributes.get(names.KIND, ""))
    if kind is None or code is StatusCode.ERROR or span._kind is not SpanKind.INTERNAL:
        return None
    if not attributes.keys() <= _KNOWN or span._events or span._links or span.local.ot:
        return None
    try:
        fields = _of_experiment(attributes)
        inputs = _value(attributes, names.INPUT_VALUE, names.INPUT_MIME)
        outputs = _value(attributes, names.OUTPUT_VALUE, names.OUTPUT_MIME)
    except ValueError:
        return None
    kept = _COUNTS if outputs is not None else _COUNTS_AND_NULL
    _, project, environment = whose(resource)
    return Run(
        trace_id=f"{span.local.trace_id:032x}",
        span_id=f"{span.span_id:016x}",
        parent_id=f"{span.parent_id:016x}" if span.parent_id else None,
        name=span._name,
        kind=kind,
        start_ns=span._start_time or 0,
        end_ns=span._end_time or 0,
        status=STATUSES[code.value],
        inputs=inputs,
        outputs=outputs,
        attributes={name: value for name, value in attributes.items() if name in kept},
        resource=resource,
        project=project,
        environment=environment,
        **fields,
    )


def _of_experiment(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of an experiment. Raises `ValueError` where they are not as `capture` sets them."""
    if names.EXPERIMENT not in attributes:
        if not _EXPERIMENT.isdisjoint(attributes):
            raise ValueError("ids of no experiment")
        return {}
    experiment, example, repetition = (attributes.get(name) for name in _ORDER)
    if not (isinstance(experiment, str) and isinstance(example, str) and type(repetition) is int):
        raise ValueError("ids of another type")
    if not experiment or not example or not 0 <= repetition < 2**53:
        raise ValueError("ids that say nothing")
    return {"experiment_id": experiment, "example_id": example, "repetition": repetition}


_ORDER = (names.EXPERIMENT, names.EXAMPLE, names.REPETITION)


def _value(attributes: Mapping[str, Any], name: str, mime: str) -> JSON:
    """A value, out of its JSON. Raises `ValueError` for what is none, or a type without a value."""
    if name not in attributes:
        if mime in attributes:
            raise ValueError("a type without a value")
        return None
    value = attributes[name]
    if not isinstance(value, str):
        raise ValueError("not a text")
    return orjson.loads(value) if attributes.get(mime) == "application/json" else value
