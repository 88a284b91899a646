"""Parsing of single filter values: times, durations, comparisons, feedback and metadata conditions."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

OPERATOR_ALTERNATIVES = "<=|>=|!=|<|>|="
COMPARISON_PATTERN = re.compile(rf"(?P<key>.*?)(?P<operator>{OPERATOR_ALTERNATIVES})(?P<value>.*)", re.DOTALL)
DURATION_PATTERN = re.compile(r"(\d+)\s*([smhdw])")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
BOOLEAN_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_time(text: str, now_ns: int | None = None, zone: tzinfo | None = None) -> int:
    """Return nanoseconds since the epoch from a number, a duration before now, or an ISO date or time.

    A number of nine or more digits is in nanoseconds. A time without a zone is in `zone`, by default that of the
    machine. Raises `ValueError` for any other text, and for times outside
    of 64-bit nanoseconds (after the year 2262).
    """
    if text.isdecimal() and len(text) > 8:  # eight digits are a date without dashes
        return _check_int64(int(text), text)
    if DURATION_PATTERN.fullmatch(text):
        return _check_int64((time.time_ns() if now_ns is None else now_ns) - parse_duration(text), text)
    try:
        moment = datetime.fromisoformat(text)
        return datetime_to_ns(moment.replace(tzinfo=zone) if moment.tzinfo is None else moment)
    except (ValueError, OverflowError, OSError):
        raise _invalid_time_error(text) from None


def datetime_to_ns(time: datetime) -> int:
    """Convert a `datetime` to nanoseconds, exact to the microsecond. One without a time zone is in local time.

    Raises `ValueError` for times outside of 64-bit nanoseconds.
    """
    return _check_int64(round(time.timestamp() * 1_000_000) * 1000, str(time))


def parse_time_or_ns(text: str) -> int:
    """Return nanoseconds since the epoch like `parse_time`, but read every whole number as nanoseconds.

    Raises `ValueError`.
    """
    return _check_int64(int(text), text) if text.removeprefix("-").isdecimal() else parse_time(text)


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as `30d`. Raises `ValueError`."""
    match = DURATION_PATTERN.fullmatch(text)
    if not match:
        raise ValueError(f"invalid duration {text!r}; write it like 90s, 30m, 1h, 7d or 2w")
    return int(match[1]) * UNIT_SECONDS[match[2]] * 1_000_000_000


YES_AND_NO: Mapping[float, str] = {1.0: "yes", 0.0: "no"}  # names of scores that pages show, and conditions accept


def parse_bound(text: str) -> float | str:
    """Parse the right side of a feedback condition: a number, `true` and `false` as 1 and 0, any other text as a
    label. The labels "yes" and "no" are also compared with the scores 1 and 0.
    """
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        return text


def parse_comparison(name: str, text: str) -> tuple[str, float]:
    """Parse a comparison such as `">=200"`. A number without an operator means equality.

    Raises `ValueError` for a malformed comparison, and for a time without an operator, because no measured time
    equals a number to the nanosecond.
    """
    bare = text[:1] not in "<>=!"
    _, operator, number = _split_comparison(name, "=" + text if bare else text)
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{name}={number!r} is not a number") from None
    return equality_comparison(name, value) if bare else (operator, value)


def equality_comparison(name: str, value: float) -> tuple[str, float]:
    """Return the comparison for a number without an operator: equality. Raises `ValueError` for a measured time."""
    if name in ("latency_ms", "time_to_first_token_ms"):
        raise ValueError(f"no trace takes {value:g} ms to the nanosecond; write {name}>={value:g}, or <, or ==")
    return "=", float(value)


def parse_feedback(text: str) -> tuple[str, str, float | str]:
    """Parse a feedback condition such as `"concise<0.5"`. Raises `ValueError`."""
    key, operator, value = _split_comparison("feedback", text)
    return key, operator, parse_bound(value)


def parse_metadata(text: str) -> dict[str, str]:
    """Parse `"tenant=t1"` or `"tenant:t1"`; the first `=` or `:` ends the key. Raises `ValueError`."""
    match = re.fullmatch("([^:=]*)[:=](.*)", text, re.DOTALL)
    if not match:
        raise ValueError(f"metadata {text!r} is not a key with a value; write it like tenant=t1")
    return {match[1].strip(): match[2].strip()}


def parse_bool(text: str) -> bool:
    """Parse a boolean word such as `"true"` or `"no"`. Raises `ValueError`."""
    if text.lower() not in BOOLEAN_WORDS:
        raise ValueError(f"complete must be true or false, got {text!r}")
    return BOOLEAN_WORDS[text.lower()]


def metadata_text(value: Any) -> str:
    """Return a metadata value as the text that filter conditions compare; booleans become `true` and `false`, as in
    JSON.
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split_comparison(name: str, text: str) -> tuple[str, str, str]:
    match = COMPARISON_PATTERN.fullmatch(text)
    if not match or (name == "feedback" and not match["key"]):
        example = "concise<0.5" if name == "feedback" else ">=100"
        raise ValueError(f"{name}={text!r} is not a comparison; write it like {name}={example}")
    return match["key"], match["operator"], match["value"]


def _check_int64(time_ns: int, text: str) -> int:
    if not -(2**63) <= time_ns < 2**63:
        raise _invalid_time_error(text)
    return time_ns


def _invalid_time_error(text: str) -> ValueError:
    return ValueError(f"invalid time {text!r}; write it like 1h, 7d, 2026-01-31 or 2026-01-31T12:00")
