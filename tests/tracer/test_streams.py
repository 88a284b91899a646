"""Generators and async generators: every way in which they can end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from assay.tracer import current_run, span, trace
from assay.tracer.testing import Spans


@trace
def count(n: int) -> Iterator[int]:
    yield from range(n)


@trace
async def acount(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield i


def closed(traced: Spans, name: str) -> Any:
    return (traced.one(name).attributes or {}).get("assay.stream.closed")


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
        found = [await anext(stream), await stream.asend(5), await stream.athrow(ValueError("thrown"))]
        await stream.aclose()
        return found

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
    assert "CancelledError" in str(traced.one("slow").status.description)


def test_frameworks_still_see_generator_functions(traced: Spans) -> None:
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(acount)
    assert inspect.isgenerator(count(0))
    assert inspect.isasyncgen(acount(0))
    assert str(inspect.signature(count)) == "(n: 'int') -> 'Iterator[int]'"
