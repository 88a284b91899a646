"""Post-mortem debugger of `spanwise eval --pdb`, opened where a task or evaluator raised."""

from __future__ import annotations

import asyncio
import inspect
import pdb
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

from spanwise.evaluators import Evaluator
from spanwise.evaluators.interface import Batch, Skip

_NOT_DEBUGGED = (Skip, KeyboardInterrupt, asyncio.CancelledError)


def debug_exception(error: BaseException) -> None:
    """Print an exception, and open the debugger at the innermost frame."""
    print(f"{type(error).__name__}: {error}")
    tracing = sys.gettrace()  # saved, because the debugger removes a trace function, such as coverage's
    try:
        pdb.post_mortem(error.__traceback__)
    finally:
        sys.settrace(tracing)


def wrap_evaluator(evaluator: Evaluator) -> Evaluator:
    """Return an evaluator that opens the debugger on its errors. A batch evaluator is returned unchanged."""
    function = evaluator.function
    if isinstance(function, Batch):
        return evaluator

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with _debug_on_error():
            return function(*args, **named)

    @wraps(function)
    async def call_async(*args: Any, **named: Any) -> Any:
        with _debug_on_error():
            return await function(*args, **named)

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    debugged: Callable[..., Any] = call_async if is_async else call
    for name in ("ready", "where", "judges") if evaluator.asking else ():
        setattr(debugged, name, getattr(function, name))
    return replace(evaluator, function=debugged)


@contextmanager
def _debug_on_error() -> Iterator[None]:
    try:
        yield
    except _NOT_DEBUGGED:
        raise
    except BaseException as error:
        debug_exception(error)
        raise
