"""Iterators that are no generators, followed like these: an OpenAI `Stream`, `map`, a response with a body to come.

An object of a class written in Python stays the object that it is: until it is exhausted or closed its class is one
below its own, which notes what passes. Iterators built into Python (`map`, `zip`, those of itertools) are iterated by a
generator. Files, cursors and whatever else can be read in other ways, and objects without a `__dict__`, are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType
from typing import Any, Protocol

_STREAM = "__assay_stream__"
_BUILT_IN = ("builtins", "itertools")
_READ_OTHERWISE = ("read", "readline", "fetchone", "fetchall", "__getitem__", "__len__", "__await__")
_BODY = "body_iterator"  # of Starlette's streaming responses


class Follower(Protocol):
    """What is told of an iteration (see `Stream`)."""

    def step(self, take: Callable[[], Any]) -> Any:
        """Take an item in the stream's context, and note it."""

    async def astep(self, take: Callable[[], Any]) -> Any:
        """Await an item in the stream's context, and note it."""

    def end(self, closed: bool = False) -> None:
        """The iteration is over."""


def is_built_in(value: Any) -> bool:
    """Whether it is an iterator of Python's own."""
    kind = type(value)
    return kind.__module__ in _BUILT_IN and hasattr(kind, "__next__") and not hasattr(kind, "__await__")


def has_body(value: Any) -> bool:
    """Whether it is a response whose body is still to be iterated."""
    return hasattr(getattr(value, _BODY, None), "__anext__") and hasattr(value, "__dict__")


def is_stream(value: Any) -> bool:
    """Whether it is an object that is iterated step by step, in no other way, and can be told apart while it is."""
    kind = type(value)
    steps = hasattr(kind, "__next__") or hasattr(kind, "__anext__")
    written = isinstance(getattr(kind, "__next__", None) or getattr(kind, "__anext__", None), FunctionType)
    return steps and written and hasattr(value, "__dict__") and not any(hasattr(kind, n) for n in _READ_OTHERWISE)


def followed(value: Any, stream: Follower) -> Any:
    """The same object, which tells `stream` what it gives."""
    value.__dict__[_STREAM] = stream
    kind: Any = type(value)
    value.__class__ = _told(kind)
    return value


def body_of(response: Any) -> AsyncIterator[Any]:
    """The iterator of a response's body."""
    body: AsyncIterator[Any] = getattr(response, _BODY)
    return body


def set_body(response: Any, body: AsyncIterator[Any]) -> None:
    """Put another iterator in its place."""
    setattr(response, _BODY, body)


@functools.lru_cache(maxsize=256)
def _told(kind: Any) -> type:
    """The class below `kind` whose instances tell their stream what passes."""
    methods = {name: make(getattr(kind, name)) for name, make in _METHODS.items() if hasattr(kind, name)}
    hidden = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), {**hidden, **methods})


def _next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        stream = self.__dict__.get(_STREAM)
        return original(self) if stream is None else _let_go(self, stream.step, lambda: original(self))

    return functools.wraps(original)(__next__)


def _iter(original: Any) -> Any:
    def __iter__(self: Any) -> Iterator[Any]:
        stream, inner = self.__dict__.get(_STREAM), original(self)
        if stream is None or inner is self:
            return inner  # type: ignore[no-any-return]
        return _items(self, inner, stream)

    return functools.wraps(original)(__iter__)


def _items(owner: Any, inner: Iterator[Any], stream: Follower) -> Iterator[Any]:
    while True:
        try:
            item = _let_go(owner, stream.step, lambda: next(inner))
        except StopIteration:
            return
        yield item


def _anext(original: Any) -> Any:
    async def __anext__(self: Any) -> Any:
        stream = self.__dict__.get(_STREAM)
        return await (original(self) if stream is None else _alet_go(self, stream.astep, lambda: original(self)))

    return functools.wraps(original)(__anext__)


def _aiter(original: Any) -> Any:
    def __aiter__(self: Any) -> AsyncIterator[Any]:
        stream, inner = self.__dict__.get(_STREAM), original(self)
        if stream is None or inner is self:
            return inner  # type: ignore[no-any-return]
        return _aitems(self, inner, stream)

    return functools.wraps(original)(__aiter__)


async def _aitems(owner: Any, inner: AsyncIterator[Any], stream: Follower) -> AsyncIterator[Any]:
    while True:
        try:
            item = await _alet_go(owner, stream.astep, inner.__anext__)
        except StopAsyncIteration:
            return
        yield item


def _close(original: Any) -> Any:
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            _over(self)

    return functools.wraps(original)(close)


def _let_go(owner: Any, step: Callable[[Callable[[], Any]], Any], take: Callable[[], Any]) -> Any:
    try:
        return step(take)
    except BaseException:
        _restore(owner)
        raise


async def _alet_go(owner: Any, step: Callable[[Callable[[], Any]], Any], take: Callable[[], Any]) -> Any:
    try:
        return await step(take)
    except BaseException:
        _restore(owner)
        raise


def _over(value: Any) -> None:
    stream = value.__dict__.get(_STREAM)
    _restore(value)
    if stream is not None:
        stream.end(closed=True)


def _restore(value: Any) -> None:
    """Make it again what it was: it is over, and tells nobody anything any more."""
    if value.__dict__.pop(_STREAM, None) is not None:
        value.__class__ = type(value).__bases__[0]


_METHODS: dict[str, Callable[[Any], Any]] = {
    "__next__": _next,
    "__iter__": _iter,
    "__anext__": _anext,
    "__aiter__": _aiter,
    "close": _close,
    "aclose": _close,
    "__exit__": _close,
    "__aexit__": _close,
}
