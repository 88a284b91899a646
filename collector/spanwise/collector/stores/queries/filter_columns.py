"""Columns and expressions that filters compare, in all backends: SQL on a row `t` of `traces`, and on feedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.errors import Refused
from spanwise.collector.filters import OPERATORS, YES_AND_NO, Filter

_EMPTY_FILTER = Filter()


def list_conditions(filter: Filter) -> list[tuple[str, Any]]:
    """Return name and value of the conditions of a filter. That of a prompt's version is the version and the prompt."""
    values = ((name, getattr(filter, name)) for name in Filter.__slots__)
    return [
        (name, (value, filter.prompt) if name == "prompt_version" else value)
        for name, value in values
        if value != getattr(_EMPTY_FILTER, name)
    ]


# Column that must equal the value of a condition
EQUAL_COLUMNS: Mapping[str, str] = {
    **{name: name for name in ("project", "environment", "name", "kind")},
    "session": "session_id",
    "user": "user_id",
    "example": "example_id",
}
# Expressions that conditions compare with a number
NUMBERS: Mapping[str, str] = {
    "time_to_first_token_ms": "t.time_to_first_token_ms",
    "latency_ms": "((t.end_ns - t.start_ns) / 1e6)",
    "tokens": "(t.input_tokens + t.output_tokens)",
    "cost": "t.cost",
}
STATUSES: Mapping[str, str] = {
    "error": "t.status = 'error'",
    "ok": "t.status NOT IN ('error', 'cancelled')",
    "cancelled": "t.status = 'cancelled'",
    "unset": "t.status = 'unset'",
}


def check_operator(operator: str) -> None:
    """Raise `Refused` for an unknown operator."""
    if operator not in OPERATORS:
        raise Refused(f"unknown operator {operator!r}; expected one of: {', '.join(OPERATORS)}")


def get_compared_value(wanted: float | str, prefix: str = "") -> str:
    """Return the SQL of the value of feedback that a condition compares: score or label. For the bounds "yes" and "no", a
    score of 1 or 0 without a label is compared as "yes" or "no".
    """
    if wanted in YES_AND_NO.values():
        named = " ".join(f"WHEN {prefix}score = {score} THEN '{name}'" for score, name in YES_AND_NO.items())
        return f"coalesce({prefix}label, CASE {named} END)"
    return f"{prefix}label" if isinstance(wanted, str) else f"{prefix}score"
