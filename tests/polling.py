"""Waiting in tests for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until `condition` returns something true, and return it; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        time.sleep(0.01)
    return found
