"""Iterators that are no generators: their span lasts as long as they do, and they stay what they are."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import io
import itertools
import pickle
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from opentelemetry.trace import StatusCode

from spanwise.tracer import current_run, internal_errors, span, trace
from spanwise.tracer.testing import Spans


class Chunks:
    """As clients of model providers have them: iterated through an inner iterator, closed, used in a `with`."""

    def __init__(self, chunks: list[Any]) -> None:
        self.response = "headers"
        self._iterator = self._steps(chunks)

    @staticmethod
    def _steps(chunks: list[Any]) -> Iterator[Any]:
        for chunk in chunks:
            with span("inside"):
                pass
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    def __next__(self) -> Any:
        return self._iterator.__next__()

    def __iter__(self) -> Iterator[Any]:
        yield from self._iterator

    def __enter__(self) -> Chunks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._iterator.close()  # type: ignore[attr-defined]


class AChunks:
    """The same, asynchronous."""

    def __init__(self, chunks: list[Any]) -> None:
        self._left = list(chunks)

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._left:
            yield await self.__anext__()


class Counting(Chunks):
    """Iterated through its own `__next__`."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self.__next__()
            except StopIteration:
                return


@trace
def ask(chunks: list[Any], kind: Any = Chunks) -> Any:
    return kind(chunks)


def closed(traced: Spans) -> Any:
    return (traced.one("ask").attributes or {}).get("spanwise.stream.closed")


@pytest.mark.parametrize("kind", [Chunks, Counting, iter, lambda chunks: map(str, chunks)])
def test_the_span_lasts_as_long_as_the_iteration(kind: Any, traced: Spans) -> None:
    stream = ask(["a", "b"], kind)
    first = next(stream)
    assert "ask" not in traced.names()
    assert [first, *stream] == ["a", "b"]
    assert traced.outputs("ask") == ["a", "b"]
    assert closed(traced) is None


def test_what_runs_inside_is_below_it(traced: Spans) -> None:
    with span("around"):
        stream = ask(["a"])
    assert list(stream) == ["a"]
    assert traced.parent("inside") == "ask"


def test_it_stays_the_object_that_it_was(traced: Spans) -> None:
    stream = ask(["a"])
    assert isinstance(stream, Chunks)
    assert (stream.response, type(stream).__name__) == ("headers", "Chunks")
    list(stream)
    assert type(stream) is Chunks
    assert vars(stream).keys() == {"response", "_iterator"}


def test_steps_of_one_s_own_are_noted_once(traced: Spans) -> None:
    assert list(ask([1, 2, 3], Counting)) == [1, 2, 3]
    assert traced.outputs("ask") == [1, 2, 3]


def test_a_failure_is_the_span_s(traced: Spans) -> None:
    with pytest.raises(ValueError, match="cut"):
        list(ask(["a", ValueError("cut")]))
    assert (traced.one("ask").status.status_code, traced.outputs("ask")) == (StatusCode.ERROR, ["a"])


def test_leaving_a_with_closes_it(traced: Spans) -> None:
    with ask(["a", "b"]) as stream:
        next(stream)
    assert (closed(traced), traced.outputs("ask")) == (True, ["a"])


@pytest.mark.process
def test_what_is_forgotten_is_closed(traced: Spans) -> None:
    next(ask(["a", "b"]))
    gc.collect()
    assert closed(traced) is True


def test_an_asynchronous_one_is_followed(traced: Spans) -> None:
    async def main() -> list[Any]:
        stream = ask(["a", "b", "c"], AChunks)
        return [await anext(stream), *[chunk async for chunk in stream]]

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert traced.outputs("ask") == ["a", "b", "c"]


def test_an_async_function_s_iterator_is_followed(traced: Spans) -> None:
    @trace
    async def later() -> Any:
        return AChunks(["a"])

    async def main() -> list[Any]:
        return [chunk async for chunk in await later()]

    assert asyncio.run(main()) == ["a"]
    assert traced.outputs("later") == ["a"]


class Rows:
    """A cursor, or a file: it can be read in other ways."""

    def __next__(self) -> int:
        raise StopIteration

    def fetchone(self) -> None:
        pass


