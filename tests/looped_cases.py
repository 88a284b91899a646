"""Tests that check one property of many values in one test case."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def loop_over(
    names: str | Iterable[str], values: Iterable[Any], ids: Iterable[Any] | Callable[[Any], Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with each value, as `pytest.mark.parametrize` would, but within one test case.

    All values are tried. Each failure has a note with its value. Fixtures are set up once for all values.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [value if len(names) > 1 else (value,) for value in values]
    labels = [repr(row) for row in rows] if ids is None or callable(ids) else [str(label) for label in ids]
    assert rows, "there are no values"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def call_each(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            for row, label in zip(rows, labels, strict=True):
                try:
                    test(**fixtures, **dict(zip(names, row, strict=True)))
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                    error.add_note(f"with {', '.join(names)} = {label:.1000}")
                    failures.append(error)
            if skipped := [error for error in failures if isinstance(error, pytest.skip.Exception)]:
                raise AssertionError("a looped test cannot skip a value: use pytest.mark.parametrize") from skipped[0]
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} values failed", failures)

        signature = inspect.signature(test)
        parameters = [one for name, one in signature.parameters.items() if name not in names]
        call_each.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call_each

    return decorate
