"""Models that are loaded: one per process, name, device and way of running it, shared by all that ask for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from spanwise.evaluators.models._register import Register, of_this_process


@dataclass(slots=True)
class Loaded:
    """A model in memory, for `spanwise models`. One caller at a time runs it: it has the machine's threads to
    itself."""

    model: Any
    name: str
    use: str
    where: str
    device: str
    parameters_bytes: int
    seconds: float  # that loading took
    running: threading.RLock = field(default_factory=threading.RLock)
    texts: int = 0  # that it has looked at
    since: float = field(default_factory=time.time)  # seconds since the epoch


Key: TypeAlias = tuple[Any, ...]  # its use, `Place.key`, and how it is run
Known = TypeVar("Known")

_loaded: dict[Key, Loaded] = {}
_locks: dict[Key, threading.Lock] = {}
_guard = threading.Lock()
_register = Register()


def shared(key: Key, load: Callable[[], Loaded]) -> Loaded:
    """What is loaded under a key, or what `load` gives, called once however many ask at the same time."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            began = time.perf_counter()
            made = load()
            made.seconds = time.perf_counter() - began
            with _guard:
                put(_loaded, key, made)
                _tell()
            return made
        return _loaded[key]


def put(known: dict[Key, Known], key: Key, one: Known) -> Known:
    """What is under a key now. What was made of the same files before they were written anew is let go."""
    use, place, *_ = key
    for other in list(known):
        if other[0] == use and other[1] != place and other[1][0] == place[0]:
            known.pop(other, None)
    return known.setdefault(key, one)


def loaded() -> list[Loaded]:
    """All that is in memory, in the order in which it was loaded."""
    return list(_loaded.values())


def unload() -> None:
    """Let go of all; who holds one keeps it."""
    with _guard:
        _loaded.clear()
        _locks.clear()
        _tell()


def _tell() -> None:
    """Other processes, of what this one holds."""
    _register.write(
        of_this_process(
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


def device_of(given: str | None) -> str:
    """The device that is named, else cuda, mps or cpu, whatever there is first. SPANWISE_DEVICE names one for all."""
    named = given or os.environ.get("SPANWISE_DEVICE")
    if named:
        return named
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def bytes_of(module: Any) -> int:
    """Bytes of the parameters of a torch module."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _after_fork() -> None:
    """Threads of the parent held these; the models' own threads are gone with it, and they are loaded anew."""
    global _guard
    _guard = threading.Lock()
    _register.forget()
    _loaded.clear()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
