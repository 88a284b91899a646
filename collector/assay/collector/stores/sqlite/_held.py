"""Texts of traces on their way from the writer into the index: what is here need not be read back."""

from __future__ import annotations

import time
from itertools import chain, takewhile
from typing import NamedTuple

from assay.collector.stores.sqlite._texts import CHARACTERS

BYTES = 16 * 1024 * 1024
OVERHEAD = 600  # bytes of a trace besides its texts
PART_OVERHEAD = 50  # of each text


class Taken(NamedTuple):
    """The text of a trace, the row of its last span, and bytes of its payloads."""

    text: str
    upto: int
    size: int


class Texts:
    """What came of one trace: kept as UTF-8, as one character may make each other four bytes of a text in memory."""

    __slots__ = ("came", "characters", "parts", "size", "upto")

    def __init__(self, now: float) -> None:
        self.came = now
        self.parts: list[bytes] = []
        self.characters = self.upto = self.size = 0

    @property
    def bytes(self) -> int:
        return OVERHEAD + sum(map(len, self.parts)) + PART_OVERHEAD * len(self.parts)


class Held:
    """Texts of traces all of whose spans came since the index looked last, `most` bytes at most.

    Whatever does not fit, is changed, or may have been rolled back is dropped, and read back from the file. The
    writer's thread changes it; others may ask how much is in it.
    """

    def __init__(self, most: int = BYTES) -> None:
        self._most, self.bytes = most, 0
        self._texts: dict[int, Texts] = {}  # in the order in which they came
        self._touched: dict[int, float] = {}  # in the order in which something was added last
        self._unsettled: set[int] = set()  # changed by transactions that may not be durable

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def is_filling(self) -> bool:
        """Whether the index had better take something."""
        return self.bytes > self._most // 2

    def add(self, key: int, text: str | None, upto: int, size: int, *, new: bool) -> None:
        """Keep what a batch brought of a trace (see `Taken`): no text if not all of it is as it was sent. `new`: it is
        the first of the trace.
        """
        now = time.monotonic()
        if new:
            self._texts[key] = Texts(now)
            self.bytes += OVERHEAD
        elif key not in self._texts:
            return
        one = self._texts[key]
        if text is None or one.characters + len(text) > CHARACTERS or not self._fits(data := _encoded(text)):
            self.drop(key)
            return
        one.parts.append(data)
        one.characters, one.upto, one.size = one.characters + len(text) + 1, upto, one.size + size
        self.bytes += len(data) + PART_OVERHEAD
        self._touched.pop(key, None)
        self._touched[key] = now
        self._unsettled.add(key)

    def _fits(self, data: bytes) -> bool:
        return self.bytes + len(data) + PART_OVERHEAD <= self._most

    def due(self, characters: int, settled: float, overdue: float) -> list[int]:
        """Traces to which nothing has been added since `settled`, or that came before `overdue` (both monotonic); if
        much is here, whichever rest the longest. So many characters of them, and one trace if it has more.
        """
        full = self.is_filling
        resting = takewhile(lambda key: full or self._touched[key] < settled, self._touched)
        old = takewhile(lambda key: self._texts[key].came < overdue, self._texts)
        found: dict[int, None] = {}
        for key in chain(resting, old):
            characters -= 0 if key in found else self._texts[key].characters
            if found and characters < 0:
                break
            found[key] = None
        return sorted(found)

    def drop(self, key: int) -> None:
        """Leave a trace to be read back."""
        self.take(key)

    def take(self, key: int) -> Taken | None:
        """What is known of a trace, which is no longer here then; None if it was not."""
        self._unsettled.discard(key)
        self._touched.pop(key, None)
        one = self._texts.pop(key, None)
        if one is None:
            return None
        self.bytes -= one.bytes
        return Taken(_decoded(b"\n".join(one.parts)), one.upto, one.size)

    def settle(self) -> None:
        """All that is here is durable now."""
        self._unsettled.clear()

    def undo(self) -> None:
        """Drop what may not be durable."""
        for key in list(self._unsettled):
            self.drop(key)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
