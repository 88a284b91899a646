"""Tracing of generators, async generators and coroutines: the span stays open until iteration ends.

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
from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.call_recording import (
    TracedCall,
    TraceSpec,
    fail_call,
    finish_call,
    record_outputs,
    set_output_attributes,
)
from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.export.delivery_lifecycle import exit_callbacks
from spanwise.tracer.iterator_tracing import (
    get_streaming_body,
    has_streaming_body,
    is_builtin_iterator,
    is_stream_object,
    observe_iteration,
    set_streaming_body,
)
from spanwise.tracer.otel.live_span import mark_ok
from spanwise.tracer.otel.trace_context import attach, detach, get_current, reset
from spanwise.tracer.run_handle import JSON_MIME

MAX_RECORDED_ITEMS = 10_000  # recorded; the rest is counted
_MAX_PLAIN_TYPES = 1_000  # types that are remembered


_PLAIN_TYPES: set[type] = {
    str,
    int,
    float,
    bool,
    type(None),
    dict,
    list,
    tuple,
    bytes,
}  # whose values are there at once
_open_streams: dict[
    int, weakref.ref[StreamRecorder]
] = {}  # what is open, by id: a `WeakSet` would cost a twentieth of a generator


def _end_open_streams() -> None:
    """What is open when the process ends is ended then: later, when modules go, nothing can be delivered any more."""
    for stream in [reference() for reference in tuple(_open_streams.values())]:
        if stream is not None:
            stream.end(closed=True)


exit_callbacks.append(_end_open_streams)


def wrap_stream(spec: TraceSpec, call: TracedCall, result: Any) -> Any:
    """What takes the place of a generator, another iterator, or a coroutine, and ends the span when it ends; None for
    any other result, whose span is still to be ended.
    """
    kind = type(result)
    if kind is GeneratorType or kind is GeneratorProxy:
        return GeneratorProxy(_wrap_generator(result, StreamRecorder(spec, call)), call.span)
    if kind is AsyncGeneratorType or kind is AsyncGeneratorProxy:
        return AsyncGeneratorProxy(_wrap_async_generator(result, StreamRecorder(spec, call)), call.span)
    if kind is CoroutineType:
        return _wrap_coroutine(result, StreamRecorder(spec, call))
    try:
        return None if kind in _PLAIN_TYPES else _wrap_iterable(spec, call, result)
    except Exception as error:  # somebody's object, looked at
        internal_errors.record_error("stream", error)
        return None


def _wrap_iterable(spec: TraceSpec, call: TracedCall, result: Any) -> Any:
    if is_builtin_iterator(result):
        return GeneratorProxy(_iterate_sync(result, StreamRecorder(spec, call)), call.span)
    if is_stream_object(result):
        return observe_iteration(result, StreamRecorder(spec, call))
    if has_streaming_body(result):
        set_streaming_body(result, _iterate_body(get_streaming_body(result), StreamRecorder(spec, call)))
        return result
    if len(_PLAIN_TYPES) < _MAX_PLAIN_TYPES and get_streaming_body(result) is None:
        _PLAIN_TYPES.add(type(result))
    return None


def _iterate_sync(inner: Any, stream: StreamRecorder) -> Generator[Any, None, Any]:
    while True:
        try:
            item = stream.step(inner.__next__)
        except StopIteration as stop:
            return stop.value
        yield item


async def _iterate_body(inner: Any, stream: StreamRecorder) -> AsyncIterator[Any]:
    while True:
        try:
            item = await stream.astep(inner.__anext__)
        except StopAsyncIteration:
            return
        yield item


class StreamRecorder:
    """The open span of an iteration, and what it has yielded so far."""

    def __init__(self, spec: TraceSpec, call: TracedCall) -> None:
        self._spec, self._call = spec, call
        self.inside = call.inside  # its context; what the generator does to it between two steps is kept
        self._records = spec.outputs and call.runtime.content
        self.items: list[Any] = []
        self.room = call.runtime.limit if self._records else 0
        self._missing = 0
        self._open = True
        self._inside: set[int] = set()  # threads
        _open_streams[id(self)] = weakref.ref(self)

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return f"{self._call.span.get_span_context().trace_id:032x}"

    def record(self, item: object) -> None:
        """Note what was yielded, as it is now."""
        if self.room <= 0 or len(self.items) >= MAX_RECORDED_ITEMS:
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
            internal_errors.record_error("stream", error)

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
        _open_streams.pop(id(self), None)
        return was_open

    @internal_errors.error_boundary("stream")
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

    @internal_errors.error_boundary("stream")
    def fail(self, error: BaseException) -> None:
        """End the span as failed, with what was yielded until then."""
        if self._closes():
            try:
                self._set_outputs()
            finally:
                fail_call(self._call, error)

    def finish(self, value: object) -> None:
        """End the span with what a coroutine returned as its outputs."""
        if self._closes():
            finish_call(self._spec, self._call, value)

    def _set_outputs(self) -> None:
        known = getattr(self._call.span, "_attributes", None) or ()
        if self._records and self._spec.reduce is not None:
            self._reduced(self._spec.reduce)
        elif self._records and names.OUTPUT_VALUE not in known:
            set_output_attributes(self._call, self._listed(), JSON_MIME)

    def _reduced(self, reduce: Any) -> None:
        try:
            value = reduce(self.items)
        except Exception as error:
            internal_errors.record_user_error("reduce", error)
            value = f"[reduce raised {internal_errors.describe_error(error)}]"
        record_outputs(self._spec, self._call, value)

    def _listed(self) -> str:
        missing = self._missing
        items = [*self.items, f"…[cut: {missing:,} more items]"] if missing else self.items
        try:
            return orjson.dumps(items).decode()
        except TypeError:  # a text with lone surrogates
            return to_json([item if type(item) is str else "…" for item in items], self._call.runtime.limit)

    def __del__(self) -> None:
        self.end(closed=True)


def _wrap_generator(inner: Generator[Any, Any, Any], stream: StreamRecorder) -> Generator[Any, Any, Any]:
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
            if type(item) is str and room > 0 and seen < MAX_RECORDED_ITEMS:
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
                if (returned := _close_generator(inner, stream, inside)) is None:
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


def _close_generator(inner: Any, stream: StreamRecorder, inside: Context) -> Any:
    """Close a generator; gives what it returned, as `close()` does since Python 3.13."""
    token = attach(inside)
    try:
        returned = inner.close()
    finally:
        detach(token)
    stream.end(closed=True)
    return returned


async def _wrap_async_generator(inner: AsyncGenerator[Any, Any], stream: StreamRecorder) -> AsyncGenerator[Any, Any]:
    step, thrown = _start_unregistered(inner), None
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
                await _close_async_generator(inner, stream)
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


def _start_unregistered(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    """The first step of an async generator of which the event loop is not told: it knows the one around it, and where
    it ends with both still open it would close them at the same time.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)


