"""Feedback by a trace's id, from any process."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from spanwise.tracer import configure, current_run, feedback, flush, span, stats
from spanwise.tracer.testing import Spans

from .conftest import Sink

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def sent(sink: Sink) -> Any:
    assert flush(60)
    (log,) = sink.logs()
    return log, {it.key: it.value for it in log.attributes}


def test_a_thumb_reaches_the_collector(sink: Sink) -> None:
    configure(url=sink.url, project="p")
    feedback(TRACE, "thumbs_up", True, comment="great", author="ann")
    log, said = sent(sink)
    assert (log.trace_id.hex(), log.span_id) == (TRACE, b"")
    assert (said["gen_ai.evaluation.score.value"].double_value, said["spanwise.feedback.boolean"].bool_value) == (
        1,
        True,
    )
    assert (said["spanwise.feedback.scope"].string_value, said["spanwise.feedback.source"].string_value) == (
        "trace",
        "human",
    )
    assert (said["spanwise.feedback.author"].string_value, said["gen_ai.evaluation.explanation"].string_value) == (
        "ann",
        "great",
    )


def test_a_span_s_feedback_names_it(sink: Sink) -> None:
    configure(url=sink.url)
    feedback(str(uuid.UUID(TRACE)).upper(), "tone", "friendly", span_id="00f067aa0ba902b7")
    log, said = sent(sink)
    assert (log.trace_id.hex(), log.span_id.hex()) == (TRACE, "00f067aa0ba902b7")
    assert "spanwise.feedback.scope" not in said
    assert said["gen_ai.evaluation.score.label"].string_value == "friendly"


@pytest.mark.parametrize("id", ["", "0" * 32, "abc", TRACE[:-1] + "g", TRACE + "0", None, 7])
def test_an_id_that_can_be_none_is_refused(id: Any) -> None:
    with pytest.raises(
        ValueError, match=r"32 hex digits that are not all zeros, got .*; use current_run\(\).trace_id inside"
    ):
        feedback(id, "k", 1)


def test_a_span_s_id_is_looked_at_as_well() -> None:
    with pytest.raises(ValueError, match="span_id must be 16 hex digits"):
        feedback(TRACE, "k", 1, span_id=TRACE)


def test_feedback_waits_while_the_collector_is_away(tmp_path: Any) -> None:
    configure(url="http://127.0.0.1:9", spill_dir=str(tmp_path))
    feedback(TRACE, "k", 1)
    assert (flush(60).spilled, stats().dropped) == (1, {})


def test_where_nothing_is_captured_nothing_is_sent(sink: Sink) -> None:
    configure(url=sink.url, capture="none")
    feedback(TRACE, "k", 1)
    assert (flush(60).delivered, sink.requests) == (0, [])


def test_outside_of_any_run_there_is_no_id_and_that_is_said(traced: Spans, caplog: pytest.LogCaptureFixture) -> None:
    assert (current_run().trace_id, current_run().span_id) == ("", "")
    assert "outside of any run" in caplog.text
    with span("s") as run:
        assert current_run().trace_id == run.trace_id != ""
