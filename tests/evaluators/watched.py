"""Traffic and rules for tests of the monitor: traces by hand, and a worker that is driven step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spanwise.collector.records import Decision, Run
from spanwise.collector.stores import Store
from spanwise.evaluators import monitor
from spanwise.evaluators.monitors import Monitor
from spanwise.tracer import attribute_names as names

DEADLINE = 60.0  # seconds after which a test gives up


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def trace_id(number: int) -> str:
    return f"{number:032x}"


def span(number: int, place: int = 1, parent: int | None = None, **fields: Any) -> Run:
    given: dict[str, Any] = {
        "name": "answer",
        "inputs": {"question": f"q{number}"},
        "outputs": f"a{number}",
        "start_ns": time.time_ns(),
        "end_ns": time.time_ns() + 1_000_000,
    }
    return Run(
        trace_id=trace_id(number),
        span_id=f"{place:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        **{**given, **fields},
    )


def whole(number: int, started: int = 1, left_open: int = 0, **fields: Any) -> Run:
    """The root of a trace of our SDK, which says how many spans there are."""
    counts = {names.LOCAL_ROOT: f"{1:016x}", names.SPANS_STARTED: started, names.SPANS_OPEN: left_open}
    return span(number, attributes={**counts, **fields.pop("attributes", {})}, **fields)


def length(outputs: str) -> float:
    return float(len(outputs))


def rule(name: str = "r", evaluators: Any = (length,), **options: Any) -> Any:
    return monitor(name, evaluators=list(evaluators), **options)


@contextmanager
def watching(store: Store, *rules: Any, **options: Any) -> Iterator[Monitor]:
    made = Monitor(store, rules, **options)
    try:
        yield made
    finally:
        made.close()


def decisions(store: Store, **conditions: Any) -> list[Decision]:
    return list(store.decisions(**conditions))


def verdicts(store: Store, **conditions: Any) -> dict[str, str]:
    """Verdict by number of the trace."""
    return {str(int(one.target.trace_id or "0", 16)): one.verdict for one in decisions(store, **conditions)}


def scores(store: Store, number: int) -> dict[str, Any]:
    found = store.trace(trace_id(number)).feedback
    return {one.key: one.score if one.outcome == "score" else one.outcome for one in found}


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    ends = time.monotonic() + DEADLINE
    while time.monotonic() < ends:
        if result := condition():
            return result
        time.sleep(0.005)
    raise AssertionError(f"{what} has not come about in {DEADLINE} s")
