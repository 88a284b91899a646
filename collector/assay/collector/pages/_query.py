"""The filter form: from a page's query string to the one `Filter`, and back to addresses and removable marks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args
from urllib.parse import urlencode

from assay.collector.errors import AssayError
from assay.collector.filters import Filter, Operator
from assay.collector.pages import _format

RANGES = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
RANGE_NAMES = {
    "": "any time",
    "15m": "last 15 minutes",
    "1h": "last hour",
    "6h": "last 6 hours",
    "24h": "last 24 hours",
    "7d": "last 7 days",
    "30d": "last 30 days",
}
TRAFFIC = {"": "live", "all": "live and experiments"}
VERBS = {
    "<": "<",
    "<=": "≤",
    "=": "=",
    "!=": "≠",
    ">=": "≥",
    ">": ">",
    "missing": "is missing",
    "failed": "failed",
    "skipped": "was skipped",
}
_PLAIN = (
    "project",
    "environment",
    "name",
    "kind",
    "any_name",
    "any_kind",
    "status",
    "session",
    "user",
    "text",
    "error",
    "model",
    "example",
)
_COMPARED = {"latency_ms": "latency", "tokens": "tokens", "cost": "cost"}
_OPEN = ("traffic", "text", "project", "environment", "status", "range", "cursor")
_LABELS = {"range": "time", "latency_ms": "latency", "traffic": "traffic"}


class BadQuery(AssayError, ValueError):
    """A field of the form that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One condition that is in force, and the address of the page without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True, slots=True)
class Query:
    """What the form said: its fields as text, the filter they make, and what was wrong with them."""

    fields: Mapping[str, str]
    filter: Filter
    problems: tuple[str, ...] = ()

    def address(self, path: str = "/", **changes: str | None) -> str:
        """The page's address with some fields changed; paging starts anew unless `cursor` is given."""
        kept = {key: value for key, value in self.fields.items() if value and key != "cursor"}
        fields = {key: value for key, value in {**kept, **changes}.items() if value}
        return f"{path}?{urlencode(fields, errors='replace')}" if fields else path

    @property
    def detailed(self) -> bool:
        """Whether a condition is in force that the form keeps folded."""
        return any(value and key not in _OPEN for key, value in self.fields.items())

    def marks(self) -> list[Mark]:
        """The conditions in force, for people."""
        skip = {"cursor", "feedback_op", "feedback_value"}
        names = [key for key in self.fields if self.fields[key] and key not in skip]
        return [Mark(_LABELS.get(key, key.removesuffix("_key")), self._shown(key), self._without(key)) for key in names]

    def _shown(self, key: str) -> str:
        value = self.fields[key]
        if key == "feedback_key":
            verb = self.fields.get("feedback_op") or ">="
            return f"{value} {VERBS.get(verb, verb)} {self.fields.get('feedback_value', '')}".strip()
        if key == "range":
            return RANGE_NAMES.get(value, value)
        return TRAFFIC.get(value, value) if key == "traffic" else value

    def _without(self, key: str) -> str:
        gone = ("feedback_key", "feedback_op", "feedback_value") if key == "feedback_key" else (key,)
        return self.address("/", **dict.fromkeys(gone))


def read(params: Mapping[str, str], *, live: bool = True, now_ns: int | None = None) -> Query:
    """Read a query string. Fields that make no sense are left out of the filter and named in `problems`.

    `live`: leave the traces of experiments out, unless the query says `traffic=all` or names an experiment.
    """
    known = {
        *_PLAIN,
        *_COMPARED,
        "range",
        "since",
        "until",
        "tag",
        "metadata",
        "experiment",
        "dataset",
        "traffic",
        "cursor",
    }
    known |= {"feedback_key", "feedback_op", "feedback_value", "complete"}
    fields = {key: value.strip() for key, value in params.items() if key in known}
    conditions: dict[str, Any] = {key: fields[key] for key in _PLAIN if fields.get(key)}
    problems = []
    for part in (_times, _comparisons, _feedback, _belonging):
        try:
            conditions |= part(fields, now_ns)
        except BadQuery as problem:
            problems.append(str(problem))
    if live and fields.get("traffic") != "all" and not conditions.keys() & {"experiment", "dataset"}:
        conditions["experiment"] = ""
    return Query(fields, replace(Filter(), **conditions), tuple(problems))


def _times(fields: Mapping[str, str], now_ns: int | None) -> dict[str, Any]:
    times = {f"{key}_ns": _moment(key, fields[key]) for key in ("since", "until") if fields.get(key)}
    if (length := fields.get("range")) and "since_ns" not in times:
        if length not in RANGES:
            raise BadQuery(f"time {length!r} is none of {', '.join(RANGES)}")
        times["since_ns"] = (now_ns or time.time_ns()) - RANGES[length] * 1_000_000_000
    return times


def _moment(key: str, text: str) -> int:
    try:
        nanoseconds = text.isdecimal() and len(text) > 8 and int(text) < 2**63
        return int(text) if nanoseconds else _format.moment(text)
    except (ValueError, OverflowError):
        raise BadQuery(f"{key} {text!r} is no date or time; write it like 2026-11-21T14:30") from None


def _comparisons(fields: Mapping[str, str], _now: int | None) -> dict[str, Any]:
    return {key: comparison(name, fields[key]) for key, name in _COMPARED.items() if fields.get(key)}


def comparison(name: str, text: str) -> tuple[Operator, float]:
    """Read "> 500" or "500" (at least 500). Raises `BadQuery`."""
    operator = next((o for o in ("<=", ">=", "!=", "<", ">", "=") if text.startswith(o)), "")
    try:
        return operator or ">=", float(text[len(operator) :])  # type: ignore[return-value]
    except ValueError:
        raise BadQuery(f"{name} {text!r} is no comparison; write it like > 500") from None


def _feedback(fields: Mapping[str, str], _now: int | None) -> dict[str, Any]:
    key, operator = fields.get("feedback_key"), fields.get("feedback_op") or ">="
    if not key:
        return {}
    if operator in ("missing", "failed", "skipped"):
        return {operator: (key,)}
    if operator not in get_args(Operator):
        raise BadQuery(f"feedback operator {operator!r} is none of {', '.join(VERBS)}")
    return {"feedback": ((key, operator, _value(key, operator, fields.get("feedback_value", ""))),)}


def _value(key: str, operator: str, text: str) -> float | str:
    """A number, true or false; else a label, which can only be equal or not."""
    try:
        return float({"true": "1", "false": "0"}.get(text.lower(), text))
    except ValueError:
        if text and operator in ("=", "!="):
            return text
        raise BadQuery(f"feedback {key!r} {operator} {text!r}: give a number, or = with a label") from None


def _belonging(fields: Mapping[str, str], _now: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"tags": (fields["tag"],)} if fields.get("tag") else {}
    if fields.get("metadata"):
        found["metadata"] = _pair(fields["metadata"])
    if fields.get("dataset"):
        found["dataset"] = fields["dataset"]
    if fields.get("complete"):
        found["complete"] = fields["complete"] == "true"
    if fields.get("experiment"):
        found["experiment"] = fields["experiment"]
    return found


def _pair(text: str) -> dict[str, str]:
    key, mark, value = text.partition("=" if "=" in text else ":")
    if not mark:
        raise BadQuery(f"metadata {text!r} is no pair; write it like tenant=t1")
    return {key.strip(): value.strip()}
