"""What has become of all spans of this process that go to one address: its own count, from their start on."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource

from spanwise.tracer._span import Clock, book_open
from spanwise.tracer._spool import held

LONG_NS = 1_000_000_000  # from then on it is told that a run goes on
_MOST_AT_ONCE = 1_000
_MOST_YOUNG = 50_000  # beyond: spans that nobody ends


class Account:
    """Counts of spans. Starts and ends are booked by local root, so that a call pays for none of it (see `book`)."""

    def __init__(self) -> None:
        self.started = self.open = self.delivered = 0
        self.dropped: Counter[str] = Counter()  # by reason
        self.folders: set[Path | None] = set()  # of the spool
        self.resource: Resource | None = None
        self.young: set[Any] = set()  # open spans of which it was not told yet that they go on

    def due(self) -> list[Any]:
        """Spans that have been open for long, the oldest first; not more than a request should hold."""
        young, latest = tuple(self.young), Clock.now() - LONG_NS
        if len(young) > _MOST_YOUNG:
            self.young.clear()
        due = [span for span in young if span.end_time is None and (span.start_time or 0) <= latest]
        return sorted(due, key=lambda span: span.start_time or 0)[:_MOST_AT_ONCE]

    def told(self, spans: list[Any]) -> None:
        """Of these nothing more is to be told before they end."""
        self.young.difference_update(spans)

    def report(self, pending: int, dropped: Counter[str]) -> dict[str, Any]:
        """How many were started, and where they are; `dropped` beside those of its own."""
        book_open(self)
        return {
            "started": self.started,
            "open": self.open,
            "delivered": self.delivered,
            "spilled": sum(map(held, self.folders)),
            "pending": pending,
            "dropped": dict(self.dropped + dropped),
        }


_accounts: weakref.WeakValueDictionary[str, Account] = weakref.WeakValueDictionary()


def account_of(url: str) -> Account:
    """The account of an address, one for all set-ups of this process that deliver there."""
    account = _accounts.get(url)
    if account is None:
        account = _accounts[url] = Account()
    return account


def forget() -> None:
    """Begin anew, in a forked child."""
    _accounts.clear()