@pytest.mark.parametrize("other", [io.StringIO("text"), Rows(), itertools, range(3)], ids=lambda it: type(it).__name__)
def test_what_is_read_in_other_ways_ends_its_span_at_once(other: Any, traced: Spans) -> None:
    assert trace(name="ask")(lambda: other)() is other
    assert traced.names() == ["ask"]


def test_an_endless_one_costs_no_more_than_it_gives(traced: Spans) -> None:
    stream = trace(name="ask")(lambda: itertools.count())()
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    del stream
    gc.collect()
    assert traced.outputs("ask") == [0, 1, 2]


def test_a_streaming_response_s_span_lasts_until_its_body_has_gone(traced: Spans) -> None:
    responses = pytest.importorskip("starlette.responses")

    async def tokens() -> AsyncIterator[str]:
        for token in ("a", "b"):
            current_run().set_metadata(at=token)
            yield token

    async def main() -> list[Any]:
        response = trace(name="ask")(lambda: responses.StreamingResponse(tokens()))()
        assert traced.names() == []
        return [chunk async for chunk in response.body_iterator]

    assert asyncio.run(main()) == ["a", "b"]
    assert (traced.outputs("ask"), traced.one("ask").attributes["metadata"]) == (["a", "b"], '{"at":"b"}')  # type: ignore[index]


def test_each_of_two_traced_functions_has_what_passes_through_both(traced: Spans) -> None:
    stream = trace(name="outer")(lambda: ask(["a", "b"]))()
    assert list(stream) == ["a", "b"]
    assert type(stream) is Chunks
    assert (traced.outputs("outer"), traced.outputs("ask")) == (["a", "b"], ["a", "b"])


def test_what_makes_up_attributes_is_no_response(traced: Spans) -> None:
    made_up = MagicMock()
    body = made_up.body_iterator
    assert trace(name="ask")(lambda: made_up)().body_iterator is body
    assert traced.names() == ["ask"]


class Awaited:
    async def _answer(self) -> int:
        await asyncio.sleep(0)
        return 7

    @trace
    def __await__(self) -> Any:
        return self._answer().__await__()


async def _awaits() -> Any:
    return await Awaited()


def test_what_awaits_a_coroutine_is_left_as_it_is(traced: Spans) -> None:
    assert asyncio.run(_awaits()) == 7
    assert traced.names() == ["__await__"]


class Registered(Counting):
    names: ClassVar[list[str]] = []

    def __init_subclass__(cls, **options: Any) -> None:
        cls.names.append(cls.__name__)


class One(Registered):
    pass


def test_a_class_that_registers_those_below_it_finds_none_of_ours(traced: Spans) -> None:
    assert list(ask(["a"], One)) == ["a"]
    assert Registered.names == ["One"]


class _Meta(type):
    def __eq__(cls, other: object) -> bool:
        return cls is other


class Unhashable(metaclass=_Meta):
    """A class that no set can hold."""


def test_a_result_whose_class_cannot_be_looked_up_is_returned(traced: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_errors, "strict", False)
    assert type(ask([], lambda _: Unhashable())) is Unhashable
    assert traced.names() == ["ask"]


class Numbers:
    """Without anything that cannot be copied."""

    def __init__(self, most: Any = 4) -> None:
        self.most = 3 if most == [] else 4
        self.now = 0
        self.taking = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "taking"}

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with getattr(self, "taking", contextlib.nullcontext()):
            if self.now == self.most:
                raise StopIteration
            self.now += 1
            return self.now


@pytest.mark.parametrize("copied", [copy.copy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_is_what_the_original_was(copied: Any, traced: Spans) -> None:
    stream = ask([], Numbers)
    next(stream)
    other = copied(stream)
    assert (type(other), list(other)) == (Numbers, [2, 3])
    assert list(stream) == [2, 3]
    assert traced.outputs("ask") == [1, 2, 3]


def test_threads_that_share_one_are_all_noted(traced: Spans) -> None:
    class Many(Numbers):
        def __next__(self) -> int:
            time.sleep(0)
            return super().__next__()

    stream = ask([], Many)
    stream.most = 2_000
    with ThreadPoolExecutor(4) as pool:
        taken = [job.result() for job in [pool.submit(list, stream) for _ in range(4)]]
    assert sorted(itertools.chain(*taken)) == list(range(1, 2_001))
    assert len(traced.outputs("ask")) >= 1_990  # what one takes after another has found the end is not noted
