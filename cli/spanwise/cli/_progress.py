"""How far the migration of an older file is: one line that is written anew on a terminal, a few lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time

PLAIN_EVERY = 10.0  # seconds


class _Line(logging.Handler):
    """Shows each record whose `done` is a percentage."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._last = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        whole = getattr(record, "done", 100) >= 100
        try:
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{record.getMessage()}{chr(10) if whole else ''}")
            elif whole or time.monotonic() - self._last >= PLAIN_EVERY:
                self._last = time.monotonic()
                sys.stderr.write(record.getMessage() + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads: the migration goes on
            pass


def show_migrations() -> None:
    """Have the process say on stderr how far the migration of a file is."""
    log = logging.getLogger("spanwise.collector.migration")
    log.setLevel(logging.INFO)
    log.propagate = False
    if not any(isinstance(handler, _Line) for handler in log.handlers):
        log.addHandler(_Line())
