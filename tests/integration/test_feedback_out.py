"""`spanwise serve --feedback-to`, killed and started again."""

from __future__ import annotations

import pytest

from collector.outlets import Scripted, attributes
from integration.serving import Process
from polling import until
from spanwise.collector.client import HTTPStore
from spanwise.collector.records import Feedback, Target

ROWS = [Feedback(target=Target(trace_id="1" * 32), key=f"k{number}", score=0.5) for number in range(9)]


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on_with_what_it_had_acknowledged(tmp_path):
    with Scripted() as other:
        options = ["--feedback-to", f"hub={other.url}", "--no-grpc"]
        with Process(tmp_path / "a.db", options=options) as first:
            add(first, ROWS[:3])
            until(lambda: len(other.taken) >= 3)
        with Process(tmp_path / "a.db", options=["--no-grpc"]) as without:
            add(without, ROWS[3:6])
        with Process(tmp_path / "a.db", options=options) as last, HTTPStore(last.url) as store:
            add(last, ROWS[6:])
            until(lambda: set(other.keys) == {one.key for one in ROWS})
            (outlet,) = until(lambda: [one for one in store.outlets() if not one.waiting])
            assert f"forwards feedback to hub: {other.url}" in last.stop()
    assert (outlet.name, outlet.dropped) == ("hub", 0)
    assert {attributes(record)["spanwise.feedback.id"] for record in other.taken} == {one.id for one in ROWS}


def add(process: Process, rows: list[Feedback]) -> None:
    with HTTPStore(process.url) as store:
        store.add_feedback(rows)
