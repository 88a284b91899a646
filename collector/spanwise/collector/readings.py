"""One value of a condition as people write it: the texts of query strings, shells, forms and Python."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

OPERATOR = "<=|>=|!=|<|>|="
COMPARED = re.compile(rf"(?P<key>.*?)(?P<operator>{OPERATOR})(?P<value>.*)", re.DOTALL)
DURATION = re.compile(r"(\d+)\s*([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def moment(text: str, now_ns: int | None = None) -> int:
    """Nanoseconds since the epoch: nine digits or more as they are, a duration ago, or an ISO date or time.

    Raises `ValueError`, also for what is too far away for a signed number of 64 bits (the year 2262).
    """
    if text.isdecimal() and len(text) > 8:  # eight digits are a date without its dashes
        return _bounded(int(text), text)
    if DURATION.fullmatch(text):
        return _bounded((time.time_ns() if now_ns is None else now_ns) - duration(text), text)
    try:
        return nanoseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError, OSError):
        raise _no_time(text) from None


def nanoseconds(time: datetime) -> int:
    """A time of Python's, to the microsecond; without a time zone it is of this machine's. Raises `ValueError`."""
    return _bounded(round(time.timestamp() * 1_000_000) * 1000, str(time))


def whole_moment(text: str) -> int:
    """As `moment`; any whole number is one of nanoseconds. Raises `ValueError`."""
    return _bounded(int(text), text) if text.removeprefix("-").isdecimal() else moment(text)


def duration(text: str) -> int:
    """Nanoseconds of a duration such as `30d`. Raises `ValueError`."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no duration; write 90s, 30m, 1h, 7d or 2w")
    return int(match[1]) * SECONDS[match[2]] * 1_000_000_000


def bound(text: str) -> float | str:
    """What feedback is compared with: a number, true and false as 1 and 0, else a label."""
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        return text


def comparison(name: str, text: str) -> tuple[str, float]:
    """`">=200"`, or a number alone for one that is equal; which latency, to the nanosecond, is not. Raises
    `ValueError`.
    """
    bare = text[:1] not in "<>=!"
    _, operator, number = _split(name, "=" + text if bare else text)
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{name}={number!r} is not a number") from None
    return exactly(name, value) if bare else (operator, value)


def exactly(name: str, value: float) -> tuple[str, float]:
    """The comparison that a number alone says. Raises `ValueError` for a latency."""
    if name == "latency_ms":
        raise ValueError(f"no trace takes {value:g} ms to the nanosecond; write latency_ms>={value:g}, or <, or ==")
    return "=", float(value)


def feedback(text: str) -> tuple[str, str, float | str]:
    """`"concise<0.5"`. Raises `ValueError`."""
    key, operator, value = _split("feedback", text)
    return key, operator, bound(value)


def metadata(text: str) -> dict[str, str]:
    """`"tenant=t1"` or `"tenant:t1"`: the first of both marks ends the key. Raises `ValueError`."""
    match = re.fullmatch("([^:=]*)[:=](.*)", text, re.DOTALL)
    if not match:
        raise ValueError(f"metadata {text!r} is no pair; write it like tenant=t1")
    return {match[1].strip(): match[2].strip()}


def truth(text: str) -> bool:
    """`"true"`, `"no"`. Raises `ValueError`."""
    if text.lower() not in TRUTHS:
        raise ValueError(f"complete={text!r} is neither true nor false")
    return TRUTHS[text.lower()]


def as_text(value: Any) -> str:
    """A value of metadata as it is compared: as JSON says it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(name: str, text: str) -> tuple[str, str, str]:
    match = COMPARED.fullmatch(text)
    if not match or (name == "feedback" and not match["key"]):
        example = "concise<0.5" if name == "feedback" else ">=100"
        raise ValueError(f"{name}={text!r} holds no comparison, such as {name}={example}")
    return match["key"], match["operator"], match["value"]


def _bounded(time_ns: int, text: str) -> int:
    if not -(2**63) <= time_ns < 2**63:
        raise _no_time(text)
    return time_ns


def _no_time(text: str) -> ValueError:
    return ValueError(f"{text!r} is no time; write 1h, 7d, 2026-01-31 or 2026-01-31T12:00")
