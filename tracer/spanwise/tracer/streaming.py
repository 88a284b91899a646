"""Tracing of streamed results: generators, coroutines, other iterators and streaming responses.

The span starts with the call. It ends when the iteration is exhausted, closed early or fails, or when the iterator is
garbage-collected. The span is current only while the iterator's own code runs.

- Generators, async generators and coroutines are wrapped. `send`, `throw`, `close` and their async forms reach the
  generator unchanged.
- Iterators that are built into Python (`map`, `zip`, those of itertools) are wrapped in a generator.
- Other iterators, such as OpenAI's `Stream`, keep their identity. Until one is exhausted or closed, its `__class__` is
  a generated subclass that reports its items.
- The body of a streaming response, such as Starlette's, is wrapped.

Some objects are left alone: files, cursors and other objects that can also be read in other ways; objects without a
`__dict__`; and instances of classes that run code when a subclass is created.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from itertools import count
from threading import get_ident
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any, TypeAlias

import orjson
from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.export.delivery_lifecycle import exit_callbacks
from spanwise.tracer.otel.live_span import mark_ok
from spanwise.tracer.otel.trace_context import attach, detach, get_current, reset
from spanwise.tracer.run_recording import (
    JSON_MIME,
    TracedCall,
    TraceSpec,
    fail_call,
    finish_call,
    record_outputs,
    set_output_attributes,
)

MAX_RECORDED_ITEMS = 10_000  # maximum number of items that are recorded; later items are only counted
_MAX_PLAIN_TYPES = 1_000  # maximum number of entries of `_PLAIN_TYPES`
# types whose instances are not streams
_PLAIN_TYPES: set[type] = {str, int, float, bool, type(None), dict, list, tuple, bytes}
_OBSERVER = "__spanwise_stream__"
_BUILTIN_MODULES = ("builtins", "itertools")
_RANDOM_ACCESS_METHODS = ("read", "readline", "fetchone", "fetchall", "__getitem__", "__len__", "__await__")
_COROUTINE_METHODS = ("__await__", "send")  # methods of coroutines and generators, which also accept values
_BODY_ATTRIBUTE = "body_iterator"  # attribute of Starlette's streaming responses

# by `id()`; with a `WeakSet`, a generator would take 5 % more time
_open_streams: dict[int, weakref.ref[StreamRecorder]] = {}


def _end_open_streams() -> None:
    """End the open streams before the process exits. Later, when Python unloads modules, nothing can be delivered."""
    for stream in [reference() for reference in tuple(_open_streams.values())]:
        if stream is not None:
            stream.end(closed=True)


exit_callbacks.append(_end_open_streams)


def wrap_stream(spec: TraceSpec, call: TracedCall, result: Any) -> Any:
    """Return a wrapper for a generator, another iterator or a coroutine. The wrapper ends the span when the iteration
    ends.

    For any other result, return None; the caller then ends the span.
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
    except Exception as error:  # the inspected object of the application may raise
        internal_errors.record_error("stream", error)
        return None


def _wrap_iterable(spec: TraceSpec, call: TracedCall, result: Any) -> Any:
    kind = type(result)
    if (
        kind.__module__ in _BUILTIN_MODULES
        and hasattr(kind, "__next__")
        and not any(hasattr(kind, name) for name in _COROUTINE_METHODS)
    ):
        return GeneratorProxy(_iterate(result, StreamRecorder(spec, call).step), call.span)
    if _is_stream_object(result):
        return _observe_iteration(result, StreamRecorder(spec, call))
    # only `__dict__` is read, because attribute access may run code
    body = getattr(result, "__dict__", {}).get(_BODY_ATTRIBUTE)
    if hasattr(body, "__anext__"):
        setattr(result, _BODY_ATTRIBUTE, _iterate_async(body, StreamRecorder(spec, call).astep))
        return result
    if len(_PLAIN_TYPES) < _MAX_PLAIN_TYPES and body is None:
        _PLAIN_TYPES.add(kind)
    return None


def _iterate(inner: Any, step: Callable[[Callable[[], Any]], Any]) -> Generator[Any, None, Any]:
    """Iterate over `inner`. `step` takes each item and records it."""
    while True:
        try:
            item = step(inner.__next__)
        except StopIteration as stop:
            return stop.value
        yield item


async def _iterate_async(inner: Any, step: Callable[[Callable[[], Any]], Awaitable[Any]]) -> AsyncIterator[Any]:
    while True:
        try:
            item = await step(inner.__anext__)
        except StopAsyncIteration:
            return
        yield item


