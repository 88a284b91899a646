"""Which targets may have a row already."""

from __future__ import annotations

from collections import OrderedDict

from spanwise.collector.records import Head

MOST = 50_000
MARGIN = 60_000_000_000  # by which the clocks of senders may differ from the store's


class Known:
    """Of which targets it has to be told that they are out by now: those that may have been in before.

    Of those that this process has let in itself it knows, up to a bound; of those that were there before it began to
    decide (`before_ns`, 0 where nobody did) it has to suppose so. Of most of the traffic it is sure, which saves a
    write for each trace that is not sampled.
    """

    def __init__(self, before_ns: int) -> None:
        self._before_ns = before_ns + MARGIN if before_ns else 0
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, key: str, head: Head) -> None:
        """It gets a row."""
        self._ids[key] = None
        self._ids.move_to_end(key)
        if len(self._ids) > MOST:
            self._ids.popitem(last=False)
            self._before_ns = max(self._before_ns, head.start_ns)

    def may_have_row(self, key: str, head: Head) -> bool:
        """False only where there can be none."""
        return key in self._ids or head.start_ns <= self._before_ns or head.change != head.runs_change
