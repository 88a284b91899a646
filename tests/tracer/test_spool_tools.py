"""What others may do with the spool: look, send, remove, without taking it from a process that is at it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import disk_spool
from spanwise.tracer.export.disk_spool import Spool, describe_owner, get_spool_folder
from spanwise.tracer.export.span_encoding import LOGS_PATH, TRACES_PATH

from .conftest import Sink


def left_by(url: str, *bodies: tuple[str, bytes, int], project: str = "p", rests: bool = True) -> Spool:
    """What a process has left for an address; one that does not rest is still at it."""
    settings = Settings(url=url, project=project, spill_dir=disk_spool.get_spool_directory())
    made = Spool(get_spool_folder(settings), owner=describe_owner(settings))
    for body in bodies:
        made.append(*body)
    if rests:
        made.close_segment()
    return made


def test_what_waits_is_listed_by_address_and_project() -> None:
    left_by("http://one:1", (TRACES_PATH, b"12345", 3), (LOGS_PATH, b"6", 1))
    left_by("http://two:2", (TRACES_PATH, b"7", 2), project="q", rests=False)
    first, second = disk_spool.list_spool_folders()
    assert (first.url, first.project, first.items) == ("http://one:1", "p", 4)
    assert (second.url, second.project, second.items) == ("http://two:2", "q", 2)
    assert list(disk_spool.read_spooled_spans(first.folder)) == [b"12345"]
    assert (first.bytes > 6, first.oldest_ns < second.oldest_ns) == (True, True)


def test_what_is_none_of_ours_is_left_out(tmp_path: Path) -> None:
    nameless = left_by("http://one:1", (TRACES_PATH, b"1", 1))
    (nameless.folder / "about.json").write_text("[broken")  # type: ignore[operator]
    place = disk_spool.get_spool_directory() or tmp_path
    (place / "file").touch()
    (place / "empty").mkdir()
    (place / "empty" / f"{1:020d}-1-1.spool").write_bytes(b"not ours at all, and longer than a head")
    assert [(one.url, one.items) for one in disk_spool.list_spool_folders()] == [("", 1)]
    assert disk_spool.list_spool_folders(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://127.0.0.1:4318", "http://localhost:4318/", True),
        ("http://[::1]:4318", "http://0.0.0.0:4318", True),
        ("http://host", "http://HOST:80", True),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4319", False),
        ("http://127.0.0.1:4318", "http://10.0.0.1:4318", False),
        ("http://host/a", "http://host/b", False),
        ("http://host", "https://host", False),
        ("http://host:x", "http://host", False),
    ],
)
def test_one_place_has_several_addresses(one: str, other: str, same: bool) -> None:
    assert disk_spool.is_same_address(one, other) is same


def test_what_waits_is_sent_once(sink: Sink) -> None:
    left_by(sink.url, (TRACES_PATH, b"", 3), (LOGS_PATH, b"", 2))
    [waiting] = disk_spool.list_spool_folders()
    assert disk_spool.send_spool_folder(waiting) == disk_spool.SendResult(kept=5, lost={}, left=0)
    assert [path for path, _, _ in sink.requests] == [TRACES_PATH, LOGS_PATH]
    assert disk_spool.list_spool_folders() == []


def test_what_a_collector_is_away_for_stays_and_what_it_refuses_is_lost(sink: Sink) -> None:
    left_by(sink.url, (TRACES_PATH, b"", 3))
    left_by(sink.url, (TRACES_PATH, b"", 2), project="q")
    first, second = disk_spool.list_spool_folders()
    statuses = iter([503, 400])
    sink.answer = lambda path, body: (next(statuses), {}, b"")
    assert disk_spool.send_spool_folder(first) == disk_spool.SendResult(
        kept=0, lost={}, left=3, why="HTTP 503 Service Unavailable"
    )
    assert disk_spool.send_spool_folder(second) == disk_spool.SendResult(kept=0, lost={"http_400": 2}, left=0)


def test_the_key_goes_where_the_environment_says_and_where_it_is_told_to(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANWISE_API_KEY", "secret")
    monkeypatch.setenv("SPANWISE_URL", "http://elsewhere:1")
    left_by(sink.url, (TRACES_PATH, b"", 1))
    [waiting] = disk_spool.list_spool_folders()
    disk_spool.send_spool_folder(waiting)
    left_by(sink.url, (TRACES_PATH, b"", 1))
    disk_spool.send_spool_folder(waiting, with_key=True)
    left_by(sink.url, (TRACES_PATH, b"", 1))
    monkeypatch.setenv("SPANWISE_URL", sink.url)
    disk_spool.send_spool_folder(waiting)
    keys = [headers.get("Authorization") for _, headers, _ in sink.requests]
    assert keys == [None, "Bearer secret", "Bearer secret"]


def test_what_a_process_is_at_is_neither_sent_nor_removed(sink: Sink) -> None:
    mine = left_by(sink.url, (TRACES_PATH, b"", 3), rests=False)
    [waiting] = disk_spool.list_spool_folders()
    assert disk_spool.send_spool_folder(waiting) == disk_spool.SendResult(kept=0, lost={}, left=3)
    assert (disk_spool.clear_spool_folder(waiting), len(disk_spool.list_spool_folders())) == (0, 1)
    mine.close_segment()
    assert (disk_spool.clear_spool_folder(waiting), disk_spool.list_spool_folders()) == (3, [])


def test_a_folder_that_goes_meanwhile_is_no_error(sink: Sink) -> None:
    left_by(sink.url, (TRACES_PATH, b"", 3))
    [waiting] = disk_spool.list_spool_folders()
    for path in disk_spool.list_segments(waiting.folder):
        os.unlink(path)
    assert disk_spool.send_spool_folder(waiting) == disk_spool.SendResult(kept=0, lost={}, left=0)
    assert (
        disk_spool.clear_spool_folder(waiting),
        list(disk_spool.read_spooled_spans(waiting.folder)),
    ) == (0, [])