class StreamRecorder:
    """Recorder of an iteration: its open span and the items yielded so far."""

    def __init__(self, spec: TraceSpec, call: TracedCall) -> None:
        self._spec, self._call = spec, call
        self.inside = call.inside  # context of the iteration, including changes that the generator makes between steps
        self._records_outputs = spec.outputs and call.runtime.content
        self.items: list[Any] = []
        self.remaining_bytes = call.runtime.limit if self._records_outputs else 0
        self._omitted = 0
        self._open = True
        self._active_threads: set[int] = set()  # ids of threads that are inside `step`
        _open_streams[id(self)] = weakref.ref(self)

    @property
    def trace_id(self) -> str:
        """Return the trace id as 32 hex digits."""
        return f"{self._call.span.get_span_context().trace_id:032x}"

    def record(self, item: object) -> None:
        """Record a yielded item.

        Without `reduce`, the item is serialized immediately, so that later changes to the item have no effect.
        """
        if self.remaining_bytes <= 0 or len(self.items) >= MAX_RECORDED_ITEMS:
            self._omitted += 1
            return
        if type(item) is str:
            self.remaining_bytes -= len(item)
            self.items.append(item)
            return
        try:  # not `error_boundary`, which would add a tenth to the cost of an item
            if self._spec.reduce is None:
                text = to_json(item, self.remaining_bytes)
                self.remaining_bytes -= len(text)
                item = orjson.Fragment(text)
            self.items.append(item)
        except Exception as error:
            self._omitted += 1
            internal_errors.record_error("stream", error)

    def step(self, take: Callable[[], Any]) -> Any:
        """Take an item in the stream's context and record it. If the iteration ends or fails, end the span."""
        # runs for every item: a context manager shared with `astep` would add half of the time
        thread_id = get_ident()
        if thread_id in self._active_threads:  # re-entrant call: the iterator advances itself
            return take()
        token = attach(self.inside)
        self._active_threads.add(thread_id)
        try:
            item = take()
        except BaseException as error:
            self._end_with(error)
            raise
        finally:
            self.inside = get_current()
            self._active_threads.discard(thread_id)
            detach(token)
        self.record(item)
        return item

    async def astep(self, take: Callable[[], Any]) -> Any:
        """Await an item in the stream's context and record it. If the iteration ends or fails, end the span."""
        thread_id = get_ident()
        if thread_id in self._active_threads:
            return await take()
        token = attach(self.inside)
        self._active_threads.add(thread_id)
        try:
            item = await take()
        except BaseException as error:
            self._end_with(error)
            raise
        finally:
            self.inside = get_current()
            self._active_threads.discard(thread_id)
            detach(token)
        self.record(item)
        return item

    def _end_with(self, error: BaseException) -> None:
        if isinstance(error, StopIteration | StopAsyncIteration):
            self.end()
        else:
            self.fail(error)

    def _mark_closed(self) -> bool:
        """Mark the stream as closed. Return False if it was closed before."""
        was_open, self._open = self._open, False
        _open_streams.pop(id(self), None)
        return was_open

    @internal_errors.error_boundary("stream")
    def end(self, closed: bool = False) -> None:
        """End the span with the yielded items as outputs.

        `closed` records that the consumer stopped before the generator ended.
        """
        if self._mark_closed():
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
        """End the span as failed, with the items yielded so far as outputs."""
        if self._mark_closed():
            try:
                self._set_outputs()
            finally:
                fail_call(self._call, error)

    def finish(self, value: object) -> None:
        """End the span with the return value of a coroutine as outputs."""
        if self._mark_closed():
            finish_call(self._spec, self._call, value)

    def _set_outputs(self) -> None:
        known = getattr(self._call.span, "_attributes", None) or ()
        if self._records_outputs and self._spec.reduce is not None:
            reduce: Any = self._spec.reduce
            try:
                value = reduce(self.items)
            except Exception as error:
                internal_errors.record_user_error("reduce", error)
                value = f"[reduce raised {internal_errors.describe_error(error)}]"
            record_outputs(self._spec, self._call, value)
        elif self._records_outputs and names.OUTPUT_VALUE not in known:
            omitted = self._omitted
            items = [*self.items, f"…[cut: {omitted:,} more items]"] if omitted else self.items
            try:
                text = orjson.dumps(items).decode()
            except TypeError:  # an item contains lone surrogates
                text = to_json([item if type(item) is str else "…" for item in items], self._call.runtime.limit)
            set_output_attributes(self._call, text, JSON_MIME)

    def __del__(self) -> None:
        self.end(closed=True)


