"""Where vectors come from: what every source of them offers, and the simplest of them, a function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vectors

WANTED = "a function of a list of texts that gives one vector of finite numbers for each"


class Source(Protocol):
    """A model, wherever it runs. `key` is the same for what gives the same vectors in this process."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def key(self) -> tuple[Hashable, ...]:
        """By which its encoding is shared; another one when its files are written anew."""

    @property
    def portion(self) -> int | None:
        """Texts that it takes at a time; None: all."""

    @property
    def paid(self) -> bool:
        """Whether its vectors cost money."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its vectors depend on, for versions."""

    def digest(self) -> str | None:
        """All that its vectors depend on, in any process; None where that is not known."""

    def check(self) -> None:
        """Raises `NoModel` for what can be seen to be missing without loading anything."""

    def load(self) -> None:
        """Make it ready now. Raises `NoModel`."""

    def encode(self, texts: list[str]) -> Vectors:
        """An array of (number of texts, dimensions). Raises what goes wrong."""


class Function:
    """A function of the user's. `name` is what they call it, where they do."""

    portion = None
    paid = False

    def __init__(self, function: Callable[[list[str]], Any], name: str | None) -> None:
        self._function, self._named = function, name
        self.name = name or str(getattr(function, "__qualname__", type(function).__qualname__))
        bound = getattr(function, "__self__", None)  # a bound method is another object each time
        self.key = "function", id(function if bound is None else bound), id(getattr(function, "__func__", None))

    @property
    def identity(self) -> Mapping[str, Any]:
        """Nobody knows what it does: its name."""
        return {"model": self.name, "function": True}

    def digest(self) -> str | None:
        """Its name, where the user gave it one."""
        return f"function {self._named}" if self._named else None

    def check(self) -> None:
        """Nothing can be missing."""

    def load(self) -> None:
        """There is nothing to load."""

    def encode(self, texts: list[str]) -> Vectors:
        """What it gives, if these are vectors. Raises `ValueError`."""
        return vectors_of(self._function(list(texts)), len(texts), "an embedder", WANTED)


def vectors_of(given: Any, count: int, who: str, wanted: str) -> Vectors:
    """An array of (count, dimensions) of finite numbers. Raises `ValueError` for anything else."""
    import numpy

    try:
        vectors = numpy.asarray(given, dtype=numpy.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who} gave {given!r:.100}: it is {wanted}") from error
    if vectors.ndim != 2 or len(vectors) != count:
        raise ValueError(f"{who} gave an array of {vectors.shape} for {count} texts: it is {wanted}")
    if not numpy.isfinite(vectors).all():
        raise ValueError(f"{who} gave numbers that are not finite: it is {wanted}")
    return vectors