async def _close_async_generator(inner: AsyncGenerator[Any, Any], stream: StreamRecorder) -> None:
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


async def _wrap_coroutine(inner: Coroutine[Any, Any, Any], stream: StreamRecorder) -> Any:
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


class _BaseGeneratorProxy:
    """All but the ids is the generator's own. Iterating gives the generator itself, so that steps cost no more."""

    __slots__ = ("__weakref__", "_inner", "_span")

    def __init__(self, inner: Any, span: otel.Span) -> None:
        self._inner, self._span = inner, span

    @property
    def trace_id(self) -> str:
        """32 hex digits, for feedback that comes later."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def span_id(self) -> str:
        """16 hex digits."""
        return f"{self._span.get_span_context().span_id:016x}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)


class GeneratorProxy(_BaseGeneratorProxy):
    """Of a generator. `isinstance(…, GeneratorType)` holds: frameworks decide by it what to do with a result."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return GeneratorType

    def __iter__(self) -> Generator[Any, Any, Any]:
        return self._inner  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        return self._inner.__next__()


class AsyncGeneratorProxy(_BaseGeneratorProxy):
    """Of an async generator, in the same way."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return AsyncGeneratorType

    def __aiter__(self) -> AsyncGenerator[Any, Any]:
        return self._inner  # type: ignore[no-any-return]

    def __anext__(self) -> Any:
        return self._inner.__anext__()
