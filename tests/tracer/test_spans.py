"""Our span: what it keeps, what it refuses, and what it counts."""

from __future__ import annotations

import random

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Status, StatusCode

from spanwise.tracer import stats, tracer_provider
from spanwise.tracer.otel.live_span import (
    MAX_ATTRIBUTES,
    MAX_EVENTS,
    Clock,
    LiveSpan,
    _open_traces,
    begin_local_trace,
    count_ended,
    count_started,
    get_local_trace,
    make_span_context,
    mark_exception_recorded,
)
from spanwise.tracer.testing import Spans, fixed

ended: list[ReadableSpan] = []


@pytest.fixture(autouse=True)
def nothing_ended() -> None:
    ended.clear()


def live(name: str = "s", local: object = None, **options: int) -> LiveSpan:
    trace = local or begin_local_trace(Clock.bits(128), ended.append, Resource({}))
    return LiveSpan(name, trace, options.get("parent_id", 0), {}, InstrumentationScope("t"), options.get("start_time"))  # type: ignore[arg-type]


def test_a_block_that_raises_is_recorded_on_its_span(traced: Spans) -> None:
    tracer = tracer_provider().get_tracer("theirs")
    with pytest.raises(KeyError), tracer.start_span("fails"):
        raise KeyError("x")
    (event,) = traced.one("fails").events
    assert (event.name, traced.one("fails").status.status_code) == ("exception", StatusCode.ERROR)


def test_a_block_that_ends_well_is_not_marked(traced: Spans) -> None:
    with tracer_provider().get_tracer("theirs").start_span("works"):
        pass
    assert (traced.one("works").events, traced.one("works").status.status_code) == ((), StatusCode.UNSET)


def test_an_event_keeps_its_own_time() -> None:
    span = live()
    with fixed(start_ns=100):
        span.add_event("theirs", {"a": 1}, timestamp=7)
        span.add_event("ours")
        span.record_exception(ValueError("v"), {"b": 2}, timestamp=9)
    assert [event.timestamp for event in span.events] == [7, 100, 9]
    assert dict(span.events[0].attributes or {}) == {"a": 1}
    assert dict(span.events[2].attributes or {})["b"] == 2


def test_start_and_end_keep_the_times_that_they_are_given() -> None:
    with fixed(start_ns=100, step_ns=1):
        given, own = live(start_time=5), live()
        given.end(6)
        own.end()
    assert (given.start_time, given.end_time) == (5, 6)
    assert (own.start_time, own.end_time) == (100, 101)


def test_events_are_bounded() -> None:
    span = live()
    for i in range(MAX_EVENTS + 2):
        span.add_event(str(i))
    assert [event.name for event in span.events] == [str(i) for i in range(MAX_EVENTS)]


def test_attributes_are_bounded_but_those_there_can_change() -> None:
    span = live()
    span.set_attributes({str(i): i for i in range(MAX_ATTRIBUTES + 2)})
    span.set_attribute("0", "changed")
    assert len(span.attributes or {}) == MAX_ATTRIBUTES
    assert dict(span.attributes or {})["0"] == "changed"


def test_a_list_is_kept_as_it_was() -> None:
    span, tags = live(), ["a"]
    span.set_attribute("tags", tags)
    tags.append("b")
    assert dict(span.attributes or {}) == {"tags": ("a",)}


def test_what_has_ended_changes_no_more_and_ends_once() -> None:
    span = live()
    span.end(5)
    span.set_attribute("a", 1)
    span.update_name("other")
    span.add_event("e")
    span.add_link(live().context)
    span.set_status(StatusCode.ERROR)
    span.end(9)
    assert not span.is_recording()
    assert (span.name, span.end_time, span.events, span.links, len(ended)) == ("s", 5, (), (), 1)
    assert "a" not in (span.attributes or {})
    assert span.status.is_unset


def test_links_to_nothing_are_left_out() -> None:
    span, other = live(), live()
    span.add_link(INVALID_SPAN_CONTEXT)
    span.add_link(other.context, {"why": "retry"})
    (link,) = span.links
    assert (link.context, dict(link.attributes or {})) == (other.context, {"why": "retry"})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([StatusCode.OK, StatusCode.ERROR], StatusCode.OK),
        ([StatusCode.ERROR, StatusCode.OK], StatusCode.OK),
        ([StatusCode.ERROR, StatusCode.UNSET], StatusCode.ERROR),
    ],
)
def test_ok_is_final_and_unset_is_ignored(given: list[StatusCode], kept: StatusCode) -> None:
    span = live()
    for code in given:
        span.set_status(code)
    assert span.status.status_code is kept


