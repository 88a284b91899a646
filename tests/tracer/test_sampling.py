"""Head sampling as OpenTelemetry's consistent probability sampling has it, and errors that are kept all the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace._sampling_experimental import composable_traceid_ratio_based, composite_sampler
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import TraceState
from tests.tracer.conftest import Sink

from spanwise.tracer import attribute_names as names
from spanwise.tracer import configure, current_run, extract, flush, inject, span, trace, tracer_provider
from spanwise.tracer.export import span_queue
from spanwise.tracer.otel import live_span
from spanwise.tracer.testing import Spans, capture_spans

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ids = st.integers(1, 2**128 - 1)
rates = st.sampled_from([1e-20, 1e-9, 0.001, 0.1, 1 / 3, 0.5, 0.9999999, 1.0]) | st.floats(0, 1)
members = st.sampled_from(["", "rv:80000000000000", "th:8;rv:ffffffffffffff", "x:1;rv:00000000000001"])


@given(ids, rates, members)
def test_the_choice_and_the_tracestate_are_opentelemetrys_own(trace_id: int, rate: float, ot: str) -> None:
    given = TraceState([("ot", ot)]) if ot else None
    theirs = composite_sampler(composable_traceid_ratio_based(rate)).should_sample(
        None, trace_id, "name", trace_state=given
    )
    sampled, member = live_span.sample_new_trace(live_span.compute_threshold(rate), trace_id, ot)
    assert sampled == theirs.decision.is_sampled()
    theirs_member = (theirs.trace_state or {}).get("ot", "")
    assert sorted(member.split(";")) == sorted(theirs_member.split(";"))


def test_a_lower_rate_takes_a_part_of_what_a_higher_one_takes() -> None:
    dice = random.Random(7)
    drawn = [dice.getrandbits(128) for _ in range(4000)]
    few, many = (
        {t for t in drawn if live_span.sample_new_trace(live_span.compute_threshold(rate), t)[0]} for rate in (0.1, 0.3)
    )
    assert few < many
    assert 340 < len(few) < 460
    assert 1100 < len(many) < 1300


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_local_root_leaves_with_its_probability(sink: Sink, rate: float) -> None:
    configure(url=sink.url, sample_rate=rate)
    for _ in range(20):
        with span("root"), span("child"):
            pass
    assert flush(60)
    states = {s.name: s.trace_state for s in sink.spans()}
    assert states == ({"root": "ot=th:0", "child": ""} if rate == 1 else dict.fromkeys(("root", "child"), "ot=th:8"))


def carriers(rate: float, count: int = 40) -> list[dict[str, str]]:
    """What requests of `count` traces carry that a process with this rate has begun."""
    made: list[dict[str, str]] = []
    with capture_spans(sample_rate=rate):
        for _ in range(count):
            with span("root"):
                made.append(dict(inject()))
    return made


def test_other_processes_decide_as_the_first_one_whatever_their_own_rate() -> None:
    made = carriers(0.5)
    with capture_spans(sample_rate=0.01) as traced:
        for headers in made:
            with extract(headers), span("remote"):
                pass
    assert len(traced.spans) == sum(headers["traceparent"].endswith("-01") for headers in made)
    assert {s.ot for s in traced.spans} == {"th:8"}  # type: ignore[attr-defined]


def test_only_sampled_traces_bear_a_threshold_on_the_way() -> None:
    for headers in carriers(0.5):
        assert ("ot=th:8" in headers["tracestate"]) == headers["traceparent"].endswith("-01")


def entered(ot: str, flag: str = "01", trace_id: str = TRACE) -> str:
    """The member `ot` of a span that continues such a trace of ours."""
    state = f"spanwise={trace_id}-00f067aa0ba902b7-{flag},ot={ot}"
    carrier = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-{flag}", "tracestate": state}
    with capture_spans(sample_rate=0.5), extract(carrier), span("remote") as run:
        return str(run.span.local.ot)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ot", "flag", "kept"),
    [
        ("th:8;rv:c0000000000000", "01", "th:8;rv:c0000000000000"),
        ("th:8;rv:10000000000000", "01", "rv:10000000000000"),  # cannot have been sampled at that threshold
        ("th:a3ce929d0e0e4736", "01", ""),
        ("th:ce929d0e0e4736", "01", "th:ce929d0e0e4736"),  # the trace id's last 56 bits
        ("th:ce929d0e0e4737", "01", ""),
        ("th:8", "00", ""),
        ("th:xyz;p:3;rv:nonsense", "01", "p:3"),
        ("th:8;x:" + "y" * 200, "01", "th:8"),  # more than fits beside our entry in a foreign trace
    ],
)
def test_thresholds_that_cannot_be_are_left_out(ot: str, flag: str, kept: str) -> None:
    assert entered(ot, flag) == kept


def test_randomness_that_a_foreign_trace_brings_decides_for_ours_too() -> None:
    for digits, sampled in (("f" * 14, True), ("0" * 14, False)):
        context = SpanContext(1, 2, True, trace_state=TraceState([("ot", f"th:8;rv:{digits}")]))
        token = otel_context.attach(otel.set_span_in_context(otel.NonRecordingSpan(context)))
        with capture_spans(sample_rate=0.5), span("ours") as run:
            assert run.span.get_span_context().trace_flags.sampled == sampled
            assert run.span.local.ot.endswith(f"rv:{digits}")  # type: ignore[attr-defined]
        otel_context.detach(token)


def test_inside_a_foreign_trace_the_threshold_travels_beside_that_traces_own() -> None:
    foreign = TracerProvider().get_tracer("web").start_as_current_span("theirs")
    with foreign, capture_spans(sample_rate=0.999999), span("ours"):
        headers = inject()
    assert headers["tracestate"].partition(",")[0].count("-th:") == 1
    with capture_spans() as traced, extract(headers), span("remote"):
        pass
    assert _threshold(traced) == live_span.compute_threshold(0.999999)


def _threshold(traced: Spans) -> int:
    return int(traced.one("remote").ot[3:].ljust(14, "0"), 16)  # type: ignore[attr-defined]


# -- errors are kept --


@trace
def leaf(x: int) -> int:
    return 1 // x


@trace
def root(*xs: int) -> list[int]:
    return [leaf(x) for x in xs]


def caught(*xs: int) -> None:
    with pytest.raises(ZeroDivisionError):
        root(*xs)


def test_of_what_is_not_sampled_traces_with_an_error_are_kept_whole() -> None:
    with capture_spans(sample_rate=0.0) as traced:
        root(1, 2)
        caught(1, 0)
        root(3)
    assert traced.names() == ["root", "leaf", "leaf"]
    assert traced.inputs("root") == {"xs": [1, 0]}
    local_root = traced.one("root")
    assert local_root.attributes[names.PARTIAL] is True
    assert (local_root.ot, local_root.attributes[names.SPANS_STARTED]) == ("th:0", 3)  # type: ignore[attr-defined,index]


def test_an_error_below_that_the_root_has_handled_keeps_its_trace() -> None:
    with capture_spans(sample_rate=0.0) as traced, span("root"), pytest.raises(ZeroDivisionError):
        leaf(0)
    assert traced.names() == ["root", "leaf"]


def test_sampled_traces_are_not_partial() -> None:
    with capture_spans(sample_rate=1.0) as traced:
        caught(0)
    assert names.PARTIAL not in traced.one("root").attributes


def test_feedback_goes_the_way_of_its_trace() -> None:
    with capture_spans(sample_rate=0.0) as traced:
        with span("fine"):
            current_run().feedback("seen", 1)
        assert traced.feedback == []
        with pytest.raises(ZeroDivisionError), span("fails"):
            current_run().feedback("seen", 2)
            leaf(0)
    assert [event.attributes[names.EVALUATION_SCORE] for event in traced.feedback] == [2.0]


def test_what_ends_after_the_local_root_follows_its_decision() -> None:
    with capture_spans(sample_rate=0.0) as traced:
        for name, x in (("fine", 1), ("fails", 0)):
            with span(name):
                late = tracer_provider().get_tracer("x").start_span(f"{name} late")
                with pytest.raises(ZeroDivisionError) if x == 0 else span("child"):
                    leaf(x)
            late.end()
    assert traced.names() == ["fails", "fails late", "leaf"]


def test_an_unsampled_trace_keeps_its_errors_in_every_process() -> None:
    headers = next(h for h in carriers(0.5) if h["traceparent"].endswith("-00"))
    with capture_spans(sample_rate=1.0) as traced:
        with extract(headers), span("fine"):
            pass
        with extract(headers), pytest.raises(ZeroDivisionError):
            leaf(0)
    assert traced.names() == ["leaf"]


def test_a_trace_that_grows_for_an_hour_costs_a_bound_and_what_fell_out_is_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(span_queue, "MAX_TAIL_BYTES", 20_000)
    with capture_spans(sample_rate=0.0) as traced, span("root"):
        with pytest.raises(ZeroDivisionError):
            leaf(0)
        for _ in range(100):
            leaf(1)
            assert span_queue._bytes <= 20_000
    assert 5 < len(traced.spans) < 20
    assert Counter(s.status.is_ok for s in traced.spans)[False] == 1  # the error is the last to go
    dropped = traced.one("root").attributes[names.SPANS_DROPPED]  # type: ignore[index]
    assert dropped == traced.dropped()["unsampled_full"] == 102 - len(traced.spans)


def test_the_oldest_trace_gives_way_to_the_newer_ones(monkeypatch: Any) -> None:
    monkeypatch.setattr(span_queue, "MAX_TAIL_BYTES", 20_000)
    with capture_spans(sample_rate=0.0) as traced, span("old"):
        for _ in range(10):
            leaf(1)
        with extract({}):
            caught(*range(5, -1, -1))
    assert traced.names() == ["root", *["leaf"] * 6]
    assert traced.dropped() == {}
    assert span_queue._bytes == 0


def test_spans_that_nobody_ends_do_not_fill_the_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr(span_queue, "MAX_TAIL_BYTES", 20_000)
    with capture_spans(sample_rate=0.0) as traced:
        for _ in range(50):
            never_ended = tracer_provider().get_tracer("x").start_span("never ended")
            with otel.use_span(never_ended):
                leaf(1)
    assert span_queue._bytes <= 20_000
    assert traced.spans == []
    span_queue._pending_traces.clear()
    span_queue._bytes = 0


def test_threads_that_end_spans_while_it_is_decided_lose_none() -> None:
    with capture_spans(sample_rate=0.0) as traced:
        with span("root"), ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(leaf, n % 20) for n in range(400)]
        assert sum(one.exception() is not None for one in asked) == 20
    assert len(traced.spans) == 401
    assert span_queue._bytes == 0


FORKED = """
import os
from spanwise.tracer import flush, span
with span("parent"):
    if (child := os.fork()) == 0:
        try:
            with span("child"): 1 / 0
        except ZeroDivisionError:
            flush(60)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.process
