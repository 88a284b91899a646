"""Regular expressions with a time limit: a pattern that backtracks without end must not stop an experiment."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def search(pattern: str, text: str, *, flags: str = "", seconds: float = 1.0) -> str | None:
    """The first match of a regular expression, or None. `flags` are letters as in "(?i)".

    Raises `TimeoutError` when the search takes longer than `seconds`, `ValueError` for a pattern that is none.
    """
    try:
        match = compiled(pattern, flags).search(text, timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(f"searching for {pattern!r} took more than {seconds} s") from error
    return None if match is None else str(match.group())


@lru_cache(maxsize=1024)
def compiled(pattern: str, flags: str = "") -> Any:
    """A compiled pattern of the `regex` library, whose searches take a time limit. Raises `ValueError`."""
    import regex

    try:
        return regex.compile(f"(?{flags}){pattern}" if flags else pattern)
    except regex.error as error:  # its message names the position
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
