"""How an experiment is run: the one declaration of what `evaluate()` and `aevaluate()` take by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, TypeAlias, TypedDict, TypeVar

from assay.collector.records import JSON
from assay.collector.stores import Store
from assay.tracer.hints import did_you_mean

Where: TypeAlias = "Store | str | PathLike[str] | None"
F = TypeVar("F", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """What `evaluate()` takes by name, as type checkers see it; defaults are those of `Settings`."""

    name: str | None
    concurrency: int
    repetitions: int
    metadata: Mapping[str, JSON] | None
    split: str | None
    limit: int | None
    timeout: float | None
    retries: int
    seed: int | None
    resume: bool | str | None
    summary_evaluators: Iterable[Any]
    store: Where
    progress: bool | None
    span_wait: float
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options with their defaults, checked; what they mean stands with `evaluate`. Raises `ValueError` for nonsense."""

    name: str | None = None
    concurrency: int = 8
    repetitions: int = 1
    metadata: Mapping[str, JSON] | None = None
    split: str | None = None
    limit: int | None = None
    timeout: float | None = None
    retries: int = 0
    seed: int | None = None
    resume: bool | str | None = None
    summary_evaluators: Iterable[Any] = ()
    store: Where = None
    progress: bool | None = None
    span_wait: float = 1.0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name in ("concurrency", "repetitions", "batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is a whole number, at least 1, not {value!r}")
        if self.retries < 0 or self.span_wait < 0:
            raise ValueError(f"retries ({self.retries!r}) and span_wait ({self.span_wait!r}) are not negative")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout is some seconds, or None for no bound, not {self.timeout!r}")

    @property
    def parameters(self) -> dict[str, JSON]:
        """What is recorded of them."""
        names = ("concurrency", "repetitions", "split", "limit", "timeout", "retries", "seed")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


NAMES = tuple(field.name for field in fields(Settings))


def settings_of(options: Mapping[str, Any], caller: str) -> Settings:
    """The settings out of what a caller was given by name. Raises `TypeError` for an option that there is not."""
    for name in options:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES, form=" ({})")
            raise TypeError(f"{caller}() has no option {name!r}{hint}; it takes {', '.join(NAMES)}")
    return Settings(**options)


def taking_options(function: F) -> F:
    """Show every option with its default where people look: `help`, `inspect.signature`, notebooks."""
    signature = inspect.signature(function)
    own = [known for known in signature.parameters.values() if known.kind is not known.VAR_KEYWORD]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Settings)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function