def test_a_forked_child_decides_of_its_own_part(sink: Sink, tmp_path: Path) -> None:
    environment = {"SPANWISE_URL": sink.url, "SPANWISE_SAMPLE_RATE": "0", "SPANWISE_SPILL_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FORKED], env={**os.environ, **environment}, check=True, timeout=60)
    [child] = sink.spans()
    assert (child.name, child.trace_state, len(child.parent_span_id)) == ("child", "ot=th:0", 8)
    assert names.PARTIAL in {attribute.key for attribute in child.attributes}


class Seen(SpanProcessor):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[tuple[str, bool]] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started.append(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append((span.name, span.context.trace_flags.sampled))


def test_processors_of_the_users_own_see_both_ends_of_an_unsampled_span_and_its_flag() -> None:
    seen = Seen()
    with capture_spans(sample_rate=0.0):
        tracer_provider().add_span_processor(seen)
        leaf(1)
    assert (seen.started, seen.ended) == (["leaf"], [("leaf", False)])


def test_instrumentations_see_a_recording_span_that_is_not_sampled() -> None:
    with capture_spans(sample_rate=0.0):
        recorded = tracer_provider().get_tracer("x").start_span("theirs")
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, otel.set_span_in_context(recorded))
        recorded.end()
    assert headers["traceparent"].endswith("-00")
    assert "ot=" not in headers["tracestate"]
