"""Errors of a dialect cost what it would have read, never the span: they are counted and logged here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

log = logging.getLogger("spanwise.collector")

# Is told which dialect failed, and how; must not raise, except in tests
Fault: TypeAlias = Callable[[str, Exception], None]

_logged: set[tuple[str, type[Exception]]] = set()


def name_of(dialect: Callable[..., Any]) -> str:
    """What /metrics and the log call a dialect."""
    return getattr(dialect, "__name__", type(dialect).__name__)


def log_fault(dialect: str, error: Exception) -> None:
    """Log that something was read without a dialect, as that failed."""
    log_once(f"dialect {dialect!r} failed on what was sent, which is read without it", error)


def log_once(message: str, error: Exception) -> None:
    """Log an error of ours with its traceback, once per message and type of error: every span may bring the next."""
    if (message, type(error)) not in _logged:
        _logged.add((message, type(error)))
        log.error(message, exc_info=error)
