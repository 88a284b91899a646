"""Texts of traces on their way from the writer into the index: what is here need not be read back.

While much arrives they wait, so that the writer has its time for spans; see `Behind`.
"""

from __future__ import annotations

import time
from itertools import chain, takewhile
from typing import NamedTuple

from spanwise.collector.stores.sqlite._spill import BLOCK, BLOCKS, Place, Spill
from spanwise.collector.stores.sqlite._texts import CHARACTERS

BYTES = BLOCKS * BLOCK
OVERHEAD, PART_OVERHEAD = 600, 150  # bytes in memory of a trace and of each of its texts, which are elsewhere
MEMORY = 32 * 1024 * 1024  # of them


class Taken(NamedTuple):
    """The text of a trace, the row of its last span, and bytes of its payloads."""

    text: str
    upto: int
    size: int


class Texts:
    """What came of one trace, and where its texts are: in UTF-8, joined by line breaks."""

    __slots__ = ("came", "characters", "parts", "size", "upto")

    def __init__(self, now: float) -> None:
        self.came = now
        self.parts: list[Place] = []
        self.characters = self.upto = self.size = 0

    @property
    def bytes(self) -> int:
        return sum(place.end - place.begin for place in self.parts)

    @property
    def memory(self) -> int:
        return OVERHEAD + PART_OVERHEAD * len(self.parts)


class Held:
    """Texts of traces all of whose spans came since the index looked last, `most` bytes at most.

    Whatever does not fit, is changed, or may have been rolled back is dropped, and read back from the file. The
    writer's thread changes it; others may ask how much is in it.
    """

    def __init__(self, folder: str, most: int = BYTES, memory: int = MEMORY) -> None:
        """What does not go into memory is in `folder`."""
        self._most, self._most_memory = most, memory
        self._spill = Spill(folder)
        self.bytes = self.memory = 0  # of texts; of what is known of them
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
        return self.bytes > self._most // 4 * 3 or self.memory > self._most_memory // 4 * 3

    def add(self, key: int, text: str | None, upto: int, size: int, *, new: bool) -> None:
        """Keep what a batch brought of a trace (see `Taken`): no text if not all of it is as it was sent. `new`: it is
        the first of the trace.
        """
        now = time.monotonic()
        if new:
            self._texts[key] = Texts(now)
            self.memory += OVERHEAD
        elif key not in self._texts:
            return
        one = self._texts[key]
        place = None if text is None or one.characters + len(text) > CHARACTERS else self._put(_encoded(text))
        if place is None:
            self.drop(key)
            return
        one.parts.append(place)
        one.characters, one.upto, one.size = one.characters + len(text or "") + 1, upto, one.size + size
        self._touched.pop(key, None)
        self._touched[key] = now
        self._unsettled.add(key)

    def _put(self, data: bytes) -> Place | None:
        if self.bytes + len(data) > self._most or self.memory + PART_OVERHEAD > self._most_memory:
            return None
        place = self._spill.put(data)
        if place is not None:
            self.bytes += len(data)
            self.memory += PART_OVERHEAD
        return place

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
        if (one := self._forget(key)) is not None:
            for place in one.parts:
                self._spill.drop(place)

    def take(self, key: int) -> Taken | None:
        """What is known of a trace, which is no longer here then; None if it was not, or cannot be read."""
        one = self._forget(key)
        if one is None:
            return None
        parts = [self._spill.take(place) for place in one.parts]
        known = [part for part in parts if part is not None]
        return Taken(_decoded(b"\n".join(known)), one.upto, one.size) if len(known) == len(parts) else None

    def _forget(self, key: int) -> Texts | None:
        self._unsettled.discard(key)
        self._touched.pop(key, None)
        one = self._texts.pop(key, None)
        if one is not None:
            self.bytes -= one.bytes
            self.memory -= one.memory
        return one

    def close(self) -> None:
        """Let go of all."""
        self._spill.close()

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
