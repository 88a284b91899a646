"""Wrong keys: how many an address may try, and one line in the log for many of them."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from spanwise.collector.hosts import network

BURST, EVERY = 10, 1.0  # wrong keys at once, and seconds for each one more
ADDRESSES = 10_000  # that are remembered: those that were heard of last
QUIET = 60.0  # seconds between two lines about one address
logger = logging.getLogger("spanwise.collector")


@dataclass(slots=True)
class _Tries:
    """Of one address: tries that are left as of a time, and wrong keys that no line has told."""

    left: float
    at: float
    untold: int = 0
    told_at: float = float("-inf")


class Tries:
    """Counts wrong keys by address. A key that was right from an address goes on from there, whoever tries beside it.

    Behind a proxy all senders share an address: there the proxy has to limit them.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._good: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait(self, address: str, key: bytes) -> float:
        """Seconds until this address may try this key (its hash): 0 for now."""
        name = network(address)
        tries = self._tries.get(name)
        if tries is None or (name, key) in self._good:
            return 0.0
        left = self._left(tries)
        return 0.0 if left >= 1 else (1 - left) * EVERY

    def right(self, address: str, key: bytes) -> None:
        """Remember that a key was right."""
        good = network(address), key
        self._good[good] = None
        self._good.move_to_end(good)
        if len(self._good) > ADDRESSES:
            self._good.popitem(last=False)

    def wrong(self, address: str) -> None:
        """Count a wrong key, and say so now and then."""
        name, now = network(address), self._now()
        tries = self._tries.setdefault(name, _Tries(BURST, now))
        self._tries.move_to_end(name)
        tries.left, tries.at = max(0.0, self._left(tries) - 1), now
        tries.untold += 1
        if now - tries.told_at >= QUIET:
            logger.warning("%d wrong API key(s) from %s", tries.untold, name)
            tries.untold, tries.told_at = 0, now
        if len(self._tries) > ADDRESSES:
            self._tries.popitem(last=False)

    def _left(self, tries: _Tries) -> float:
        return min(BURST, tries.left + (self._now() - tries.at) / EVERY)
