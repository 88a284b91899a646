"""Iterators that are no generators, followed like these: an OpenAI `Stream`, `map`, a response with a body to come.

An object of a class written in Python stays the object that it is: until it is exhausted or closed its class is one
below its own, which notes what passes. Iterators built into Python (`map`, `zip`, those of itertools) are iterated by a
generator. Files, cursors and whatever else can be read in other ways, objects without a `__dict__`, and classes that
are told of those below them, are left alone.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType
from typing import Any, Protocol

_STREAM = "__spanwise_stream__"
_BUILT_IN = ("builtins", "itertools")
_READ_OTHERWISE = ("read", "readline", "fetchone", "fetchall", "__getitem__", "__len__", "__await__")
_SENT_TO = ("__await__", "send")  # what awaits a coroutine: more than its items passes
_BODY = "body_iterator"  # of Starlette's streaming responses


class Follower(Protocol):
    """What is told of an iteration (see `Stream`)."""

    @property
    def trace_id(self) -> str:
        """32 hex digits."""

    def step(self, take: Callable[[], Any]) -> Any:
        """Take an item in the stream's context, and note it."""

    async def astep(self, take: Callable[[], Any]) -> Any:
        """Await an item in the stream's context, and note it."""

    def end(self, closed: bool = False) -> None:
        """The iteration is over."""


def is_built_in(value: Any) -> bool:
    """Whether it is an iterator of Python's own."""
    kind = type(value)
    return kind.__module__ in _BUILT_IN and hasattr(kind, "__next__") and not any(hasattr(kind, n) for n in _SENT_TO)


def has_body(value: Any) -> bool:
    """Whether it is a response whose body is still to be iterated."""
    return hasattr(body_of(value), "__anext__")


def is_stream(value: Any) -> bool:
    """Whether it is an object that is iterated step by step, in no other way, and can be told apart while it is."""
    kind = type(value)
    steps = hasattr(kind, "__next__") or hasattr(kind, "__anext__")
    written = isinstance(getattr(kind, "__next__", None) or getattr(kind, "__anext__", None), FunctionType)
    if not (steps and written and hasattr(value, "__dict__")) or any(hasattr(kind, n) for n in _READ_OTHERWISE):
        return False
    return _STREAM in value.__dict__ or _is_not_told_of_subclasses(kind)


def _is_not_told_of_subclasses(kind: Any) -> bool:
    """Whether a class below it comes to be without its own code: one that registers them would find ours."""
    own = getattr(kind.__init_subclass__, "__func__", None)
    return type(kind).__module__ in ("builtins", "abc", "typing") and (own is None or own.__module__ == "typing")


def followed(value: Any, stream: Follower) -> Any:
    """The same object, which tells `stream` what it gives; also where it tells another one already."""
    known = value.__dict__.get(_STREAM)
    if known is None:
        kind: Any = type(value)
        object.__setattr__(value, "__class__", _told(kind))
    value.__dict__[_STREAM] = stream if known is None else _Both(known, stream)
    return value


class _Both:
    """Two that are told: a function returned what another traced one had returned to it."""

    def __init__(self, inner: Follower, outer: Follower) -> None:
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


def body_of(response: Any) -> Any:
    """The body of a response, None if it is none. What makes up attributes when asked for them is not asked."""
    return getattr(response, "__dict__", {}).get(_BODY)


def set_body(response: Any, body: AsyncIterator[Any]) -> None:
    """Put another iterator in its place."""
    setattr(response, _BODY, body)


@functools.lru_cache(maxsize=256)
def _told(kind: Any) -> type:
    """The class below `kind` whose instances tell their stream what passes."""
    methods = {name: make(getattr(kind, name)) for name, make in _METHODS.items() if hasattr(kind, name)}
    hidden: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    if not hasattr(kind, "trace_id"):
        hidden["trace_id"] = property(lambda self: self.__dict__[_STREAM].trace_id)
    return type(kind.__name__, (kind,), {**hidden, **methods, "__reduce_ex__": _reduce_ex})


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """For `copy` and `pickle`: what it was, for nobody is told of a second one."""
    kind = type(self)
    plain: Any = kind.__bases__[0]
    reduced = plain.__reduce_ex__(self, protocol)
    if not isinstance(reduced, tuple):
        return reduced
    make, *parts = (_without_us(part, kind, plain) for part in reduced)
    return (_new if make is copyreg.__newobj__ else make, *parts)  # type: ignore[attr-defined]  # pickle compares types


def _new(kind: Any, *args: Any) -> Any:
    return kind.__new__(kind, *args)


def _without_us(part: Any, kind: type, plain: type) -> Any:
    if isinstance(part, tuple):
        return tuple(plain if it is kind else _without_us(it, kind, plain) for it in part)
    return {k: v for k, v in part.items() if k != _STREAM} if type(part) is dict and _STREAM in part else part


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
        object.__setattr__(value, "__class__", type(value).__bases__[0])


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
