"""Bytes put aside: given back as they were, in memory and beyond it, whatever the disk says, in bounded room."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spanwise.collector.stores.sqlite.search import searchable_text
from spanwise.collector.stores.sqlite.search.searchable_text import SpillFile, SpillPosition

QUARTER = searchable_text.BLOCK_BYTES // 4
MUCH = 4 * (searchable_text.MEMORY_BLOCKS + 3)  # pieces of a quarter, with which some blocks are in the file


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[SpillFile]:
    made = SpillFile(str(tmp_path))
    yield made
    made.close()


def piece(number: int, size: int = QUARTER) -> bytes:
    return (b"%08d" % number) * (size // 8)


def full(spill: SpillFile, count: int) -> list[SpillPosition]:
    places = [spill.put(piece(number)) for number in range(count)]
    assert None not in places
    return [place for place in places if place]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_was_put_is_taken_in_any_order(spill: SpillFile) -> None:
    places = dict(enumerate(full(spill, MUCH)))
    order = list(places)
    random.Random(1).shuffle(order)
    assert [spill.take(places[number]) for number in order] == [piece(number) for number in order]


def test_a_little_makes_no_file_and_much_makes_one_without_a_name(spill: SpillFile, tmp_path: Path) -> None:
    before = open_files()
    some = full(spill, 4 * searchable_text.MEMORY_BLOCKS)
    assert open_files() == before
    more = full(spill, MUCH)
    assert (open_files(), os.listdir(tmp_path)) == (before + 1, [])
    for place in (*some, *more):
        spill.drop(place)
    assert open_files() == before


def test_room_is_used_again_in_time_and_space(spill: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searchable_text, "MAX_BLOCKS", searchable_text.MEMORY_BLOCKS + 4)
    places = full(spill, MUCH)
    for number in range(10 * MUCH):
        assert spill.take(places.pop(0)) == piece(number)
        place = spill.put(piece(MUCH + number))
        assert place is not None
        assert place.block < searchable_text.MAX_BLOCKS
        places.append(place)


def test_more_than_may_be_put_aside_is_refused_until_some_is_taken(
    spill: SpillFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searchable_text, "MAX_BLOCKS", 2)
    places = full(spill, 8)
    assert spill.put(b"more") is None
    for place in places[:4]:
        spill.drop(place)
    assert spill.put(b"more") is not None
    assert [spill.take(place) for place in places[4:]] == [piece(number) for number in range(4, 8)]


def test_a_disk_that_is_nearly_full_gets_nothing(spill: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    little = SimpleNamespace(f_bavail=searchable_text.SPARE_DISK_BYTES // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda _: little)
    places = full(spill, 4 * (searchable_text.MEMORY_BLOCKS + 1))
    assert spill.put(piece(0)) is None
    assert [spill.take(place) for place in places] == [piece(number) for number in range(len(places))]
    assert spill.put(piece(0)) is not None


def test_a_folder_where_nothing_can_be_made_leaves_what_memory_holds(tmp_path: Path) -> None:
    spill = SpillFile(str(tmp_path / "gone"))
    places = full(spill, 4 * (searchable_text.MEMORY_BLOCKS + 1))
    assert spill.put(piece(0)) is None
    assert [spill.take(place) for place in places] == [piece(number) for number in range(len(places))]


def test_what_the_disk_does_not_give_back_is_none(spill: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    places = full(spill, MUCH)
    monkeypatch.setattr(os, "pread", lambda *_: b"short")
    taken = [spill.take(place) for place in places]
    assert None in taken
    assert [one for one in taken if one] == [piece(number) for number, one in enumerate(taken) if one]


def test_nothing_longer_than_a_block_is_taken(spill: SpillFile) -> None:
    assert spill.put(bytes(searchable_text.BLOCK_BYTES + 1)) is None
    place = spill.put(bytes(searchable_text.BLOCK_BYTES))
    assert place is not None
    assert spill.take(place) == bytes(searchable_text.BLOCK_BYTES)
