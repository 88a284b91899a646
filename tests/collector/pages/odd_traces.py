"""Traces, sessions and feedback as nobody names them: very long, empty, of white space, from right to left."""

from __future__ import annotations

import time

from collector.making import run
from spanwise.collector.records import Feedback, OpenRun, Run, Target
from spanwise.collector.stores import Store

LONG_USER = "u" * 400
OPEN_TRACE = "e" * 32


def odd_traces(store: Store) -> list[Run]:
    """Store one trace of each kind with the same odd feedback; returns their roots."""
    fields = (
        {"name": "n" * 3000, "inputs": "x" * 5000, "outputs": "y" * 5000},
        {"name": " \t ", "inputs": "white space", "session_id": " ", "user_id": "\t"},
        {"name": "مرحبا بالعالم هذا اسم طويل", "inputs": "سؤال طويل جدا عن الطرود", "outputs": "جواب"},
        {"name": "mixed אבג name", "inputs": {f"k{number}": number for number in range(400)}},
        {"name": "names", "session_id": "s" * 300, "user_id": LONG_USER, "project": "p" * 120, "environment": "e" * 90},
        {"name": "tags", "tags": tuple(f"tag-{number}" for number in range(40))},
    )
    roots = [run(**each) for each in fields]
    store.append(roots)
    for place, root in enumerate(roots):
        target = Target(trace_id=root.trace_id)
        store.add_feedback(
            [
                Feedback(target=target, key="tone", label="L" * (100 if place else 10_000)),
                Feedback(target=target, key="k" * 180, score=0.5),
                Feedback(target=target, key="big", score=123456789.123),
                Feedback(target=target, key="word", label="unbroken" * 40, comment="c" * 4000),
            ]
        )
    return roots


def running_agent(store: Store) -> Run:
    """Store an agent that still runs, one of whose tools has ended; returns the run of the tool."""
    started = time.time_ns() - 12 * 10**9
    store.add_running(
        [OpenRun(trace_id=OPEN_TRACE, span_id="e" * 16, name="agent of 12 s", kind="agent", start_ns=started)]
    )
    tool = run(
        "first_tool",
        kind="tool",
        trace_id=OPEN_TRACE,
        parent_id="e" * 16,
        inputs="of the tool",
        start_ns=started + 10**9,
        end_ns=started + 2 * 10**9,
    )
    store.append([tool])
    return tool
