"""Feedback that a reader adds to a trace."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from spanwise.collector.errors import Refused
from spanwise.collector.pages.kit import render
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores import Store


def add_feedback(store: Store, request: Request, fields: Mapping[str, str]) -> str:
    """`POST /traces/{trace_id}/feedback`, then back to the trace, at the run that was shown."""
    trace_id = request.path_params["trace_id"]
    store.add_feedback([human(trace_id, fields)])
    run = f"?run={render.path(fields['run'])}" if fields.get("run") else ""
    return f"/traces/{render.path(trace_id)}{run}#feedback"


def human(trace_id: str, fields: Mapping[str, str]) -> Feedback:
    """What a person filled in: a key, and a score or a label. Raises `Refused` naming the field that is wrong."""
    key, value = fields.get("key", "").strip(), fields.get("value", "").strip()
    if not key or not value:
        raise Refused("feedback needs a key and a value: a number, true or false, or a label such as good")
    score, label = read_value(value)
    try:
        return Feedback(
            target=Target(trace_id=trace_id, span_id=fields.get("span") or None),
            key=key,
            score=score,
            label=label,
            comment=fields.get("comment", "").strip() or None,
            source="human",
            author=fields.get("author", "").strip() or None,
        )
    except ValueError as error:
        raise Refused(str(error)) from None


def read_value(text: str) -> tuple[float | bool | None, str | None]:
    """A form's value as (score, label): a number or a truth value is a score, everything else a label."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true", None
    try:
        return float(text), None
    except ValueError:
        return None, text
