"""Generators and async generators: every way in which they can end."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import itertools
import types
import weakref
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spanwise.tracer import configure, current_run, flush, span, stats, trace
from spanwise.tracer.testing import Spans, capture_spans


@trace
def count(n: int) -> Iterator[int]:
    yield from range(n)


@trace
async def acount(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield i


def closed(traced: Spans, name: str) -> Any:
    return (traced.one(name).attributes or {}).get("spanwise.stream.closed")


def test_exhausted(traced: Spans) -> None:
    assert list(count(3)) == [0, 1, 2]
    assert traced.outputs("count") == [0, 1, 2]
    assert traced.inputs("count") == {"n": 3}
    assert closed(traced, "count") is None


def test_the_span_is_open_while_iterating(traced: Spans) -> None:
    stream = count(2)
    next(stream)
    assert traced.names() == []
    list(stream)
    assert traced.names() == ["count"]


def test_closed_early(traced: Spans) -> None:
    stream: Any = count(3)
    next(stream)
    stream.close()
    assert traced.outputs("count") == [0]
    assert closed(traced, "count") is True
    assert traced.one("count").status.status_code is StatusCode.UNSET
    assert (traced.one("count").attributes or {})["spanwise.cancelled"] is True


@pytest.mark.parametrize("steps", [0, 1])
def test_abandoned_to_the_garbage_collector(traced: Spans, steps: int) -> None:
    stream = count(3)
    for _ in range(steps):
        next(stream)
    del stream
    gc.collect()
    assert traced.outputs("count") == list(range(steps))


def test_exception_inside(traced: Spans) -> None:
    @trace
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    with pytest.raises(KeyError):
        list(broken())
    assert traced.one("broken").status.status_code is StatusCode.ERROR
    assert traced.outputs("broken") == [1]


def test_send_throw_and_return_value_pass_through(traced: Spans) -> None:
    @trace
    def echo() -> Generator[Any, Any, str]:
        got: Any = None
        while got != "stop":
            try:
                got = yield got
            except ValueError as error:
                got = str(error)
        return "done"

    stream = echo()
    assert next(stream) is None
    assert stream.send(5) == 5
    assert stream.throw(ValueError("thrown")) == "thrown"
    with pytest.raises(StopIteration) as stop:
        stream.send("stop")
    assert stop.value.value == "done"
    assert traced.outputs("echo") == [None, 5, "thrown"]


def test_what_a_generator_yields_from_sees_sends_and_close(traced: Spans) -> None:
    seen = []

    @trace
    def inner() -> Generator[int, Any, None]:
        try:
            seen.append((yield 1))
            yield 2
        finally:
            seen.append("closed")

    def outer() -> Generator[int, Any, None]:
        yield from inner()

    stream = outer()
    next(stream)
    stream.send("sent")
    stream.close()
    assert seen == ["sent", "closed"]


def test_context_is_right_inside_and_outside(traced: Spans) -> None:
    @trace
    def parent() -> Iterator[str]:
        with span("inside"):
            yield current_run().span_id
            yield current_run().span_id

    with span("consumer") as consumer:
        for inner_id in parent():
            assert current_run().span_id == consumer.span_id
            assert inner_id != consumer.span_id
            with span("between"):
                pass
    assert traced.parent("inside") == "parent"
    assert {s.parent.span_id for s in traced.spans if s.name == "between" and s.parent} == {int(consumer.span_id, 16)}


def test_started_where_it_was_called_not_where_it_is_iterated(traced: Spans) -> None:
    with span("handler"):
        stream = count(1)
    list(stream)
    assert traced.parent("count") == "handler"


def test_reduce(traced: Spans) -> None:
    @trace(reduce="".join)
    def tokens() -> Iterator[str]:
        yield from ["a", "b"]

    assert list(tokens()) == ["a", "b"]
    assert traced.outputs("tokens") == "ab"


def test_items_are_recorded_as_they_were(traced: Spans) -> None:
    @trace
    def rows() -> Iterator[dict[str, int]]:
        yield {"a": 1}

    for row in rows():
        row["a"] = 2
    assert traced.outputs("rows") == [{"a": 1}]


def test_recorded_items_are_bounded(traced: Spans) -> None:
    assert sum(1 for _ in count(10_003)) == 10_003
    assert traced.outputs("count")[-1] == "…[cut: 3 more items]"


def test_async_exhausted_and_closed(traced: Spans) -> None:
    async def main() -> list[int]:
        stream: Any = acount(5)
        await anext(stream)
        await stream.aclose()
        return [i async for i in acount(3)]

    assert asyncio.run(main()) == [0, 1, 2]
    outputs = [(s.attributes or {})["output.value"] for s in traced.spans]
    assert outputs == ["[0]", "[0,1,2]"]


def test_async_send_and_throw(traced: Spans) -> None:
    @trace
    async def echo() -> Any:
        got: Any = None
        while True:
            try:
                got = yield got
            except ValueError as error:
                got = str(error)

    async def main() -> list[Any]:
        stream = echo()
        got = [await anext(stream), await stream.asend(5), await stream.athrow(ValueError("thrown"))]
        await stream.aclose()
        return got

    assert asyncio.run(main()) == [None, 5, "thrown"]
    assert traced.outputs("echo") == [None, 5, "thrown"]


def test_async_exception(traced: Spans) -> None:
    @trace
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise KeyError("x")

    async def main() -> None:
        with contextlib.suppress(KeyError):
            async for _ in broken():
                pass

    asyncio.run(main())
    assert traced.one("broken").status.status_code is StatusCode.ERROR


def test_async_abandoned(traced: Spans) -> None:
    async def main() -> None:
        async for _ in acount(3):
            break
        acount(3)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted((s.attributes or {})["output.value"] for s in traced.spans) == ["[0]", "[]"]


def test_async_context_is_right_inside_and_outside(traced: Spans) -> None:
    @trace
    async def parent() -> AsyncIterator[int]:
        with span("inside"):
            yield 1

    async def main() -> None:
        with span("consumer") as consumer:
            async for _ in parent():
                assert current_run().span_id == consumer.span_id

    asyncio.run(main())
    assert traced.parent("inside") == "parent"
    assert traced.parent("parent") == "consumer"


def test_cancelled_while_iterating(traced: Spans) -> None:
    @trace
    async def slow() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(60)

    async def consume() -> None:
        async for _ in slow():
            pass

    async def main() -> None:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    span = traced.one("slow")
    assert (span.status.status_code, (span.attributes or {}).get("spanwise.cancelled")) == (StatusCode.UNSET, True)
    assert (span.attributes or {}).get("output.value") == "[1]"


def test_frameworks_still_see_generator_functions(traced: Spans) -> None:
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(acount)
    assert inspect.isgenerator(count(0))
    assert inspect.isasyncgen(acount(0))
    assert str(inspect.signature(count)) == "(n: 'int') -> 'Iterator[int]'"


@pytest.mark.parametrize("reduce", [None, "".join])
def test_outputs_that_a_generator_sets_itself_stay(traced: Spans, reduce: Any) -> None:
    @trace(reduce=reduce)
    def tokens() -> Iterator[str]:
        yield "a"
        current_run().set_outputs("its own")

    assert list(tokens()) == ["a"]
    assert traced.outputs("tokens") == "its own"


def test_outputs_that_an_async_generator_sets_itself_stay(traced: Spans) -> None:
    @trace
    async def tokens() -> AsyncIterator[str]:
        current_run().set_outputs("its own")
        yield "a"

    async def main() -> list[str]:
        return [token async for token in tokens()]

    assert asyncio.run(main()) == ["a"]
    assert traced.outputs("tokens") == "its own"


def test_outputs_that_a_deferred_coroutine_sets_itself_stay(traced: Spans) -> None:
    async def work() -> str:
        current_run().set_outputs("its own")
        return "raw"

    assert asyncio.run(trace(lambda: work())()) == "raw"
    assert traced.outputs("<lambda>") == "its own"


@pytest.mark.parametrize("fails", [False, True])
def test_a_deferred_coroutine_gives_its_context_back(traced: Spans, fails: bool) -> None:
    async def work() -> None:
        if fails:
            raise ValueError("no")

    async def main() -> None:
        with span("around"):
            with contextlib.suppress(ValueError):
                await trace(name="deferred")(lambda: work())()
            with span("after"):
                pass

    asyncio.run(main())
    assert [traced.parent(name) for name in ("deferred", "after")] == ["around", "around"]


def test_what_closes_a_generator_passes_through_a_traced_context_manager(traced: Spans) -> None:
    @contextlib.contextmanager
    @trace
    def around() -> Iterator[None]:
        yield

    def outer() -> Iterator[str]:
        with around():
            yield "inside"
        yield "after"

    stream = outer()
    next(stream)
    stream.close()
    assert closed(traced, "around") is True


def test_a_generator_that_ignores_its_close_fails_as_it_would(traced: Spans) -> None:
    @trace
    def stubborn() -> Generator[int, None, None]:
        for i in range(2):
            with contextlib.suppress(GeneratorExit):
                yield i

    stream = stubborn()
    next(stream)
    with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):
        stream.close()
    assert traced.one("stubborn").status.description == "RuntimeError: generator ignored GeneratorExit"
    assert (traced.outputs("stubborn"), closed(traced, "stubborn")) == ([0], None)


def test_what_is_forgotten_is_marked_as_closed(traced: Spans) -> None:
    stream = count(3)
    next(stream)
    del stream
    gc.collect()
    assert closed(traced, "count") is True


def test_what_is_never_iterated_is_marked_as_closed(traced: Spans) -> None:
    count(3)
    gc.collect()
    assert (traced.outputs("count"), closed(traced, "count")) == ([], True)


def test_an_async_close_reaches_the_generator(traced: Spans) -> None:
    seen = []

    @trace
    async def held() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            seen.append("released")

    async def main() -> None:
        stream: Any = held()
        await anext(stream)
        await stream.aclose()

    asyncio.run(main())
    assert (seen, closed(traced, "held")) == (["released"], True)


def test_recorded_text_is_bounded(traced: Spans) -> None:
    with capture_spans(max_value_bytes=10) as spans:

        @trace
        def words() -> Iterator[str]:
            yield from ["12345", "67890", "never kept"]

        assert len(list(words())) == 3
    assert spans.outputs("words") == ["12345", "67890", "…[cut: 1 more items]"]


def test_recorded_values_are_bounded(traced: Spans) -> None:
    with capture_spans(max_value_bytes=10) as spans:

        @trace
        def rows() -> Iterator[list[int]]:
            for _ in range(4):
                yield [1, 2]

        assert len(list(rows())) == 4
    assert spans.outputs("rows") == [[1, 2], [1, 2], "…[cut: 2 more items]"]


def test_exactly_as_many_items_as_are_kept_are_kept(traced: Spans) -> None:
    assert sum(1 for _ in count(10_000)) == 10_000
    assert traced.outputs("count")[-1] == 9999


def test_a_text_that_is_no_unicode_does_not_cost_the_others(traced: Spans) -> None:
    @trace
    def texts() -> Iterator[Any]:
        yield from ["a", "\ud800", 5]

    list(texts())
    assert traced.outputs("texts") == ["a", "?", "…"]


def test_a_reducer_that_raises_is_counted_and_said(traced: Spans) -> None:
    @trace(reduce=lambda items: items[5])
    def tokens() -> Iterator[str]:
        yield "a"

    assert list(tokens()) == ["a"]
    assert traced.outputs("tokens") == "[reduce raised IndexError: list index out of range]"
    assert stats().errors == {"reduce": 1}


def test_without_outputs_items_are_not_kept(traced: Spans) -> None:
    @trace(capture_outputs=False, reduce=list)
    def tokens() -> Iterator[str]:
        yield "a"

    assert list(tokens()) == ["a"]
    assert "output.value" not in (traced.one("tokens").attributes or {})


def test_where_nothing_is_captured_a_stream_is_the_original() -> None:
    with capture_spans(capture="none") as spans:
        assert list(count(2)) == [0, 1]
    assert spans.names() == []


@trace
async def tidy(pause: float) -> AsyncIterator[int]:
    try:
        for i in range(3):
            await asyncio.sleep(0)
            yield i
    finally:
        await asyncio.sleep(pause)


async def taken(stream: AsyncIterator[int], kept: list[object]) -> None:
    """One item of a stream, which is then forgotten, or kept until the loop has ended."""
    kept.append(stream)
    await anext(stream)


@pytest.mark.parametrize("pause", [0, 0.01])
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_loop_that_ends_closes_what_was_left_open_once(
    pause: float, forgotten: bool, traced: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[object] = []

    async def main() -> None:
        await taken(tidy(pause), kept)
        if forgotten:
            kept.clear()

    asyncio.run(main())
    kept.clear()
    gc.collect()
    assert (closed(traced, "tidy"), traced.one("tidy").status.status_code) == (True, StatusCode.UNSET)
    assert caplog.records == []


class Steps:
    """A stream as a client library has it."""

    def __init__(self) -> None:
        self.left = 2

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left


class Source:
    """A stream of a client library that returns another iterator for each loop."""

    def __init__(self) -> None:
        self.status = 200

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))

    def __next__(self) -> int:
        raise AssertionError("the loop uses the other iterator")

    async def __anext__(self) -> int:
        raise AssertionError("the loop uses the other iterator")

    async def __aiter__(self) -> AsyncIterator[int]:
        yield 0
        yield 1


class AsyncSteps(Steps):
    """A stream that is its own iterator."""

    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncSteps:
        return self

    async def __anext__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopAsyncIteration
        return self.left


def test_a_stream_object_that_returns_another_iterator_is_recorded(traced: Spans) -> None:
    @trace
    def work() -> Source:
        return Source()

    assert list(work()) == [0, 1]
    assert asyncio.run(_drained(work())) == [0, 1]
    assert [span.attributes["output.value"] for span in traced.spans] == ["[0,1]"] * 2  # type: ignore[index]


def test_an_async_stream_object_that_is_its_own_iterator_is_recorded_once(traced: Spans) -> None:
    @trace
    def work() -> AsyncSteps:
        return AsyncSteps()

    assert asyncio.run(_drained(work())) == [1, 0]
    assert traced.outputs("work") == [1, 0]


@pytest.mark.parametrize("made", [count, acount, trace(lambda n: map(str, range(n))), trace(lambda n: Steps())])
def test_what_a_caller_holds_of_a_stream_says_which_trace_it_is(traced: Spans, made: Any) -> None:
    handle = made(2)
    told = handle.trace_id
    asyncio.run(_drained(handle)) if made is acount else list(handle)
    [span] = traced.spans
    assert told == f"{span.context.trace_id:032x}"


async def _drained(items: Any) -> list[Any]:
    return [item async for item in items]


def test_a_handle_is_a_generator_in_all_else(traced: Spans) -> None:
    handle = count(3)
    assert isinstance(handle, types.GeneratorType)
    assert isinstance(acount(0), AsyncIterator)
    assert (next(handle), handle.send(None), inspect.getgeneratorstate(handle)) == (0, 1, "GEN_SUSPENDED")
    assert weakref.ref(handle)() is handle
    assert [*iter(handle)] == [2]
    with pytest.raises(TypeError, match="generator"):
        copy.copy(handle)


def test_a_traced_function_that_passes_on_a_traced_generator_follows_it(traced: Spans) -> None:
    @trace
    def outer(n: int) -> Any:
        return count(n)

    assert list(outer(3)) == [0, 1, 2]
    assert traced.outputs("outer") == traced.outputs("count") == [0, 1, 2]


@pytest.mark.parametrize(("taken_items", "status"), [(3, StatusCode.OK), (1, StatusCode.UNSET)])
def test_a_generator_in_a_joined_provider_is_ok_if_it_was_read_to_its_end(taken_items: int, status: StatusCode) -> None:
    memory = InMemorySpanExporter()
    configure(exporters=[memory], provider=TracerProvider())
    stream = count(2)
    assert len(list(itertools.islice(stream, taken_items))) == min(2, taken_items)
    stream.close()
    assert flush(60)
    [finished] = memory.get_finished_spans()
    assert finished.status.status_code == status
