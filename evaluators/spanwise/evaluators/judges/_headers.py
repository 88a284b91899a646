"""How long an endpoint that refuses a call asks to be left alone: headers of OpenAI, and of others like it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from spanwise.evaluators.protocol import retry_after

_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EPOCH = 1e9  # above that a number of seconds is a date


def seconds(text: str) -> float | None:
    """Seconds of "6m0s", "20ms", "1.5", or of a date since 1970; None for anything else."""
    text = text.strip().lower()
    try:
        number = float(text)
    except ValueError:
        parts = _PARTS.findall(text)
        if not parts or "".join(map("".join, parts)) != text:
            return None
        return sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    if number != number or number < 0:
        return None
    return max(0.0, number - time.time()) if number > _EPOCH else number


def wait_asked(error: BaseException, headers: Mapping[str, str]) -> float | None:
    """Seconds that a refusal asks to wait: `retry-after-ms`, `Retry-After`, else the reset of what is used up."""
    in_ms = seconds(headers.get("retry-after-ms", ""))
    if in_ms is not None:
        return in_ms / 1000
    asked = retry_after(error)
    return asked if asked is not None else _reset(headers)


def _reset(headers: Mapping[str, str]) -> float | None:
    """Return when the last of the limits that are used up is reset."""
    resets = []
    for suffix in ("-requests", "-tokens", ""):
        reset = seconds(headers.get(f"x-ratelimit-reset{suffix}", ""))
        left = _number(headers.get(f"x-ratelimit-remaining{suffix}"))
        if reset is not None and (left is None or left < 1):
            resets.append(reset)
    return max(resets, default=None)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
