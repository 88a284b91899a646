"""Generators, async generators and coroutines whose span stays open until they end.

The span starts with the call and ends with the iteration: exhausted, closed early, failed, or abandoned to the garbage
collector. It is current only while the generator's own code runs. `send`, `throw`, `close` and their async forms reach
the generator as if it had not been wrapped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import orjson

from assay.tracer import _attributes as names
from assay.tracer import _context, _errors
from assay.tracer._call import Call, Spec, fail, finish, outputs, put_outputs
from assay.tracer._json import to_json
from assay.tracer._run import JSON_MIME

MAX_ITEMS = 10_000  # recorded; the rest is counted
DEFERRED = (GeneratorType, AsyncGeneratorType, CoroutineType)


def follow(spec: Spec, call: Call, result: Any) -> Any:
    """A stand-in for a generator, async generator or coroutine that ends the span when the original ends."""
    stream = Stream(spec, call)
    if type(result) is GeneratorType:
        return _generator(result, stream)
    return _async_generator(result, stream) if type(result) is AsyncGeneratorType else _coroutine(result, stream)


class Stream:
    """The open span of an iteration, and what it has yielded so far."""

    def __init__(self, spec: Spec, call: Call) -> None:
        self._spec, self._call = spec, call
        self._inside = call.inside
        self._records = spec.outputs and call.runtime.content
        self._items: list[Any] = []
        self._room = call.runtime.limit
        self._seen = 0
        self._open = True

    def enter(self) -> tuple[Any, Any]:
        """Make the span current for one step; what the generator did to its context before is kept."""
        previous = _context.get_current()
        return _context.attach(self._inside), previous

    def leave(self, step: tuple[Any, Any]) -> None:
        """The step is over: the consumer's context is current again."""
        self._inside = _context.get_current()
        _context.detach(*step)

    def record(self, item: object) -> None:
        """Note what was yielded, as it is now."""
        self._seen += 1
        if self._records and self._room > 0 and len(self._items) < MAX_ITEMS:
            try:
                self._items.append(self._snapshot(item))
            except Exception as error:
                _errors.note("stream", error)

    def _snapshot(self, item: object) -> Any:
        if type(item) is str:
            self._room -= len(item)
            return item
        if self._spec.reduce is not None:
            return item
        text = to_json(item, self._room)
        self._room -= len(text)
        return orjson.Fragment(text)

    def end(self, closed: bool = False) -> None:
        """The iteration is over; `closed` says that the consumer stopped before the generator did."""
        if self._open:
            self._open = False
            try:
                self._outputs()
                if closed:
                    self._call.span.set_attribute(names.STREAM_CLOSED, True)
                self._call.span.end()
            except Exception as error:
                _errors.note("stream", error)

    def fail(self, error: BaseException) -> None:
        """The generator raised."""
        if self._open:
            self._open = False
            try:
                self._outputs()
                fail(self._call, error)
            except Exception as ours:
                _errors.note("stream", ours)

    def result(self, value: object) -> None:
        """A coroutine returned."""
        if self._open:
            self._open = False
            try:
                finish(self._spec, self._call, value)
            except Exception as error:
                _errors.note("stream", error)

    def _outputs(self) -> None:
        known = getattr(self._call.span, "attributes", None) or {}
        if self._records and self._spec.reduce is not None:
            self._reduced(self._spec.reduce)
        elif self._records and names.OUTPUT_VALUE not in known:
            put_outputs(self._call, self._listed(), JSON_MIME)

    def _reduced(self, reduce: Any) -> None:
        try:
            value = reduce(self._items)
        except Exception as error:
            _errors.user("reduce", error)
            value = f"[reduce raised {_errors.describe(error)}]"
        outputs(self._spec, self._call, value)

    def _listed(self) -> str:
        missing = self._seen - len(self._items)
        items = [*self._items, f"…[cut: {missing:,} more items]"] if missing else self._items
        try:
            return orjson.dumps(items).decode()
        except TypeError:  # a text with lone surrogates
            return to_json([i if type(i) is str else "…" for i in items], self._call.runtime.limit)

    def __del__(self) -> None:
        self.end(closed=True)


def _generator(inner: Generator[Any, Any, Any], stream: Stream) -> Generator[Any, Any, Any]:
    try:
        item = _step(stream, inner.send, None)
        while True:
            stream.record(item)
            try:
                sent = yield item
            except GeneratorExit:
                _step(stream, lambda _: inner.close(), None)
                stream.end(closed=True)
                raise
            except BaseException as error:
                item = _step(stream, inner.throw, error)
            else:
                item = _step(stream, inner.send, sent)
    except _Finished as finished:
        stream.end()
        return finished.value
    except GeneratorExit:
        raise
    except BaseException as error:
        stream.fail(error)
        raise


class _Finished(BaseException):
    """The inner generator has returned; its StopIteration must not be confused with one that the consumer throws."""

    def __init__(self, value: object) -> None:
        self.value = value


def _step(stream: Stream, action: Any, value: Any) -> Any:
    step = stream.enter()
    try:
        return action(value)
    except StopIteration as stop:
        raise _Finished(stop.value) from None
    finally:
        stream.leave(step)


async def _async_generator(inner: AsyncGenerator[Any, Any], stream: Stream) -> AsyncGenerator[Any, Any]:
    try:
        item = await _async_step(stream, inner.asend(None))
        while True:
            stream.record(item)
            try:
                sent = yield item
            except GeneratorExit:
                await _async_step(stream, inner.aclose())
                stream.end(closed=True)
                raise
            except BaseException as error:
                item = await _async_step(stream, inner.athrow(error))
            else:
                item = await _async_step(stream, inner.asend(sent))
    except _Finished:
        stream.end()
    except GeneratorExit:
        raise
    except BaseException as error:
        stream.fail(error)
        raise


async def _async_step(stream: Stream, awaitable: Any) -> Any:
    step = stream.enter()
    try:
        return await awaitable
    except StopAsyncIteration:
        raise _Finished(None) from None
    finally:
        stream.leave(step)


async def _coroutine(inner: Coroutine[Any, Any, Any], stream: Stream) -> Any:
    step = stream.enter()
    try:
        value = await inner
    except BaseException as error:
        stream.leave(step)
        stream.fail(error)
        raise
    stream.leave(step)
    stream.result(value)
    return value
