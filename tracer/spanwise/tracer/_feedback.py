"""What people and programs say of a run, as OTLP log events: from inside of the run, or from any process by its id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from spanwise.tracer import attributes as names
from spanwise.tracer._encode import FeedbackEvent
from spanwise.tracer._errors import ours
from spanwise.tracer._json import to_json
from spanwise.tracer._runtime import current
from spanwise.tracer._span import Clock

_HEX = re.compile(r"(?=.*[1-9a-f])[0-9a-f]+")  # all zeros are OpenTelemetry's word for none


def feedback(
    trace_id: str,
    key: str,
    value: float | bool | str | None = None,
    *,
    span_id: str | None = None,
    comment: str | None = None,
    label: str | None = None,
    source: Literal["code", "model", "human"] = "human",
    author: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Attach feedback to a trace, or to one span of it, by its id: a number or bool is a score, a string a label.

    For a thumb that comes later, in another process: the id is what `current_run().trace_id` gave. It goes the way of
    spans, through the queue and the spool. Raises `ValueError` for ids that can be none.
    """
    trace, span = _id("trace_id", trace_id, 32), 0 if span_id is None else _id("span_id", span_id, 16)
    _send(trace, span, key, value, comment, label, source, author, metadata)


@ours("feedback")
def _send(trace: int, span: int, *said: Any) -> None:
    runtime = current()
    if runtime.off:
        return
    attributes = said_of(*said, limit=runtime.limit)
    if not span:
        attributes[names.FEEDBACK_SCOPE] = "trace"
    runtime.delivery.put(FeedbackEvent(trace, span, Clock.now(), attributes, runtime.resource.attributes))


def said_of(
    key: str, value: Any, comment: Any, label: Any, source: str, author: Any, metadata: Any, *, limit: int
) -> dict[str, Any]:
    """The attributes of an event."""
    is_label = isinstance(value, str)
    attributes = {
        names.EVALUATION_NAME: str(key),
        names.EVALUATION_SCORE: None if is_label or value is None else float(value),
        names.EVALUATION_LABEL: value if is_label else label,
        names.EVALUATION_EXPLANATION: comment,
        names.FEEDBACK_BOOLEAN: True if isinstance(value, bool) else None,
        names.FEEDBACK_SOURCE: source,
        names.FEEDBACK_AUTHOR: author,
        names.FEEDBACK_METADATA: to_json(metadata, limit) if metadata else None,
    }
    return {name: given for name, given in attributes.items() if given is not None}


def _id(name: str, given: object, digits: int) -> int:
    text = str(given).replace("-", "").lower()  # a UUID's form is another way to write it
    if len(text) != digits or not _HEX.fullmatch(text):
        out = f"take current_run().{name} inside of the run, or .{name} of a streamed answer"
        raise ValueError(f"{name} is {digits} hex digits that are not all zeros, not {given!r}: {out}")
    return int(text, 16)
