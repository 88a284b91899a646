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
    awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    looking = _wrap_async(function) if awaited else _wrap_sync(function)
    for name in ("ready", "where", "judges") if evaluator.asking else ():
        setattr(looking, name, getattr(function, name))
    return replace(evaluator, function=looking)


@contextmanager
def _debug_on_error() -> Iterator[None]:
    try:
        yield
    except _NOT_DEBUGGED:
        raise
    except BaseException as error:
        debug_exception(error)
        raise


def _wrap_sync(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def looking(*args: Any, **named: Any) -> Any:
        with _debug_on_error():
            return function(*args, **named)

    return looking


def _wrap_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def looking(*args: Any, **named: Any) -> Any:
        with _debug_on_error():
            return await function(*args, **named)

    return looking
