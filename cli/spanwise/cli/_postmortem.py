"""`--pdb`: the debugger where a task or an evaluator raised."""

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
from spanwise.evaluators.protocol import Batch, Skip

_NO_MATTER = (Skip, KeyboardInterrupt, asyncio.CancelledError)


def look(error: BaseException) -> None:
    """Say what was raised, and open the debugger at the innermost frame."""
    print(f"{type(error).__name__}: {error}")
    tracing = sys.gettrace()  # that of coverage, say, which the debugger ends when it is left
    try:
        pdb.post_mortem(error.__traceback__)
    finally:
        sys.settrace(tracing)


def watched(evaluator: Evaluator) -> Evaluator:
    """The evaluator, at whose errors one looks before they become an outcome; one of batches stays as it is."""
    function = evaluator.function
    if isinstance(function, Batch):
        return evaluator
    awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    looking = _async(function) if awaited else _plain(function)
    for name in ("ready", "where", "judges") if evaluator.asking else ():
        setattr(looking, name, getattr(function, name))
    return replace(evaluator, function=looking)


@contextmanager
def _looking() -> Iterator[None]:
    try:
        yield
    except _NO_MATTER:
        raise
    except BaseException as error:
        look(error)
        raise


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def looking(*args: Any, **named: Any) -> Any:
        with _looking():
            return function(*args, **named)

    return looking


def _async(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def looking(*args: Any, **named: Any) -> Any:
        with _looking():
            return await function(*args, **named)

    return looking
