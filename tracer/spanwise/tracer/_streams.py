"""Generators, async generators and coroutines whose span stays open until they end.

The span starts with the call and ends with the iteration: exhausted, closed early, failed, or abandoned to the garbage
collector. It is current only while the generator's own code runs. `send`, `throw`, `close` and their async forms reach
the generator as if it had not been wrapped.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from itertools import count
from threading import get_ident
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import orjson
from opentelemetry.context.context import Context

from spanwise.tracer import _errors
from spanwise.tracer import attributes as names
from spanwise.tracer._call import Call, Spec, fail, finish, put_outputs, set_outputs
from spanwise.tracer._context import attach, detach, get_current, reset
from spanwise.tracer._delivery import before_exit
from spanwise.tracer._handle import AsyncGeneratorHandle, GeneratorHandle
from spanwise.tracer._iterators import body_of, followed, has_body, is_built_in, is_stream, set_body
from spanwise.tracer._json import to_json
from spanwise.tracer._run import JSON_MIME
from spanwise.tracer._span import mark_ok

MAX_ITEMS = 10_000  # recorded; the rest is counted
_MOST_KINDS = 1_000  # types that are remembered


_SETTLED: set[type] = {str, int, float, bool, type(None), dict, list, tuple, bytes}  # whose values are there at once
_live: dict[int, weakref.ref[Stream]] = {}  # what is open, by id: a `WeakSet` would cost a twentieth of a generator


def _finish() -> None:
    """What is open when the process ends is ended then: later, when modules go, nothing can be delivered any more."""
    for stream in [reference() for reference in tuple(_live.values())]:
        if stream is not None:
            stream.end(closed=True)


before_exit.append(_finish)


def follow(spec: Spec, call: Call, result: Any) -> Any:
    """What takes the place of a generator, another iterator, or a coroutine, and ends the span when it ends; None for
    any other result, whose span is still to be ended.
    """
    kind = type(result)
    if kind is GeneratorType or kind is GeneratorHandle:
        return GeneratorHandle(_generator(result, Stream(spec, call)), call.span)
    if kind is AsyncGeneratorType or kind is AsyncGeneratorHandle:
        return AsyncGeneratorHandle(_async_generator(result, Stream(spec, call)), call.span)
    if kind is CoroutineType:
        return _coroutine(result, Stream(spec, call))
    try:
        return None if kind in _SETTLED else _iterated(spec, call, result)
    except Exception as error:  # somebody's object, looked at
        _errors.note("stream", error)
        return None


def _iterated(spec: Spec, call: Call, result: Any) -> Any:
    if is_built_in(result):
        return GeneratorHandle(_items(result, Stream(spec, call)), call.span)
    if is_stream(result):
        return followed(result, Stream(spec, call))
    if has_body(result):
        set_body(result, _body(body_of(result), Stream(spec, call)))
        return result
    if len(_SETTLED) < _MOST_KINDS and body_of(result) is None:
        _SETTLED.add(type(result))
    return None


def _items(inner: Any, stream: Stream) -> Generator[Any, None, Any]:
    while True:
        try:
            item = stream.step(inner.__next__)
        except StopIteration as stop:
            return stop.value
        yield item


async def _body(inner: Any, stream: Stream) -> AsyncIterator[Any]:
    while True:
        try:
            item = await stream.astep(inner.__anext__)
        except StopAsyncIteration:
            return
        yield item


class Stream:
    """The open span of an iteration, and what it has yielded so far."""

    def __init__(self, spec: Spec, call: Call) -> None:
        self._spec, self._call = spec, call
        self.inside = call.inside  # its context; what the generator does to it between two steps is kept
        self._records = spec.outputs and call.runtime.content
        self.items: list[Any] = []
        self.room = call.runtime.limit if self._records else 0
        self._missing = 0
        self._open = True
        self._inside: set[int] = set()  # threads
        _live[id(self)] = weakref.ref(self)

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return f"{self._call.span.get_span_context().trace_id:032x}"

    def record(self, item: object) -> None:
        """Note what was yielded, as it is now."""
        if self.room <= 0 or len(self.items) >= MAX_ITEMS:
            self._missing += 1
            return
        if type(item) is str:
            self.room -= len(item)
            self.items.append(item)
            return
        try:  # not `ours`: it would add a tenth to the cost of an item
            self.items.append(self._snapshot(item))
        except Exception as error:
            self._missing += 1
            _errors.note("stream", error)

    def _snapshot(self, item: object) -> Any:
        if self._spec.reduce is not None:
            return item
        text = to_json(item, self.room)
        self.room -= len(text)
        return orjson.Fragment(text)

    def step(self, take: Callable[[], Any]) -> Any:
        """Take an item in the stream's context, and note it; the end and a failure of the iteration end the span."""
        here = get_ident()
        if here in self._inside:  # an iterator that steps itself
            return take()
        token = attach(self.inside)
        self._inside.add(here)
        try:
            item = take()
        except BaseException as error:
            self._ended_by(error)
            raise
        finally:
            self.inside = get_current()
            self._inside.discard(here)
            detach(token)
        self.record(item)
        return item

    async def astep(self, take: Callable[[], Any]) -> Any:
        """As `step`, of an item that is awaited."""
        here = get_ident()
        if here in self._inside:
            return await take()
        token = attach(self.inside)
        self._inside.add(here)
        try:
            item = await take()
        except BaseException as error:
            self._ended_by(error)
            raise
        finally:
            self.inside = get_current()
            self._inside.discard(here)
            detach(token)
        self.record(item)
        return item

    def _ended_by(self, error: BaseException) -> None:
        if isinstance(error, StopIteration | StopAsyncIteration):
            self.end()
        else:
            self.fail(error)

    def _closes(self) -> bool:
        """Whether it was open until now."""
        was_open, self._open = self._open, False
        _live.pop(id(self), None)
        return was_open

    @_errors.ours("stream")
    def end(self, closed: bool = False) -> None:
        """End the span with what was yielded; `closed` notes that the consumer stopped before the generator did."""
        if self._closes():
            try:
                if closed:
                    self._call.span.set_attribute(names.STREAM_CLOSED, True)
                    self._call.span.set_attribute(names.CANCELLED, True)
                elif self._call.runtime.joined is not None:
                    mark_ok(self._call.span)
                self._set_outputs()
            finally:
                self._call.span.end()

    @_errors.ours("stream")
    def fail(self, error: BaseException) -> None:
        """End the span as failed, with what was yielded until then."""
        if self._closes():
            try:
                self._set_outputs()
            finally:
                fail(self._call, error)

    def finish(self, value: object) -> None:
        """End the span with what a coroutine returned as its outputs."""
        if self._closes():
            finish(self._spec, self._call, value)

    def _set_outputs(self) -> None:
        known = getattr(self._call.span, "_attributes", None) or ()
        if self._records and self._spec.reduce is not None:
            self._reduced(self._spec.reduce)
        elif self._records and names.OUTPUT_VALUE not in known:
            put_outputs(self._call, self._listed(), JSON_MIME)

    def _reduced(self, reduce: Any) -> None:
        try:
            value = reduce(self.items)
        except Exception as error:
            _errors.user("reduce", error)
            value = f"[reduce raised {_errors.describe(error)}]"
        set_outputs(self._spec, self._call, value)

    def _listed(self) -> str:
        missing = self._missing
        items = [*self.items, f"…[cut: {missing:,} more items]"] if missing else self.items
        try:
            return orjson.dumps(items).decode()
        except TypeError:  # a text with lone surrogates
            return to_json([item if type(item) is str else "…" for item in items], self._call.runtime.limit)

    def __del__(self) -> None:
        self.end(closed=True)


