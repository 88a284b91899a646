"""Context inheritance by threads, timers and tasks of thread pools.

- A thread runs in the context of the code that started it. The threads of a pool run in an empty context, because they
  outlive the code that created the pool.
- A task of a `ThreadPoolExecutor` or a `multiprocessing.pool.ThreadPool` runs in the context of the code that submitted
  it, even if the run that was current there has ended before the task begins.
- `trace_context.get_live_context` decides, when a span starts, if an inherited context still applies.

The methods are wrapped on the class. Other wrappers of the same methods keep working, inside or outside of
Spanwise's.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from spanwise.tracer.otel.trace_context import (
    attach,
    detach,
    get_live_context,
    has_trace_ended,
    with_kept_parent,
    without_kept_parent,
)

_POOL_MODULES = ("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.pool")
# methods that submit tasks; all other ones call one of these
_THREAD_POOL_METHODS = ("apply_async", "_map_async", "imap", "imap_unordered")
_patch_lock = threading.Lock()
_on = False
_originals: dict[tuple[type, str], tuple[Any, Any]] = {}  # by class and method: the original and the wrapper


def patch_thread_methods() -> None:
    """Wrap the methods that start threads and submit tasks. A second call does nothing."""
    global _on
    if _on:
        return
    from concurrent.futures import ThreadPoolExecutor

    with _patch_lock:
        _on = True
        _wrap_method(threading.Thread, "start", _wrap_start)
        _wrap_method(ThreadPoolExecutor, "submit", _wrap_submit)
    _wrap_thread_pool()


def restore_thread_methods() -> None:
    """Restore the original methods.

    If another library has wrapped Spanwise's wrapper, the wrapper stays in place and does nothing.
    """
    global _on
    with _patch_lock:
        _on = False
        for (owner, name), (original, wrapper) in tuple(_originals.items()):
            if owner.__dict__.get(name) is wrapper:
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
                del _originals[owner, name]


def _wrap_method(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    if (owner, name) not in _originals:
        # None if the method is inherited. The wrapper calls the method found through the class: the original may be a
        # descriptor
        original = owner.__dict__.get(name)
        inner = getattr(owner, name)
        wrapper = functools.wraps(inner)(make(inner))
        _originals[owner, name] = original, wrapper
        setattr(owner, name, wrapper)


def _wrap_thread_pool() -> None:
    """Wrap `multiprocessing.pool.ThreadPool` if the application has imported it. The import would take 30 ms."""
    if (module := sys.modules.get("multiprocessing.pool")) is not None and hasattr(module, "ThreadPool"):
        with _patch_lock:
            for name in _THREAD_POOL_METHODS if _on else ():
                _wrap_method(module.ThreadPool, name, _wrap_apply)


def _wrap_start(original: Any) -> Any:
    def start(self: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        if _on:
            target = getattr(self, "_target", None)
            if getattr(target, "__module__", None) in _POOL_MODULES or type(self).__module__ in _POOL_MODULES:
                _wrap_thread_pool()
            elif context := get_live_context():
                _run_in_context(self, [without_kept_parent(context)])
        return original(self, *args, **kwargs)

    return start


def _run_in_context(thread: Any, contexts: list[Any]) -> None:
    """Make a thread run in a context. The thread releases its reference to the context when it starts."""
    before, inner = thread.__dict__.get("run"), thread.run

    def run() -> None:
        if before is None:
            del thread.run
        else:
            thread.run = before
        token = attach(contexts.pop())
        try:
            inner()
        finally:
            detach(token)

    thread.run = run


def _wrap_submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        context = get_live_context() if _on else None
        if context:
            fn = functools.partial(_call_in_context, context, fn)
        return original(self, fn, *args, **kwargs)

    return submit


def _wrap_apply(original: Any) -> Any:
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = get_live_context() if _on else None
        if context and args:
            args = (functools.partial(_call_in_context, context, args[0]), *args[1:])
        elif context and "func" in kwargs:
            kwargs["func"] = functools.partial(_call_in_context, context, kwargs["func"])
        return original(self, *args, **kwargs)

    return apply


def _call_in_context(context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    token = attach(with_kept_parent(context) if has_trace_ended(context) else context)
    try:
        return function(*args, **kwargs)
    finally:
        detach(token)
