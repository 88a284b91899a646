"""Texts of traces on their way from the writer into the index: what is here need not be read back."""

from __future__ import annotations

from sys import getsizeof
from typing import NamedTuple

from assay.collector.stores.sqlite._texts import CHARACTERS

BYTES = 32 * 1024 * 1024
OVERHEAD = 400  # bytes of a trace besides its texts


class Taken(NamedTuple):
    """The text of a trace, the row of its last span, and bytes of its payloads."""

    text: str
    upto: int
    size: int


class Held:
    """Texts of traces all of whose spans came since the index looked last, `most` bytes at most.

    Whatever does not fit, is changed, or may have been rolled back is dropped, and read back from the file. The
    writer's thread changes it; others may ask what is in it.
    """

    def __init__(self, most: int = BYTES) -> None:
        self._most, self.bytes = most, 0
        self._parts: dict[int, list[str]] = {}
        self._upto: dict[int, tuple[int, int]] = {}
        self._unsettled: set[int] = set()  # changed by transactions that may not be durable

    def __contains__(self, key: int) -> bool:
        return key in self._parts

    @property
    def is_filling(self) -> bool:
        """Whether the index had better take something."""
        return self.bytes > self._most // 2

    def characters(self, key: int) -> int:
        """Of a trace, those between its parts included; 0 for one that is not here."""
        return sum(len(part) + 1 for part in self._parts.get(key, ()))

    def add(self, key: int, text: str | None, upto: int, size: int, *, new: bool) -> None:
        """Keep what a batch brought of a trace (see `Taken`): no text if not all of it is as it was sent. `new`: it is
        the first of the trace.
        """
        if new:
            self._parts[key] = []
            self.bytes += OVERHEAD
        elif key not in self._parts:
            return
        if text is None or self.characters(key) + len(text) > CHARACTERS or self.bytes + getsizeof(text) > self._most:
            self.drop(key)
            return
        self._parts[key].append(text)
        self._upto[key] = upto, self._upto.get(key, (0, 0))[1] + size
        self.bytes += getsizeof(text)
        self._unsettled.add(key)

    def drop(self, key: int) -> None:
        """Leave a trace to be read back."""
        self.take(key)

    def take(self, key: int) -> Taken | None:
        """What is known of a trace, which is no longer here then; None if it was not."""
        self._unsettled.discard(key)
        parts = self._parts.pop(key, None)
        if parts is None:
            return None
        self.bytes -= OVERHEAD + sum(map(getsizeof, parts))
        return Taken("\n".join(parts), *self._upto.pop(key, (0, 0)))

    def settle(self) -> None:
        """All that is here is durable now."""
        self._unsettled.clear()

    def undo(self) -> None:
        """Drop what may not be durable."""
        for key in list(self._unsettled):
            self.drop(key)
