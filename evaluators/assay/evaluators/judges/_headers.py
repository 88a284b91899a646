"""What the headers of endpoints say of their limits: OpenAI's, and what others have made of them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from assay.evaluators.judges._pace import Room
from assay.evaluators.protocol import retry_after

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
    resets = [reset for reset, left, _ in _limits(headers) if left is None or left < 1]
    return max(resets, default=None)


def room_of(headers: Mapping[str, str], tokens: int = 0) -> Room | None:
    """The narrowest of what is said of requests and of tokens, of which a call takes so many; None: nothing is said.

    Of what is used up by the reset all is given back: room for one call in the share of that time that a call has.
    """
    rooms = [
        Room(left / per_call, reset * min(1.0, per_call / max(limit - left, per_call)))
        for kind, per_call in (("requests", 1.0), ("tokens", float(max(1, tokens))))
        for reset, left, limit in _limits(headers, (kind,))
        if left is not None and limit is not None
    ]
    return min(rooms, default=None)


def _limits(
    headers: Mapping[str, str], kinds: tuple[str, ...] = ("requests", "tokens", "")
) -> list[tuple[float, float | None, float | None]]:
    """(seconds until the reset, what is left, what there is) of each kind whose reset is said."""
    found = []
    for kind in kinds:
        suffix = f"-{kind}" if kind else ""
        reset, left, limit = (
            _number(headers.get(f"x-ratelimit-{what}{suffix}"), what) for what in ("reset", "remaining", "limit")
        )
        if reset is not None:
            found.append((reset, left, limit))
    return found


def _number(text: str | None, what: str) -> float | None:
    if text is None:
        return None
    if what == "reset":
        return seconds(text)
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
