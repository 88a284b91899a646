"""The current context goes along into threads, timers and the tasks of a `ThreadPoolExecutor`.

Two methods are wrapped: `Thread.start`, which has the thread run in the context of who started it, whatever class below
`Thread` it is of, and `ThreadPoolExecutor.submit`. Who wraps them besides us stays in place, before and after.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from assay.tracer._context import attach, detach, get_current

_ready = threading.Lock()
_on = False
_wrapped: dict[str, tuple[type, Any, Any]] = {}  # by method: its class, the original, ours


def carry() -> None:
    """Begin; again does nothing."""
    global _on
    if _on:
        return
    from concurrent.futures import ThreadPoolExecutor
    from concurrent.futures.thread import _worker

    with _ready:
        _on = True
        _wrap(threading.Thread, "start", lambda original: _start(original, _worker))
        _wrap(ThreadPoolExecutor, "submit", _submit)


def restore() -> None:
    """Leave threads alone again. What others have wrapped since stays, and ours below it does nothing."""
    global _on
    with _ready:
        _on = False
        for name, (owner, original, ours) in tuple(_wrapped.items()):
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
                del _wrapped[name]


def _wrap(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    if name not in _wrapped:
        original = owner.__dict__[name]  # to be put back; called through the class, for it may be somebody's descriptor
        ours = functools.wraps(original)(make(getattr(owner, name)))
        _wrapped[name] = owner, original, ours
        setattr(owner, name, ours)


def _start(original: Any, worker: Any) -> Any:
    def start(self: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        context = get_current() if _on else None
        # a pool's thread outlives what it was made for: each of its tasks brings its own
        if context and getattr(self, "_target", None) is not worker:
            _run_in(self, [context])
        return original(self, *args, **kwargs)

    return start


def _run_in(thread: Any, held: list[Any]) -> None:
    """Have a thread run in a context, of which nothing is kept here once it does."""
    before, inner = thread.__dict__.get("run"), thread.run

    def run() -> None:
        if before is None:
            del thread.run
        else:
            thread.run = before
        token = attach(held.pop())
        try:
            inner()
        finally:
            detach(token)

    thread.run = run


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        context = get_current() if _on else None
        if context:
            fn = functools.partial(_in, context, fn)
        return original(self, fn, *args, **kwargs)

    return submit


def _in(context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    token = attach(context)
    try:
        return function(*args, **kwargs)
    finally:
        detach(token)
