"""What a caller holds while a traced generator runs: the generator, and the ids of its run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from opentelemetry import trace as otel


class _Handle:
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


class GeneratorHandle(_Handle):
    """Of a generator. `isinstance(…, GeneratorType)` holds: frameworks decide by it what to do with a result."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return GeneratorType

    def __iter__(self) -> Generator[Any, Any, Any]:
        return self._inner  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        return self._inner.__next__()


class AsyncGeneratorHandle(_Handle):
    """Of an async generator, in the same way."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return AsyncGeneratorType

    def __aiter__(self) -> AsyncGenerator[Any, Any]:
        return self._inner  # type: ignore[no-any-return]

    def __anext__(self) -> Any:
        return self._inner.__anext__()
