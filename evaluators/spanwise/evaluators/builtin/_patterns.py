"""Regular expressions with a time limit: a pattern that backtracks without end must not stop an experiment."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def search(pattern: str, text: str, *, flags: str = "", seconds: float = 1.0) -> str | None:
    """The first match of a regular expression, or None. `flags` are letters as in "(?i)".

    `seconds` is CPU time of the whole process, which is what the `regex` library counts: a busy machine does not make
    a search fail, other threads that are busy count. Raises `TimeoutError` when it takes longer, `ValueError` for a
    pattern that is none.
    """
    try:
        match = compiled(pattern, flags).search(text, timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(f"searching for {pattern!r} took more than {seconds} s of CPU time") from error
    return None if match is None else str(match.group())


def check_seconds(seconds: float) -> None:
    """Raises `ValueError` for a time limit that no search could keep."""
    if not seconds > 0:
        raise ValueError(f"seconds is a time limit, more than 0, not {seconds!r}")


@lru_cache(maxsize=1024)
def compiled(pattern: str, flags: str = "") -> Any:
    """A compiled pattern of the `regex` library, whose searches take a time limit. Raises `ValueError`."""
    import regex

    try:
        return regex.compile(f"(?{flags}){pattern}" if flags else pattern)
    except regex.error as error:  # its message names the position
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
