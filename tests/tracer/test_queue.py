"""The queue: bounded in bytes, and what is least needed goes first."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.export.span_queue import SpanQueue
from spanwise.tracer.otel.live_span import LiveSpan, LocalTrace, make_span_context

LOCAL = LocalTrace(1, lambda span: None, Resource({}))


def made(name: str, rank: str, text: str = "") -> LiveSpan:
    local = LocalTrace(1, lambda span: None, Resource({})) if rank == "root" else LOCAL
    LOCAL.root_id = 1
    span = LiveSpan(name, local, 0, {"text": text, "number": 5}, InstrumentationScope("t"))
    span.has_children = rank == "inner"
    return span


def event() -> FeedbackEvent:
    return FeedbackEvent(1, 2, 3, {"comment": "c"})


def names(queue: SpanQueue) -> list[Any]:
    return [getattr(item, "name", item) for item in queue.take()]


def test_roots_and_feedback_come_first_then_inner_spans_then_leaves() -> None:
    queue, feedback = SpanQueue(), event()
    items = [made("leaf", "leaf"), made("inner", "inner"), made("root", "root"), feedback, made("leaf 2", "leaf")]
    for item in items:
        queue.put(item)
    assert len(queue) == 5
    assert names(queue) == ["root", feedback, "inner", "leaf", "leaf 2"]


def test_spans_of_others_are_roots_or_inner() -> None:
    queue, context = SpanQueue(), make_span_context(1, 2)
    for name, parent in (("child", context), ("root", None)):
        queue.put(ReadableSpan(name, context, parent))
    queue.put(made("leaf", "leaf"))
    assert names(queue) == ["root", "child", "leaf"]


def test_the_newest_of_the_lowest_rank_goes() -> None:
    queue, dropped = SpanQueue(max_bytes=3 * 1_560), LOCAL.dropped
    for name, rank in (("a", "leaf"), ("b", "leaf"), ("c", "root"), ("d", "inner"), ("e", "root"), ("f", "root")):
        queue.put(made(name, rank))
    assert names(queue) == ["c", "e", "f"]
    assert (queue.dropped, LOCAL.dropped - dropped) == ({"queue_full": 3}, 3)


def test_what_fits_exactly_is_kept() -> None:
    queue = SpanQueue(max_bytes=3_020)  # 1,500 bytes and its text each
    for name in "ab":
        queue.put(made(name, "leaf", "x" * 10))
    assert (len(queue), queue.dropped) == (2, {})


@pytest.mark.parametrize("text", ["x" * 11, "x" * 600])
def test_one_byte_too_many_costs_one_span(text: str) -> None:
    queue = SpanQueue(max_bytes=3_020)
    queue.put(made("a", "leaf", "x" * 10))
    queue.put(made("b", "leaf", text))
    assert names(queue) == ["a"]


def test_what_was_taken_counts_no_more() -> None:
    queue = SpanQueue(max_bytes=3_100)
    for _ in range(3):
        for name in "ab":
            queue.put(made(name, "leaf", "x"))
        assert (names(queue), len(queue)) == (["a", "b"], 0)
    assert queue.dropped == {}


def test_what_was_dropped_counts_no_more() -> None:
    queue = SpanQueue(max_bytes=3_100)
    queue.put(made("big", "leaf", "x" * 4000))
    for name in "ab":
        queue.put(made(name, "leaf", "x"))
    assert names(queue) == ["a", "b"]


def test_the_weight_of_a_span_is_its_text() -> None:
    queue, span = SpanQueue(), made("a", "leaf", "x" * 70)
    queue.put(span)
    assert span.weight == 1_570


def test_what_is_taken_away_are_the_oldest_leaves() -> None:
    queue = SpanQueue(high_bytes=3_200)
    for name, rank in (("a", "leaf"), ("b", "root"), ("c", "inner"), ("d", "leaf"), ("e", "leaf")):
        queue.put(made(name, rank))
    assert queue.is_high
    assert [item.name for item in queue.take_some(2)] == ["a", "d"]  # type: ignore[union-attr]
    assert [item.name for item in queue.take_some(2)] == ["e", "c"]  # type: ignore[union-attr]
    assert (queue.is_high, len(queue), names(queue)) == (False, 1, ["b"])


def test_put_asks_for_attention_when_a_batch_is_full_or_the_queue_is_high() -> None:
    queue = SpanQueue()
    assert [queue.put(made("a", "leaf")) for _ in range(513)] == [False] * 511 + [True, False]
    queue = SpanQueue(high_bytes=3_200)
    assert [queue.put(made("a", "leaf")) for _ in range(3)] == [False, False, True]


def test_where_less_is_to_be_kept_the_queue_is_high_at_four_mebibytes() -> None:
    queue = SpanQueue()
    queue.put(made("a", "leaf", "x" * (5 << 20)))
    highs = [queue.is_high]
    for less in (True, False):
        queue.use_reduced_limit(less)
        highs.append(queue.is_high)
    assert highs == [False, True, False]


def test_what_is_put_back_comes_before_the_rest_of_its_rank_and_is_in_hand_no_more() -> None:
    queue = SpanQueue()
    for name in "abc":
        queue.put(made(name, "leaf"))
    taken = queue.take()
    queue.put(made("d", "leaf"))
    assert (queue.in_flight, len(queue)) == (3, 1)
    queue.put_back(taken[1:])
    queue.settle(1)
    assert (queue.in_flight, names(queue)) == (0, ["b", "c", "d"])


def test_what_is_put_back_beyond_the_bound_is_dropped_and_counted() -> None:
    queue = SpanQueue(max_bytes=2 * 1_560)
    for name in "ab":
        queue.put(made(name, "leaf"))
    taken = queue.take()
    queue.put(made("c", "leaf"))
    queue.put_back(taken)
    assert (names(queue), queue.dropped) == (["a", "b"], {"queue_full": 1})


def interrupted(work: Callable[[], Any], line: int, handler: Callable[[], Any]) -> Any:
    """Do some work and, before the n-th line that it runs of the queue, something else, as a signal handler would."""
    ran = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal ran
        if frame.f_globals is not vars(sys.modules[SpanQueue.__module__]):
            return None
        ran += event == "line"
        if event == "line" and ran == line:
            handler()  # is not traced itself
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(before)


def do(what: str, queue: SpanQueue, account: Counter[str]) -> None:
    if what == "put":
        queue.put(made("new", "leaf", "x" * 60))
        account["put"] += 1
    elif what == "put_back":
        queue.put_back(queue.take_some(1))
    else:
        taken = queue.take() if what == "take" else queue.take_some(2)
        account["taken"] += len(taken)
        queue.settle(len(taken))


@pytest.mark.parametrize("handler", ["put", "take", "take_some", "put_back"])
@pytest.mark.parametrize("work", ["put", "take", "take_some", "put_back"])
def test_whatever_a_signal_handler_does_in_between_each_item_is_taken_once(work: str, handler: str) -> None:
    for line in range(1, 60):
        queue, account = SpanQueue(max_bytes=2 * 1_560), Counter(put=2)
        for name in "ab":
            queue.put(made(name, "leaf"))
        interrupted(lambda: do(work, queue, account), line, lambda: do(handler, queue, account))  # noqa: B023
        left = len(queue.take()) + queue.dropped["queue_full"]
        queue.settle(left - queue.dropped["queue_full"])
        assert (account["taken"] + left, len(queue), queue.bytes, queue.in_flight) == (account["put"], 0, 0, 0), line