def test_a_status_comes_with_its_description_either_way() -> None:
    first, second = live(), live()
    first.set_status(StatusCode.ERROR, "why")
    second.set_status(Status(StatusCode.ERROR, "why"))
    assert first.status.description == second.status.description == "why"


def test_an_exception_is_described_by_its_full_type() -> None:
    span = live()
    span.record_exception(ValueError("a: b"))
    span.record_exception(pytest.UsageError("x"), escaped=True)
    first, second = (dict(event.attributes or {}) for event in span.events)
    assert (first["exception.type"], first["exception.message"]) == ("ValueError", "a: b")
    assert (second["exception.type"], second["exception.escaped"]) == ("pytest.UsageError", "True")
    assert first["exception.escaped"] == "False"


def test_an_exception_is_recorded_once_per_trace() -> None:
    error = ValueError("x")
    assert [mark_exception_recorded(error, trace_id) for trace_id in (1, 1, 2)] == [True, False, True]


def test_an_exception_that_allows_no_attributes_is_recorded_each_time() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    error = Frozen()
    assert [mark_exception_recorded(error, 1), mark_exception_recorded(error, 1)] == [True, True]


def test_spans_of_others_count_on_the_trace_like_ours() -> None:
    local = begin_local_trace(1, ended.append, Resource({}))
    for span_id in (7, 8):
        count_started(local, span_id)
    assert (local.root_id, local.started, local.open) == (7, 2, 2)
    assert count_ended(local, 8) == {}
    assert get_local_trace(1) is local
    counts = {"spanwise.local_root": f"{7:016x}", "spanwise.spans.started": 2, "spanwise.spans.open": 0}
    assert count_ended(local, 7) == counts
    assert get_local_trace(1) is None


def test_only_the_root_and_what_ends_after_it_carry_counts() -> None:
    root = live("root")
    early, late = (live(name, root.local, parent_id=root.span_id) for name in ("early", "late"))
    for span in (early, root, late):
        span.end()
    counts = [dict(s.attributes or {}) for s in ended]
    assert [c.get("spanwise.spans.open") for c in counts] == [None, 1, 0]
    assert {c.get("spanwise.local_root") for c in counts[1:]} == {f"{root.span_id:016x}"}


@pytest.mark.process
def test_roots_that_never_end_do_not_fill_the_memory() -> None:
    spans = [live() for _ in range(10_001)]
    assert get_local_trace(spans[0].local.trace_id) is None
    assert get_local_trace(spans[1].local.trace_id) is spans[1].local
    assert get_local_trace(spans[-1].local.trace_id) is spans[-1].local
    for span in spans:
        span.end()
    assert len(ended) == 10_001


def test_a_trace_whose_root_has_ended_takes_no_room() -> None:
    root = live()
    assert root.local.trace_id in _open_traces
    root.end()
    assert root.local.trace_id not in _open_traces


def test_contexts_bear_our_tracestate_and_the_sampled_flag() -> None:
    span = live(parent_id=5)
    entry = f"{span.local.trace_id:032x}-{span.span_id:016x}-01"
    assert span.get_span_context().trace_state["spanwise"] == entry
    assert span.parent is not None
    assert (span.parent.span_id, span.parent.is_remote, live().parent) == (5, False, None)
    assert (span.context.trace_flags, make_span_context(1, 2, sampled=False).trace_flags) == (1, 0)
    assert make_span_context(1, 2, sampled=False).trace_state["spanwise"].endswith("-00")


def test_an_application_that_seeds_random_repeats_none_of_our_ids() -> None:
    ids = []
    for _ in range(2):
        random.seed(0)
        ids.append(live().span_id)
    assert ids[0] != ids[1]


def test_no_id_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "bits", staticmethod(lambda bits: 0))
    assert live().span_id == 1


@pytest.mark.parametrize("event", [True, False])
@pytest.mark.parametrize("status", [True, False])
def test_who_starts_a_span_says_what_an_exception_leaves_on_it(event: bool, status: bool, traced: Spans) -> None:
    tracer = tracer_provider().get_tracer("theirs")
    options = {"record_exception": event, "set_status_on_exception": status}
    with pytest.raises(KeyError), tracer.start_span("fails", **options):
        raise KeyError("x")
    fails = traced.one("fails")
    assert (len(fails.events), fails.status.status_code is StatusCode.ERROR) == (int(event), status)


def test_what_is_beyond_a_bound_is_counted() -> None:
    span = live()
    for i in range(MAX_EVENTS + 3):
        span.add_event(str(i))
    for i in range(MAX_ATTRIBUTES + 2):
        span.set_attribute(str(i), i)
    assert (span.dropped_events, span.dropped_attributes) == (3, 2)
    assert stats().errors == {"dropped_events": 3, "dropped_attributes": 2}
