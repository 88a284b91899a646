"""Traces in lots of so many bytes at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LOT = 32_000_000  # bytes that are read at once
UNKNOWN = 2_000_000  # bytes that a trace is taken to have whose size is not known here
MANY = 500  # traces


def lots(sizes: Iterable[tuple[str, int | None]]) -> Iterator[list[str]]:
    """Ids by lots; one that is larger than a lot is one of its own."""
    lot: list[str] = []
    room = LOT
    for id, size in sizes:
        weight = UNKNOWN if size is None else size
        if lot and (weight > room or len(lot) >= MANY):
            yield lot
            lot, room = [], LOT
        lot.append(id)
        room -= weight
    if lot:
        yield lot
