"""Models in memory: one instance per process, encoders shared by objects with the same model, base class of local models."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from spanwise.evaluators.interface.progress_display import track_progress
from spanwise.evaluators.models.disk_cache import forget_files_after_fork
from spanwise.evaluators.models.inference_batching import CoalescingEncoder, reset_encoders_after_fork
from spanwise.evaluators.models.model_resolution import DEFAULT, ModelLocation, ModelUse, check_no_secrets, locate_model

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vectors


@dataclass(slots=True)
class LoadedModel:
    """Model in memory. Callers run it one at a time, because it uses all threads of the machine."""

    model: Any
    name: str
    where: str
    device: str
    parameters_bytes: int
    running: threading.RLock = field(default_factory=threading.RLock)
    texts: int = 0  # number of texts that it has processed


ModelKey: TypeAlias = tuple[Any, ...]  # (use, `ModelLocation.key`, settings …)
Known = TypeVar("Known")

_loaded: dict[ModelKey, LoadedModel] = {}
_locks: dict[ModelKey, threading.Lock] = {}
_guard = threading.Lock()


def load_shared(key: ModelKey, load: Callable[[], LoadedModel]) -> LoadedModel:
    """Return the model under a key. If it is not loaded yet, call `load`. Concurrent callers share one call."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            made = load()
            with _guard:
                put_current(_loaded, key, made)
            return made
        return _loaded[key]


def put_current(known: dict[ModelKey, Known], key: ModelKey, one: Known) -> Known:
    """Store a value under a key unless one is stored already, and return the stored value.

    Entries whose key names an earlier version of the same files are dropped.
    """
    use, place, *_ = key
    for other in list(known):
        if other[0] == use and other[1] != place and other[1][0] == place[0]:
            known.pop(other, None)
    return known.setdefault(key, one)


def loaded_models() -> list[LoadedModel]:
    """Return the models in memory, in the order in which they were loaded."""
    return list(_loaded.values())


def unload_models() -> None:
    """Drop all models. A caller that holds a reference to a model can continue to use it."""
    with _guard:
        _loaded.clear()
        _locks.clear()


def choose_device(given: str | None) -> str:
    """Return the given device, else SPANWISE_DEVICE, else the first one available of cuda, mps and cpu."""
    named = given or os.environ.get("SPANWISE_DEVICE")
    if named:
        return named
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def parameter_bytes(module: Any) -> int:
    """Return the size of a torch module's parameters in bytes."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _reset_after_fork() -> None:
    """Reset the package's locks, and drop models and open files, in a forked child.

    The parent's threads do not exist in the child, including those of the models.
    """
    global _guard
    forget_files_after_fork()
    reset_encoders_after_fork()
    _guard = threading.Lock()
    _loaded.clear()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


BATCHES_PER_UPDATE = 16  # batches between two updates of the progress display
Kind = TypeVar("Kind")
# encoders of local models; they stay in memory as long as the models
_encoders: dict[ModelKey, CoalescingEncoder] = {}


def shared_encoder(key: ModelKey, make: Callable[[], CoalescingEncoder]) -> CoalescingEncoder:
    """Return the encoder under a model's key and settings. If there is none, call `make`."""
    return _encoders.get(key) or put_current(_encoders, key, make())


class LocalModel(ABC):
    """Base class of models from a folder, the hub or a preset, loaded on first use. A function can replace the
    model.
    """

    USE: ClassVar[ModelUse]

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
        """Return the name that thresholds, versions and the user interface use."""
        if self._name is not None:
            return self._name
        if self._function is not None:
            return getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return self._place.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the properties that the results depend on."""
        files = {} if self._function is not None else self._place.identity
        return {"model": self.name, "function": self._function is not None, **self._how(), **files}

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        if self._function is None:
            self._loaded()

    @abstractmethod
    def _how(self) -> Mapping[str, Any]:
        """Return further properties that the results depend on, by the names of the arguments."""

    @abstractmethod
    def _load(self) -> LoadedModel:
        """Load the model into memory. Raises `NoModel`."""

    @cached_property
    def _place(self) -> ModelLocation:
        return locate_model(self._given)

    def _key(self) -> ModelKey:
        return self.USE, self._place.key, self.device, self._remote_code, self._pickle

    def _loaded(self) -> LoadedModel:
        return load_shared(self._key(), self._load)

    def _shared(self, encode: Callable[[list[str]], Vectors], *how: Any, ragged: bool = False) -> CoalescingEncoder:
        """Return the encoder shared by all objects that run this model with the same settings."""
        key = *self._key(), *how
        return shared_encoder(key, lambda: CoalescingEncoder(encode, ragged=ragged))


def make_model(kind: type[Kind], given: Any, options: Mapping[str, Any]) -> Kind | None:
    """Return a model for an object of the class, a dict of arguments, a folder, a name, or None (the default).

    Returns None for anything else. Raises `ValueError` for a secret in a dict.
    """
    make: Callable[..., Kind] = kind
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        check_no_secrets(given, kind.__name__)
        return make(**{**given, **options})
    if given is None or isinstance(given, str | os.PathLike):
        return make(given, **options)
    return None


def run_by_length(texts: Sequence[str], size: int, run: Callable[[list[str]], Vectors], what: str) -> Vectors:
    """Call `run` on batches of `size` texts, and return the rows in the order of all texts.

    Texts of similar length share a batch, which minimizes padding.
    """
    import numpy

    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    parts = [[texts[place] for place in order[start : start + size]] for start in range(0, len(order), size)]
    rows: Vectors = numpy.concatenate([run(part) for part in track_progress(parts, what)])[numpy.argsort(order)]
    return rows
