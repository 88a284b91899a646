"""What models on this machine have in common: how they are named, loaded once, and shared."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from spanwise.evaluators.models._address import check_told
from spanwise.evaluators.models._encoding import Encoding
from spanwise.evaluators.models._find import Place, find
from spanwise.evaluators.models._presets import DEFAULT, Use
from spanwise.evaluators.models._shared import Key, Loaded, put, shared
from spanwise.evaluators.protocol._telling import tracked

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vectors

PART = 16  # batches of a model between two looks at how far it is
Kind = TypeVar("Kind")
_encodings: dict[Key, Encoding] = {}


class Local(ABC):
    """A model in a folder, of the hub or of a preset, loaded when it is first used; or a function in its place."""

    USE: ClassVar[Use]

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[..., Any] | None,
        name: str | None,
        device: str | None,
        token: str | None,
        remote_code: bool,
        pickle: bool,
    ) -> None:
        self._function = model if callable(model) else None
        self._given = DEFAULT[self.USE] if model is None or callable(model) else model
        self._name, self.device = name, device
        self._token, self._remote_code, self._pickle = token, remote_code, pickle

    @property
    def name(self) -> str:
        """What people call it: for thresholds, versions, and pages."""
        if self._name is not None:
            return self._name
        if self._function is not None:
            return getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return self._place.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """What it gives depends on."""
        files = {} if self._function is not None else self._place.identity
        return {"model": self.name, "function": self._function is not None, **self._how(), **files}

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        if self._function is None:
            self._loaded()

    @abstractmethod
    def _how(self) -> Mapping[str, Any]:
        """What else its results depend on, by the names of the arguments."""

    @abstractmethod
    def _load(self) -> Loaded:
        """Have it in memory. Raises `NoModel`."""

    @cached_property
    def _place(self) -> Place:
        return find(self._given)

    def _key(self) -> Key:
        return self.USE, self._place.key, self.device, self._remote_code, self._pickle

    def _loaded(self) -> Loaded:
        return shared(self._key(), self._load)

    def _shared(self, encode: Callable[[list[str]], Vectors], *how: Any, ragged: bool = False) -> Encoding:
        """Where all that run the model so keep what it gave."""
        key = *self._key(), *how
        return _encodings.get(key) or put(_encodings, key, Encoding(encode, ragged=ragged))


def told(kind: type[Kind], given: Any, options: Mapping[str, Any]) -> Kind | None:
    """A model of itself, of a dict of arguments, of a folder or a name, or of None (the default).

    None for anything else. Raises `ValueError` for a secret in a dict.
    """
    make: Callable[..., Kind] = kind
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        check_told(given, kind.__name__)
        return make(**{**given, **options})
    if given is None or isinstance(given, str | os.PathLike):
        return make(given, **options)
    return None


def by_length(texts: Sequence[str], size: int, run: Callable[[list[str]], Vectors], what: str) -> Vectors:
    """What `run` gives for `size` texts at a time, in the order of all of them.

    Texts of like length go together, as within the model itself, so that parts cost no more than the whole.
    """
    import numpy

    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    parts = [[texts[place] for place in order[start : start + size]] for start in range(0, len(order), size)]
    rows: Vectors = numpy.concatenate([run(part) for part in tracked(parts, what)])[numpy.argsort(order)]
    return rows
