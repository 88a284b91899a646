"""Models in memory: one instance per process, a register of the models of all processes, base class of local models."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import orjson

from spanwise.evaluators.interface.progress_display import track_progress
from spanwise.evaluators.models.disk_cache import forget_files_after_fork, user_cache_path
from spanwise.evaluators.models.inference_batching import CoalescingEncoder, reset_encoders_after_fork
from spanwise.evaluators.models.model_resolution import DEFAULT, ModelLocation, ModelUse, check_no_secrets, locate_model

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vectors


_COMMAND_CHARACTERS = 200  # maximum characters of the command line that are stored


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """Entry of the register: a model that a process has in memory."""

    pid: int
    command: str
    model: str
    use: str
    where: str
    device: str
    parameters_bytes: int
    seconds: float  # seconds that loading took
    since: float  # time of loading, in seconds since the epoch


class ModelRegister:
    """File that lists the models of this process for other processes. If the file cannot be written, nothing is
    listed.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def write(self, models: Iterable[RegisteredModel]) -> None:
        """Replace the contents of the file by the models that this process holds now."""
        with suppress(OSError):
            if self._file is None:
                self._file = _create_register_file()
            text = orjson.dumps(list(models))
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)

    def forget(self) -> None:
        """Close the parent's register file in a forked child."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def register_folder() -> Path:
    """Return the folder of the register files, in the user's cache directory."""
    return user_cache_path("models")


def registered_models() -> list[RegisteredModel]:
    """Return the models of all live processes, oldest first. Files of dead processes are removed."""
    found = [one for path in register_folder().glob("*.json") for one in _read_register_file(path)]
    return sorted(found, key=lambda one: one.since)


def describe_own_model(**model: object) -> RegisteredModel:
    """Return the register entry of a model that this process has loaded."""
    command = " ".join(sys.argv)[:_COMMAND_CHARACTERS]
    return RegisteredModel(pid=os.getpid(), command=command, **{"since": time.time(), **model})  # type: ignore[arg-type]


def _create_register_file() -> int:
    """Create the register file under a temporary name, lock it and rename it. The lock comes first, because readers
    remove unlocked files: they belong to dead processes.
    """
    register_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    name = register_folder() / f"{os.getpid()}.json"
    temporary = name.with_suffix(".new")
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.replace(temporary, name)
    return file


def _read_register_file(path: Path) -> Iterator[RegisteredModel]:
    with suppress(OSError, ValueError, TypeError), path.open("rb") as file:
        if _is_locked(file.fileno()):
            yield from [RegisteredModel(**one) for one in orjson.loads(file.read())]
        else:
            path.unlink()


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@dataclass(slots=True)
class LoadedModel:
    """Model in memory, in the form that `spanwise models` lists.

    Callers run it one at a time, because it uses all threads of the machine.
    """

    model: Any
    name: str
    use: str
    where: str
    device: str
    parameters_bytes: int
    seconds: float  # seconds that loading took
    running: threading.RLock = field(default_factory=threading.RLock)
    texts: int = 0  # number of texts that it has processed
    since: float = field(default_factory=time.time)  # time of loading, in seconds since the epoch


ModelKey: TypeAlias = tuple[Any, ...]  # (use, `ModelLocation.key`, settings …)
Known = TypeVar("Known")

_loaded: dict[ModelKey, LoadedModel] = {}
_locks: dict[ModelKey, threading.Lock] = {}
_guard = threading.Lock()
_register = ModelRegister()


def load_shared(key: ModelKey, load: Callable[[], LoadedModel]) -> LoadedModel:
    """Return the model under a key. If it is not loaded yet, call `load`. Concurrent callers share one call."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            began = time.perf_counter()
            made = load()
            made.seconds = time.perf_counter() - began
            with _guard:
                put_current(_loaded, key, made)
                _update_register()
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
        _update_register()


def _update_register() -> None:
    """Write this process's models to its register file, for other processes."""
    _register.write(
        describe_own_model(
            model=one.name,
            use=one.use,
            where=one.where,
            device=one.device,
            parameters_bytes=one.parameters_bytes,
            seconds=one.seconds,
            since=one.since,
        )
        for one in _loaded.values()
    )


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
    _register.forget()
    _loaded.clear()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


BATCHES_PER_UPDATE = 16  # batches between two updates of the progress display
Kind = TypeVar("Kind")
_encodings: dict[ModelKey, CoalescingEncoder] = {}


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
        return _encodings.get(key) or put_current(_encodings, key, CoalescingEncoder(encode, ragged=ragged))


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