def _generator(inner: Generator[Any, Any, Any], stream: Stream) -> Generator[Any, Any, Any]:
    # Every item passes here: what `detach` and `record` do for nearly all of them is written out.
    send, items, inside, room = inner.send, stream.items, stream.inside, stream.room
    action, argument = send, None
    try:
        for seen in count():
            token = attach(inside)
            try:
                item = action(argument)
            finally:
                inside = get_current()
                try:
                    reset(token)
                except ValueError:
                    detach(token)
            if type(item) is str and room > 0 and seen < MAX_ITEMS:
                items.append(item)
                room -= len(item)
            else:
                stream.room = room
                stream.record(item)
                room = stream.room
            try:
                argument = yield item
                action = send
            except GeneratorExit:
                if (returned := _close(inner, stream, inside)) is None:
                    raise  # also thrown, by a `contextmanager` in a generator that is closed: swallowed, it would go on
                return returned
            except BaseException as error:
                action, argument = inner.throw, error
    except StopIteration as stop:  # of the inner generator: what the consumer throws is caught above
        stream.end()
        return stop.value
    except GeneratorExit:
        raise
    except BaseException as error:
        stream.fail(error)
        raise


def _close(inner: Any, stream: Stream, inside: Context) -> Any:
    """Close a generator; gives what it returned, as `close()` does since Python 3.13."""
    token = attach(inside)
    try:
        returned = inner.close()
    finally:
        detach(token)
    stream.end(closed=True)
    return returned


async def _async_generator(inner: AsyncGenerator[Any, Any], stream: Stream) -> AsyncGenerator[Any, Any]:
    step, thrown = _unregistered(inner), None
    try:
        while True:
            token = attach(stream.inside)
            try:
                item = await step
            finally:
                stream.inside = get_current()
                detach(token)
            stream.record(item)
            try:
                step = inner.asend((yield item))
            except GeneratorExit:
                await _aclose(inner, stream)
                raise
            except BaseException as error:
                step, thrown = inner.athrow(error), error
    except StopAsyncIteration:
        stream.end()
    except GeneratorExit:
        raise
    except BaseException as error:
        if error is thrown and not isinstance(error, Exception):  # a loop that ends cancels what was to close it
            stream.end(closed=True)
        stream.fail(error)
        raise


def _unregistered(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    """The first step of an async generator of which the event loop is not told: it knows the one around it, and where
    it ends with both still open it would close them at the same time.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)


async def _aclose(inner: AsyncGenerator[Any, Any], stream: Stream) -> None:
    token = attach(stream.inside)
    try:
        await inner.aclose()
    except Exception:
        raise  # of its own clean-up: it has failed
    except BaseException:  # the closing was cancelled, as at the end of `asyncio.run`
        stream.end(closed=True)
        raise
    finally:
        detach(token)
    stream.end(closed=True)


async def _coroutine(inner: Coroutine[Any, Any, Any], stream: Stream) -> Any:
    token = attach(stream.inside)
    try:
        value = await inner
    except BaseException as error:
        detach(token)
        stream.fail(error)
        raise
    detach(token)
    stream.finish(value)
    return value
