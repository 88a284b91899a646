"""How much one request may ask for, and bring, by number."""

from __future__ import annotations

from typing import Any

from spanwise.collector._verbs import LONGEST, PAGE
from spanwise.collector.errors import Refused, TooLarge


def check_limit(limit: Any, most: int) -> None:
    """Raises `Refused` for a `limit` beyond what one answer holds."""
    if isinstance(limit, int) and limit > most:
        way = "go on with the cursor in `next`" if most == PAGE else "ask for fewer, or with more conditions"
        raise Refused(f"limit is {limit:,}, at most {most:,} at once: {way}")


def few(count: int, most: int = LONGEST) -> None:
    """Raises `TooLarge` for more records than one request may bring."""
    if count > most:
        raise TooLarge(f"{count:,} records in one request, at most {most:,}: send fewer at once")