def _wrap_generator(inner: Generator[Any, Any, Any], stream: StreamRecorder) -> Generator[Any, Any, Any]:
    # This loop runs for every item. Therefore the usual case of `detach` and `record` is inlined.
    send, items, inside, remaining = inner.send, stream.items, stream.inside, stream.remaining_bytes
    action, argument = send, None
    try:
        for index in count():
            token = attach(inside)
            try:
                item = action(argument)
            finally:
                inside = get_current()
                try:
                    reset(token)
                except ValueError:
                    detach(token)
            if type(item) is str and remaining > 0 and index < MAX_RECORDED_ITEMS:
                items.append(item)
                remaining -= len(item)
            else:
                stream.remaining_bytes = remaining
                stream.record(item)
                remaining = stream.remaining_bytes
            try:
                argument = yield item
                action = send
            except GeneratorExit:
                if (returned := _close_generator(inner, stream, inside)) is None:
                    # Raise it again: `contextmanager` throws GeneratorExit when the code around it is closed, and
                    # without the exception that code would continue
                    raise
                return returned
            except BaseException as error:
                action, argument = inner.throw, error
    except StopIteration as stop:  # raised by the inner generator; exceptions thrown by the consumer are caught above
        stream.end()
        return stop.value
    except GeneratorExit:
        raise
    except BaseException as error:
        stream.fail(error)
        raise


def _close_generator(inner: Any, stream: StreamRecorder, inside: Context) -> Any:
    """Close a generator and return its return value, as `close()` does since Python 3.13."""
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
        # When an event loop ends, it cancels the task that would close the generator
        if error is thrown and not isinstance(error, Exception):
            stream.end(closed=True)
        stream.fail(error)
        raise


