"""Small traces for tests: real records with few fields."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from spanwise.collector.records import Run

SECOND = 1_000_000_000
START = 1_750_000_000 * SECOND
_order = itertools.count()


def run(name: str = "answer", **fields: Any) -> Run:
    """A run in a new trace, one second long, later than those made before it."""
    start = fields.pop("start_ns", START + next(_order) * SECOND)
    given: dict[str, Any] = {
        "trace_id": secrets.token_hex(16),
        "span_id": secrets.token_hex(8),
        "start_ns": start,
        "end_ns": start + SECOND,
        "status": "ok",
    }
    return Run(name=name, **{**given, **fields})


def child(parent: Run, name: str = "search", **fields: Any) -> Run:
    """A run right below another."""
    inherited = {"trace_id": parent.trace_id, "parent_id": parent.span_id, "start_ns": parent.start_ns + 1}
    return run(name, **{**inherited, "end_ns": parent.start_ns + SECOND // 2, **fields})
