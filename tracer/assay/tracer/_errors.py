"""Our own errors: logged once each, counted always, never raised into the traced application."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("assay.tracer")
counts: Counter[str] = Counter()
_logged: set[str] = set()
strict = False  # set by our own tests: raise instead


def note(where: str, error: BaseException) -> None:
    """Count an error of ours under `where`, and log it the first time that this kind of error happens there."""
    counts[where] += 1
    if strict:
        raise error
    _log(where, error)


def _log(where: str, error: BaseException) -> None:
    say_once(f"{where}:{type(error).__name__}", f"{where} failed: {describe(error)}")


def say_once(kind: str, text: str) -> None:
    """Log a warning, once per kind and process."""
    if kind not in _logged:
        _logged.add(kind)
        logger.warning("assay: %s (said once; see assay.tracer.stats())", text)


def user(where: str, error: BaseException) -> None:
    """Count, and log once, an error of a function that the user gave us: a redactor, a reducer."""
    counts[where] += 1
    _log(where, error)


def describe(error: BaseException) -> str:
    """`Type: message`, also when the error's own `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def reset() -> None:
    """Forget what was counted and logged (after a fork, and between tests)."""
    counts.clear()
    _logged.clear()
