"""Calls to other processes are counted, by whatever the context was put into their carriers."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from tests.tracer.conftest import Sink

from spanwise.tracer import attribute_names as names
from spanwise.tracer import carry, configure, extract, flush, inject, span, tracer_provider
from spanwise.tracer.testing import Spans, capture_spans


def sent(traced: Spans, name: str = "root") -> Any:
    return (traced.one(name).attributes or {}).get(names.CALLS_SENT)


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_each_carrier_is_a_call(traced: Spans, calls: int) -> None:
    with span("root"), span("child"):
        for _ in range(calls):
            inject()
    assert sent(traced) == (calls or None)


def test_instrumentations_put_our_context_in_by_opentelemetrys_own_propagator(traced: Spans) -> None:
    headers = called("http://a.internal/x", "http://b.internal/x")
    assert "spanwise=" in headers["tracestate"]
    assert sent(traced) is None
    with capture_spans(propagate_to=["a.internal"]) as configured:
        called("http://a.internal/x", "http://b.internal/x")
    assert sent(configured) == 1


def called(*urls: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    with span("root"):
        for url in urls:
            attributes = {"url.full": url}
            tracer = tracer_provider().get_tracer("httpx")
            with tracer.start_as_current_span("GET", kind=otel.SpanKind.CLIENT, attributes=attributes):
                propagate.inject(headers)
    return headers


def test_looking_at_a_context_or_exporting_it_sends_nothing(traced: Spans) -> None:
    with span("root") as run:
        context = run.span.get_span_context()
        assert dict(context.trace_state), repr(context)
        encode_spans([run.span])  # type: ignore[list-item]
    assert sent(traced) is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda context: pickle.loads(pickle.dumps(context))])
def test_a_context_can_be_pickled_and_copied_as_any_other(traced: Spans, again: Any) -> None:
    with span("root") as run:
        context = run.span.get_span_context()
        made = again(context)
    assert (made, made.trace_state.to_header()) == (context, f"spanwise={run.trace_id}-{run.span_id}-01,ot=th:0")
    assert sent(traced) is None


def test_calls_after_the_local_root_are_told_by_what_ends_later(traced: Spans) -> None:
    with span("root"):
        late = tracer_provider().get_tracer("x").start_span("late")
    with otel.use_span(late, end_on_exit=True):
        inject()
    assert (sent(traced), sent(traced, "late")) == (None, 1)


def test_inside_a_foreign_trace_ours_counts_the_call() -> None:
    foreign = TracerProvider().get_tracer("web").start_as_current_span("theirs")
    with capture_spans() as traced, foreign, span("root"):
        inject()
    assert sent(traced) == 1


def test_what_only_passes_through_is_no_call_of_ours(traced: Spans) -> None:
    with span("root"):
        headers = inject()
    with extract(headers):
        inject()
    inject()
    with span("other"):
        pass
    assert (sent(traced), sent(traced, "other")) == (1, None)


def work(x: int) -> int:
    with span("work"):
        return x + 1


@pytest.mark.process
def test_a_carried_function_counts_where_it_leaves_the_process(traced: Spans) -> None:
    with span("root"):
        carried = carry(work)
        assert carried(1) == 2
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            assert sorted(pool.map(carried, [1, 2, 3])) == [2, 3, 4]
    assert sent(traced) == 3
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(carried))))
    assert copy.copy(again)(1) == 2


def test_calls_of_a_joined_provider_are_counted_where_we_see_them(sink: Sink) -> None:
    configure(url=sink.url, provider=TracerProvider())
    with span("root"):
        inject()
    assert flush(60)
    [root] = sink.spans()
    assert [a.value.int_value for a in root.attributes if a.key == names.CALLS_SENT] == [1]
