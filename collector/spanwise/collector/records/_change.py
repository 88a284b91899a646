"""What can be said anew of a record without making it another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from spanwise.collector.errors import Refused
from spanwise.collector.records._dataset import Experiment
from spanwise.collector.records._feedback import Feedback
from spanwise.collector.records._monitor import Rule
from spanwise.collector.records._values import JSON

R = TypeVar("R", Feedback, Experiment, Rule)

CHANGEABLE: Mapping[type, tuple[str, ...]] = {
    Feedback: ("score", "label", "comment", "metadata"),
    Experiment: ("name", "status", "metadata", "ended_ns", "example_count", "seen_ns"),
    Rule: ("enabled", "settings", "metadata"),
}


def changed(record: R, fields: Mapping[str, JSON]) -> R:
    """A record with some of its `CHANGEABLE` fields anew. Raises `Refused` for any other field, or a bad value."""
    allowed, kind = CHANGEABLE[type(record)], type(record).__name__.lower()
    if fixed := sorted(set(fields) - set(allowed)):
        raise Refused(f"{fixed[0]!r} of a {kind} cannot change, only {', '.join(allowed)}; save another {kind}")
    new: dict[str, Any] = dict(fields)
    if isinstance(record, Feedback) and {"score", "label"} & set(fields):
        new |= {"outcome": "score", "error": None}
    try:
        return replace(record, **new)
    except ValueError as error:
        raise Refused(str(error)) from error