def _start_unregistered(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    """Return the first step of an async generator without registering the generator with the event loop.

    The event loop knows only the outer generator, which closes the inner one. If it knew both, it would close both at
    the same time when it ends.
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
        raise  # the generator's own cleanup code failed
    except BaseException:  # closing was cancelled, for example at the end of `asyncio.run`
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
    """Proxy that adds the trace id and span id to a generator.

    The method `__iter__` returns the generator itself, so that a loop over it costs no extra time.
    """

    __slots__ = ("__weakref__", "_inner", "_span")

    def __init__(self, inner: Any, span: otel.Span) -> None:
        self._inner, self._span = inner, span

    @property
    def trace_id(self) -> str:
        """Return the trace id as 32 hex digits, for feedback that arrives later."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def span_id(self) -> str:
        """Return the span id as 16 hex digits."""
        return f"{self._span.get_span_context().span_id:016x}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)


class GeneratorProxy(_BaseGeneratorProxy):
    """Proxy of a generator.

    `isinstance(…, GeneratorType)` is true, because frameworks use it to decide how to handle a result.
    """

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return GeneratorType

    def __iter__(self) -> Generator[Any, Any, Any]:
        return self._inner  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        return self._inner.__next__()


class AsyncGeneratorProxy(_BaseGeneratorProxy):
    """Proxy of an async generator. `isinstance(…, AsyncGeneratorType)` is true."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return AsyncGeneratorType

    def __aiter__(self) -> AsyncGenerator[Any, Any]:
        return self._inner  # type: ignore[no-any-return]

    def __anext__(self) -> Any:
        return self._inner.__anext__()


def _is_stream_object(value: Any) -> bool:
    """Return whether a value is an iterator that can be observed, or is observed already.

    Its class is written in Python, has no other methods for reading, and runs no code when a subclass is created.
    """
    kind = type(value)
    steps = hasattr(kind, "__next__") or hasattr(kind, "__anext__")
    written = isinstance(getattr(kind, "__next__", None) or getattr(kind, "__anext__", None), FunctionType)
    if not (steps and written and hasattr(value, "__dict__")) or any(hasattr(kind, n) for n in _RANDOM_ACCESS_METHODS):
        return False
    return _OBSERVER in value.__dict__ or _allows_silent_subclass(kind)


def _allows_silent_subclass(kind: Any) -> bool:
    """Return whether creating a subclass runs no code of the class.

    A class that registers its subclasses would register the generated one.
    """
    own = getattr(kind.__init_subclass__, "__func__", None)
    return type(kind).__module__ in ("builtins", "abc", "typing") and (own is None or own.__module__ == "typing")


def _observe_iteration(value: Any, stream: _Observer) -> Any:
    """Make an iterator report its items to `stream`, and return it. An existing observer is kept."""
    known = value.__dict__.get(_OBSERVER)
    if known is None:
        kind: Any = type(value)
        object.__setattr__(value, "__class__", _make_observed_class(kind))
    value.__dict__[_OBSERVER] = stream if known is None else _ObserverPair(known, stream)
    return value


_Observer: TypeAlias = "StreamRecorder | _ObserverPair"


class _ObserverPair:
    """Pair of observers, for the stream of a traced function that another traced function returns."""

    def __init__(self, inner: _Observer, outer: _Observer) -> None:
        self._inner, self._outer = inner, outer

    @property
    def trace_id(self) -> str:
        return self._outer.trace_id

    def step(self, take: Callable[[], Any]) -> Any:
        return self._outer.step(lambda: self._inner.step(take))

    async def astep(self, take: Callable[[], Any]) -> Any:
        return await self._outer.astep(lambda: self._inner.astep(take))

    def end(self, closed: bool = False) -> None:
        self._inner.end(closed)
        self._outer.end(closed)


@functools.lru_cache(maxsize=256)
def _make_observed_class(kind: Any) -> type:
    """Return the subclass of `kind` whose instances report their items to an observer."""
    methods = {name: make(getattr(kind, name)) for name, make in _METHOD_WRAPPERS.items() if hasattr(kind, name)}
    hidden: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    if not hasattr(kind, "trace_id"):
        hidden["trace_id"] = property(lambda self: self.__dict__[_OBSERVER].trace_id)
    return type(kind.__name__, (kind,), {**hidden, **methods, "__reduce_ex__": _reduce_ex})


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """Reduce the object to its original class, for `copy` and `pickle`, so that a copy is not observed."""
    kind = type(self)
    plain: Any = kind.__bases__[0]
    reduced = plain.__reduce_ex__(self, protocol)
    if not isinstance(reduced, tuple):
        return reduced
    make, *parts = (_strip_observer(part, kind, plain) for part in reduced)
    return (_new_instance if make is copyreg.__newobj__ else make, *parts)  # type: ignore[attr-defined]  # pickle compares types


def _new_instance(kind: Any, *args: Any) -> Any:
    return kind.__new__(kind, *args)


def _strip_observer(part: Any, kind: type, plain: type) -> Any:
    if isinstance(part, tuple):
        return tuple(plain if it is kind else _strip_observer(it, kind, plain) for it in part)
    return {k: v for k, v in part.items() if k != _OBSERVER} if type(part) is dict and _OBSERVER in part else part


def _wrap_next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        stream = self.__dict__.get(_OBSERVER)
        return original(self) if stream is None else _step_or_release(self, stream.step, lambda: original(self))

    return functools.wraps(original)(__next__)


def _wrap_anext(original: Any) -> Any:
    async def __anext__(self: Any) -> Any:
        stream = self.__dict__.get(_OBSERVER)
        return await (
            original(self) if stream is None else _astep_or_release(self, stream.astep, lambda: original(self))
        )

    return functools.wraps(original)(__anext__)


def _wrap_iter(original: Any) -> Any:
    """Wrap `__iter__`, which may return another iterator than the object itself."""

    def __iter__(self: Any) -> Any:
        stream, inner = self.__dict__.get(_OBSERVER), original(self)
        if stream is None or inner is self:
            return inner
        return _iterate(inner, functools.partial(_step_or_release, self, stream.step))

    return functools.wraps(original)(__iter__)


def _wrap_aiter(original: Any) -> Any:
    def __aiter__(self: Any) -> Any:
        stream, inner = self.__dict__.get(_OBSERVER), original(self)
        if stream is None or inner is self:
            return inner
        return _iterate_async(inner, functools.partial(_astep_or_release, self, stream.astep))

    return functools.wraps(original)(__aiter__)


def _wrap_close(original: Any) -> Any:
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            stream = self.__dict__.get(_OBSERVER)
            _restore_class(self)
            if stream is not None:
                stream.end(closed=True)

    return functools.wraps(original)(close)


def _step_or_release(owner: Any, step: Callable[[Callable[[], Any]], Any], take: Callable[[], Any]) -> Any:
    try:
        return step(take)
    except BaseException:
        _restore_class(owner)
        raise


async def _astep_or_release(owner: Any, step: Callable[[Callable[[], Any]], Any], take: Callable[[], Any]) -> Any:
    try:
        return await step(take)
    except BaseException:
        _restore_class(owner)
        raise


def _restore_class(value: Any) -> None:
    """Restore the original class, so that the object is no longer observed."""
    if value.__dict__.pop(_OBSERVER, None) is not None:
        object.__setattr__(value, "__class__", type(value).__bases__[0])


_METHOD_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "__next__": _wrap_next,
    "__iter__": _wrap_iter,
    "__anext__": _wrap_anext,
    "__aiter__": _wrap_aiter,
    "close": _wrap_close,
    "aclose": _wrap_close,
    "__exit__": _wrap_close,
    "__aexit__": _wrap_close,
}
