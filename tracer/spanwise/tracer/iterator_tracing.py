"""Tracing of other iterators and streaming responses, such as OpenAI's `Stream` and Starlette bodies.

An object of a class written in Python keeps its identity. Until it is exhausted or closed, its `__class__` is a
generated subclass that reports its items. Iterators that are built into Python (`map`, `zip`, those of itertools) are
wrapped in a generator.

Some objects are left alone: files, cursors and other objects that can also be read in other ways; objects without a
`__dict__`; and instances of classes that run code when a subclass is created.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType
from typing import Any, Protocol

_OBSERVER = "__spanwise_stream__"
_BUILTIN_MODULES = ("builtins", "itertools")
_RANDOM_ACCESS_METHODS = ("read", "readline", "fetchone", "fetchall", "__getitem__", "__len__", "__await__")
_COROUTINE_METHODS = ("__await__", "send")  # methods of coroutines and generators, which also accept values
_BODY_ATTRIBUTE = "body_iterator"  # attribute of Starlette's streaming responses


class IterationObserver(Protocol):
    """Observer of an iteration, such as `StreamRecorder`."""

    @property
    def trace_id(self) -> str:
        """Return the trace id as 32 hex digits."""

    def step(self, take: Callable[[], Any]) -> Any:
        """Take an item in the stream's context and record it."""

    async def astep(self, take: Callable[[], Any]) -> Any:
        """Await an item in the stream's context and record it."""

    def end(self, closed: bool = False) -> None:
        """End the span of the iteration."""


def is_builtin_iterator(value: Any) -> bool:
    """Return whether a value is an iterator that is built into Python."""
    kind = type(value)
    return (
        kind.__module__ in _BUILTIN_MODULES
        and hasattr(kind, "__next__")
        and not any(hasattr(kind, n) for n in _COROUTINE_METHODS)
    )


def has_streaming_body(value: Any) -> bool:
    """Return whether a value is a response with a body that is still to be iterated."""
    return hasattr(get_streaming_body(value), "__anext__")


def is_stream_object(value: Any) -> bool:
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


def observe_iteration(value: Any, stream: IterationObserver) -> Any:
    """Make an iterator report its items to `stream`, and return it. An existing observer is kept."""
    known = value.__dict__.get(_OBSERVER)
    if known is None:
        kind: Any = type(value)
        object.__setattr__(value, "__class__", _make_observed_class(kind))
    value.__dict__[_OBSERVER] = stream if known is None else _ObserverPair(known, stream)
    return value


class _ObserverPair:
    """Pair of observers, for the stream of a traced function that another traced function returns."""

    def __init__(self, inner: IterationObserver, outer: IterationObserver) -> None:
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


def get_streaming_body(response: Any) -> Any:
    """Return the body of a streaming response, or None. Only `__dict__` is read: attribute access may run code."""
    return getattr(response, "__dict__", {}).get(_BODY_ATTRIBUTE)


def set_streaming_body(response: Any, body: AsyncIterator[Any]) -> None:
    """Replace the body of a streaming response."""
    setattr(response, _BODY_ATTRIBUTE, body)


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


def _wrap_iter(original: Any) -> Any:
    def __iter__(self: Any) -> Iterator[Any]:
        stream, inner = self.__dict__.get(_OBSERVER), original(self)
        if stream is None or inner is self:
            return inner  # type: ignore[no-any-return]
        return _iterate_observed(self, inner, stream)

    return functools.wraps(original)(__iter__)


def _iterate_observed(owner: Any, inner: Iterator[Any], stream: IterationObserver) -> Iterator[Any]:
    while True:
        try:
            item = _step_or_release(owner, stream.step, lambda: next(inner))
        except StopIteration:
            return
        yield item


def _wrap_anext(original: Any) -> Any:
    async def __anext__(self: Any) -> Any:
        stream = self.__dict__.get(_OBSERVER)
        return await (
            original(self) if stream is None else _astep_or_release(self, stream.astep, lambda: original(self))
        )

    return functools.wraps(original)(__anext__)


def _wrap_aiter(original: Any) -> Any:
    def __aiter__(self: Any) -> AsyncIterator[Any]:
        stream, inner = self.__dict__.get(_OBSERVER), original(self)
        if stream is None or inner is self:
            return inner  # type: ignore[no-any-return]
        return _aiterate_observed(self, inner, stream)

    return functools.wraps(original)(__aiter__)


async def _aiterate_observed(owner: Any, inner: AsyncIterator[Any], stream: IterationObserver) -> AsyncIterator[Any]:
    while True:
        try:
            item = await _astep_or_release(owner, stream.astep, inner.__anext__)
        except StopAsyncIteration:
            return
        yield item


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
