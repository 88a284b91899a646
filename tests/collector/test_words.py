"""The text index: the same from memory and from the file, bounded while traces grow, whatever happens in between."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collector.conformance_traces import eventually
from collector.making import child, run
from looped_cases import loop_over
from spanwise.collector.records import Retention, Run
from spanwise.collector.stores.search_terms import add_leaves, iterate_leaves
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteStore, encode
from spanwise.collector.stores.sqlite.database.group_commit import WriteJob
from spanwise.collector.stores.sqlite.maintenance import background_jobs
from spanwise.collector.stores.sqlite.maintenance.background_jobs import BURST_FACTOR
from spanwise.collector.stores.sqlite.search import fulltext_index, searchable_text
from spanwise.collector.stores.sqlite.search.fulltext_index import INSERT_MULTIPLE, MIN_TRANSACTION_CHARACTERS
from spanwise.collector.stores.sqlite.search.searchable_text import (
    LEAF_SEPARATOR,
    MAX_BUFFER_BYTES,
    MAX_BUFFER_MEMORY,
    MAX_TRACE_CHARACTERS,
    TextBuffer,
)
from spanwise.collector.stores.table_rows import loads


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@contextmanager
def waiting(store: SQLiteStore) -> Iterator[DatabaseFile]:
    """Nothing is indexed meanwhile."""
    with store._behind._lock:
        yield store._behind._file


def indexed(store: SQLiteStore) -> set[tuple[str, str]]:
    """All words with the trace that each is in, once nothing waits."""
    assert eventually(lambda: store.health()["text_index_waiting_traces"], 0)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, 'instance')")
        sql = (
            "SELECT v.term, t.trace_id FROM temp.vocabulary v LEFT JOIN traces t ON t.id = v.doc"
            " WHERE v.term <> char(0xe000)"  # separates texts
        )
        return set(db.execute(sql).fetchall())


def words(store: SQLiteStore) -> str:
    return " ".join(sorted({word for word, _ in indexed(store)}))


class Colour(Enum):
    RED = "scarlet"


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else "bottom"


ODD: list[Any] = [
    "plain text",
    {"a": ["b", ("c", 1)], "d": None, "e": True, "f": 2.5},
    {1: "one", "1": "uno"},
    [float("nan"), float("inf"), -0.0, 1e16, 1e-7, 2**63, 2**64, -(2**70)],
    "lone \ud800 surrogate",
    {"bad \udc00": "key", "deep": nested(300)},
    [datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, {Colour.RED: "crimson"}, {3, 4}, object],
    "nul \x00 inside",
    "",
]


@loop_over("value", ODD, ids=lambda value: ascii(value)[:20])
def test_words_of_a_batch_are_those_of_its_payloads(value: Any) -> None:
    batch = encode([run(inputs=value, outputs=[value, "end"])])
    stored = loads(batch.payloads[0])
    [text] = batch.texts.values()
    assert text == LEAF_SEPARATOR.join(dict.fromkeys(iterate_leaves((stored["inputs"], stored["outputs"]))))


def test_a_plain_payload_is_not_parsed_for_its_words() -> None:
    found = {"z": None}
    add_leaves(found, {"a": ["x", 1, None, True, 2.0]}, "y", b"no JSON")
    add_leaves(found, "x", None, b"no JSON")
    add_leaves(found, "u", "v", b"no JSON")
    assert [*found] == ["z", "x", "1", "2.0", "y", "u", "v"]


def some() -> list[Run]:
    roots = [run(inputs=value, outputs=f"answer {number}") for number, value in enumerate(ODD)]
    return [one for root in roots for one in (root, child(root, inputs="shared words", outputs=root.inputs))]


@pytest.mark.process
def test_from_memory_comes_the_same_index_as_from_the_file(tmp_path: Path) -> None:
    runs, found = some(), []
    for most in (0, 2**20):
        with SQLiteStore(tmp_path / f"{most}.db") as store:
            store._behind._file.appender.text_buffer = TextBuffer(str(tmp_path), most)
            with waiting(store) as file:
                store.append(runs)
                assert len(file.appender.text_buffer) == (len(ODD) if most else 0)
            found.append(indexed(store))
            store.delete(since_ns=0)
            assert indexed(store) == set()
    assert found[0] == found[1] != set()


def test_a_search_says_how_many_of_the_traces_that_it_covers_are_not_indexed_yet(store: SQLiteStore) -> None:
    with waiting(store):
        store.append([run(f"trace{number}", inputs="parcel") for number in range(3)])
        store.append([run(kind="evaluator", inputs="parcel")])
        page = store.traces(text="parcel")
        assert (len(page), page.unindexed) == (0, 3)
        assert store.traces(text="parcel", name="trace1").unindexed == 1
        assert store.traces(text="parcel", project="another").unindexed == 0
        assert store.traces(name="trace1").unindexed == 0
    assert words(store) == "parcel"
    assert store.traces(text="parcel").unindexed == 0


@pytest.mark.process
def test_what_memory_has_no_room_for_is_read_back(store: SQLiteStore, tmp_path: Path) -> None:
    with waiting(store) as file:
        file.appender.text_buffer = held = TextBuffer(str(tmp_path), 2_000)
        store.append([run(inputs=f"word{number} " + "filler " * 20) for number in range(100)])
        assert 0 < len(held) < 20
        assert 0 < held.bytes <= 2_000
    assert {f"word{number}" for number in range(100)} <= {word for word, _ in indexed(store)}
    assert held.bytes == 0


def test_memory_is_given_back_whichever_way_a_trace_goes() -> None:
    held = TextBuffer("", 10_000)
    for key, text in ((1, "a"), (2, "b" * 100), (3, None), (4, "c" * 20_000)):
        held.add(key, text, 7, 9, new=True)
    held.add(1, "more", 8, 9, new=False)
    held.add(9, "of a trace that is not new", 8, 9, new=False)
    assert (1 in held, 2 in held, 3 in held, 4 in held, 9 in held) == (True, True, False, False, False)
    taken = held.take(1)
    assert taken is not None
    assert taken == (f"a{LEAF_SEPARATOR}more", 8, 18)
    held.drop(2)
    assert (held.bytes, held.memory, held.take(1)) == (0, 0, None)


@pytest.mark.process
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_run_that_is_replaced_or_amended_before_its_words_are_indexed(store: SQLiteStore, first: bool) -> None:
    root, other = run(outputs="provisional"), run(outputs="draft")
    with waiting(store):
        if first:
            store.amend(other.trace_id, other.span_id, {"outputs": "amended"})
        store.append([root, other])
        store.append([replace(root, outputs="final", end_ns=root.end_ns + 1)])
        if not first:
            store.amend(other.trace_id, other.span_id, {"outputs": "amended"})
    assert words(store) == "amended final"


@pytest.mark.process
def test_the_same_run_twice_in_a_request_counts_once(store: SQLiteStore) -> None:
    root = run(outputs="provisional")
    with waiting(store):
        store.append([root, replace(root, outputs="final words", end_ns=root.end_ns + 1)])
    assert words(store) == "final words"


@pytest.mark.process
def test_a_payload_that_is_overwritten_is_kept_until_its_words_are_gone(store: SQLiteStore) -> None:
    store.append([root := run(outputs="provisional")])
    assert words(store) == "provisional"
    with waiting(store) as file:
        for number in range(3):
            store.append([replace(root, outputs=f"version{number}", end_ns=root.end_ns + 1 + number)])
        with file.read() as reader:
            assert reader.db.execute("SELECT count(*) FROM replaced").fetchone() == (1,)
    assert words(store) == "version2"
    with file.read() as reader:
        assert reader.db.execute("SELECT count(*) FROM replaced").fetchone() == (0,)


@pytest.mark.process
def test_a_trace_that_is_deleted_after_it_was_overwritten_leaves_no_words(store: SQLiteStore) -> None:
    store.append([root := run(outputs="provisional")])
    assert words(store) == "provisional"
    with waiting(store):
        store.append([replace(root, outputs="final", end_ns=root.end_ns + 1)])
        store.delete(trace_ids=(root.trace_id,))
    assert words(store) == ""


@pytest.mark.process
def test_a_trace_that_is_deleted_while_its_words_wait_in_memory(store: SQLiteStore) -> None:
    with waiting(store) as file:
        store.append([gone := run(inputs="secret"), run(inputs="public")])
        store.delete(trace_ids=(gone.trace_id,))
        assert len(file.appender.text_buffer) == 1
    assert words(store) == "public"


@pytest.mark.process
def test_what_was_never_committed_is_not_indexed(store: SQLiteStore) -> None:
    def fail(_: sqlite3.Connection) -> None:
        raise RuntimeError

    batch = encode([run(inputs="never")])
    broken = batch._replace(facts=[batch.facts[0]._replace(name=object())])  # type: ignore[arg-type]
    with waiting(store) as file:
        jobs = [WriteJob(weight=1, batch=encode([run(inputs="once")])), WriteJob(weight=1, action=fail)]
        futures = [file.put(job) for job in (*jobs, WriteJob(weight=1, batch=broken))]
        assert [future.exception(60) is None for future in futures] == [True, False, False]
    assert words(store) == "once"
    assert file.appender.text_buffer.bytes == 0


@pytest.mark.process
def test_a_piece_that_is_rolled_back_is_indexed_later(store: SQLiteStore) -> None:
    with waiting(store) as file:
        store.append([root := run(inputs="again")])
        assert len(file.appender.text_buffer) == 1

        def put_and_fail(_: sqlite3.Connection) -> None:
            now = time.monotonic()
            assert fulltext_index.write_buffered(
                file.appender.reader, file.appender.text_buffer, MIN_TRANSACTION_CHARACTERS, now, now
            ) == len("again")
            raise RuntimeError

        failed = file.put(WriteJob(weight=1, action=put_and_fail, patient=True))
        assert isinstance(failed.exception(60), RuntimeError)
    assert indexed(store) == {("again", root.trace_id)}


@pytest.mark.process
def test_segments_are_merged_a_few_pages_at_a_time(store: SQLiteStore) -> None:
    store._behind.close()
    db, pick, changes = store._file._db, random.Random(1), []
    reader, held = store._file.appender.reader, store._file.appender.text_buffer
    for n in range(1, 121):
        text = " ".join(f"{pick.getrandbits(24):x}" for _ in range(1_500))
        held.add(n, text, n, len(text), new=True)
        before = db.total_changes
        assert store._file.write(
            lambda _: fulltext_index.write_buffered(reader, held, MIN_TRANSACTION_CHARACTERS, time.monotonic(), 0.0)
        ) == len(text)
        changes.append(db.total_changes - before)
    assert max(changes) < 300  # pages that were written or removed; left to itself FTS5 comes to five hundred
    [(segments,)] = db.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchall()
    assert segments < 3 * fulltext_index.MERGE_SEGMENTS
    db.execute("INSERT INTO words (words) VALUES ('integrity-check')")


@pytest.mark.process
def test_what_a_large_piece_leaves_to_be_merged_is_merged_in_turn_with_others(store: SQLiteStore) -> None:
    behind, merged = store._behind, list[str]()
    behind.close()
    pick, long = random.Random(1), fulltext_index.CHARACTERS_PER_MERGE_PAGE * fulltext_index.MAX_MERGE_PAGES
    db, behind._under_load = store._file._db, True
    store._file.write(lambda db: db.execute("INSERT INTO words (words, rank) VALUES ('usermerge', 2)"))
    for merges in (1 + 1, 1 + 2):  # there is nothing to be merged with the first, which is found out once
        for _ in range(3):
            texts = ("".join(chr(97 + pick.randrange(26)) for _ in range(9)) for _ in range(long // 10))
            store.append([run(inputs=" ".join(texts))])
        behind._piece, behind._next_put = 4 * long, 0.0
        store._file.appender.text_buffer._most = 0  # as if it were full
        commits = store._file.writer.commits
        db.set_trace_callback(lambda sql: merged.append(sql) if "'merge'" in sql else None)
        assert behind._from_memory(False)
        db.set_trace_callback(None)
        store._file.appender.text_buffer._most = MAX_BUFFER_BYTES
        assert len(merged) == merges
        assert {sql.rpartition(", ")[2].rstrip(")") for sql in merged} == {str(fulltext_index.MAX_MERGE_PAGES)}
        assert store._file.writer.commits == commits + len(merged)  # the first is of the piece's own
        merged.clear()


def test_a_file_of_before_merges_as_a_new_one_does_and_one_without_that_table_opens(tmp_path: Path) -> None:
    def settings() -> dict[str, int]:
        with closing(sqlite3.connect(tmp_path / "a.db")) as db:
            return {k: v for k, v in db.execute("SELECT k, v FROM words_config") if k != "version"}

    for then in ("DELETE FROM words_config WHERE k <> 'version'", "DROP TABLE words_config"):
        with SQLiteStore(tmp_path / "a.db"):
            pass
        assert settings() == {
            "automerge": 0,
            "usermerge": fulltext_index.MERGE_SEGMENTS,
            "crisismerge": fulltext_index.CRISIS_SEGMENTS,
        }
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as db:
            db.execute(then)
    with SQLiteStore(tmp_path / "a.db") as store:
        assert store.count()["traces"] == 0


KILLED = """
import os, sys
from spanwise.collector.stores.sqlite import SQLiteStore
from collector.making import run
store = SQLiteStore(sys.argv[1])
with store._behind._lock:
    store.append([run(inputs="survivor")])
    os._exit(9)
"""


@pytest.mark.process
def test_words_that_waited_in_memory_survive_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "spanwise.db")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == 9
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert words(store) == "survivor"


@pytest.mark.process
def test_two_rounds_at_once_index_each_trace_once(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        background_jobs, "BUSY_RATE", float("inf")
    )  # so many rounds are taken for load, under which words rest
    stop = threading.Event()

    def rounds() -> None:
        while not stop.wait(0.001):
            store._behind.index_round()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(rounds) for _ in range(2)]
        for number in range(20):
            store.append([run(inputs=f"word{number}")])
        assert len(indexed(store)) == 20
        stop.set()
        for future in futures:
            future.result(60)
    store.delete(since_ns=0)
    assert words(store) == ""


# Traces that grow


@pytest.fixture
def still(store: SQLiteStore) -> SQLiteStore:
    """A store whose index is made by hand."""
    store._behind.close()
    return store


def made(store: SQLiteStore, after_ns: int = 10**9) -> int:
    """How many characters are written for the traces whose time it is, so long after the last span."""
    file = store._behind._file
    file.write(lambda _: file.appender.disturbed.clear())
    with file.read() as reader:
        due = fulltext_index.find_due_traces(reader, file.clock.now() + after_ns)
        entries = list(fulltext_index.read_entries(reader, due))
    return file.write(lambda _: fulltext_index.write_entries(file.appender.reader, entries, file.appender.disturbed))


def overdue(store: SQLiteStore) -> None:
    store._behind._file.write(lambda db: db.execute("UPDATE unindexed SET since_ns = 0").rowcount)


@pytest.mark.process
def test_a_trace_that_never_rests_costs_a_few_times_its_text(still: SQLiteStore) -> None:
    root, written, rounds, size = run(), 0, 0, 0
    for number in range(250):
        still.append([below := child(root, inputs=" ".join(f"w{number}x{word}" for word in range(20)))])
        size += len(str(below.inputs)) + 1
        overdue(still)
        characters = made(still, after_ns=0)
        written, rounds = written + characters, rounds + (characters > 0)
    assert written <= 4 * size
    assert 3 <= rounds <= 10


def test_a_trace_that_rests_is_indexed_whole(still: SQLiteStore) -> None:
    still.append([root := run(inputs="word " * 20_000)])
    made(still)
    still.append([child(root, inputs="late")])
    assert (made(still, 2 * 10**9), len(still.traces(text="late"))) == (0, 0)
    assert made(still, 11 * 10**9) > 0
    assert (len(still.traces(text="late")), still.health()["text_index_waiting_traces"]) == (1, 0)


def test_a_trace_that_grows_is_not_called_late(still: SQLiteStore) -> None:
    still.append([root := run(inputs="word " * 20_000)])
    made(still)
    still.append([child(root)])
    overdue(still)
    health = still.health()
    assert (health["text_index_waiting_traces"], health["text_index_lag_seconds"]) == (1, 0.0)


def test_a_trace_with_all_that_is_indexed_of_it_costs_no_more(still: SQLiteStore) -> None:
    still.append([root := run(inputs="a " * MAX_TRACE_CHARACTERS)])
    assert made(still) == MAX_TRACE_CHARACTERS
    for _ in range(3):
        still.append([child(root, inputs="too late")])
        assert made(still) == 0
        assert still.health()["text_index_waiting_traces"] == 0
    still.append([replace(root, inputs="short", end_ns=root.end_ns + 1)])
    assert made(still, 11 * 10**9) > 0
    assert indexed(still) == {("short", root.trace_id), ("too", root.trace_id), ("late", root.trace_id)}


def test_of_a_long_trace_no_more_is_read_than_is_indexed(still: SQLiteStore) -> None:
    root, read = run(), list[Any]()
    still.append([child(root, inputs=f"{number} " + "word " * 2_000) for number in range(400)])
    with still._behind._file.read() as reader:
        reader.payload = noting(reader.payload, read)  # type: ignore[method-assign]
        [_] = fulltext_index.read_entries(
            reader, fulltext_index.find_due_traces(reader, still._behind._file.clock.now() + 10**9)
        )
    assert 0 < len(read) < 400


def noting(function: Callable[[bytes], Any], into: list[Any]) -> Callable[[bytes], Any]:
    def wrapped(blob: bytes) -> Any:
        into.append(blob)
        return function(blob)

    return wrapped


@pytest.mark.process
@pytest.mark.parametrize("inputs", ["x" * 1_000_000, " ".join(map(str, range(100_000)))], ids=["long", "many"])
def test_a_megabyte_is_cut_and_leaves_nothing_behind(store: SQLiteStore, inputs: str) -> None:
    store.append([run(inputs=inputs)])
    assert 0 < len(indexed(store)) < 60_000
    store.delete(since_ns=0)
    assert indexed(store) == set()


@pytest.mark.process
def test_a_damaged_span_keeps_no_other_out_of_the_index_and_its_trace_can_be_deleted(store):
    damaged, sound = run(inputs="alpha"), run(inputs="gamma")
    store.append([damaged])
    assert words(store) == "alpha"
    with waiting(store) as file:
        store.append([child(damaged, inputs="beta " * 20), sound])
        file.write(lambda db: db.execute("UPDATE spans SET payload = x'00' WHERE span_id = ?", (damaged.span_id,)))
    assert {word for word, trace_id in indexed(store) if trace_id == sound.trace_id} == {"gamma"}
    assert store.delete(trace_ids=(damaged.trace_id,)) == 1
    assert [one.trace_id for one in store.traces()] == [sound.trace_id]


# What is held, and whose time it is

LATER = 10**9  # seconds on the clock that is never set back


def filled(most: int, *sizes: int, memory: int = MAX_BUFFER_MEMORY) -> TextBuffer:
    held = TextBuffer("", most, memory)
    for key, size in enumerate(sizes):
        held.add(key, "x" * size, key, 1, new=True)
    return held


def test_what_rests_is_taken_and_what_grows_waits_but_not_for_ever() -> None:
    held = filled(2**20, 10, 10, 10)
    until = time.monotonic()
    held.add(1, "more", 9, 1, new=False)
    assert held.due(MIN_TRANSACTION_CHARACTERS, until, 0.0) == [0, 2]
    assert held.due(MIN_TRANSACTION_CHARACTERS, 0.0, until) == [0, 1, 2]
    assert held.due(MIN_TRANSACTION_CHARACTERS, 0.0, 0.0) == []


def test_a_piece_has_so_many_characters_and_one_trace_however_long() -> None:
    held = filled(2**20, 100, 100, 100)
    assert held.due(210, LATER, 0.0) == [0, 1]
    assert held.due(1, LATER, 0.0) == [0]
    assert held.due(210, LATER, LATER) == [0, 1]


def test_when_much_is_held_what_rests_longest_is_taken_though_it_may_grow() -> None:
    held = filled(2_600, 1_000, 1_000, 10)
    held.add(0, "more", 9, 1, new=False)
    assert held.is_filling
    assert held.due(1_100, 0.0, 0.0) == [1, 2]


def test_tiny_traces_fill_the_memory_as_well() -> None:
    held = filled(2**20, *[1] * 1_000, memory=100_000)
    assert 100 < len(held) < 200
    assert held.is_filling
    assert held.memory <= 100_000
    while taken := held.due(MIN_TRANSACTION_CHARACTERS, LATER, 0.0):
        for key in taken:
            held.take(key)
    assert (len(held), held.bytes, held.memory) == (0, 0, 0)


def test_one_wide_character_does_not_make_all_others_wide() -> None:
    held = TextBuffer("")
    held.add(1, "\N{GRINNING FACE}" + "x" * 100_000, 1, 1, new=True)
    assert held.bytes < 110_000


@pytest.mark.process
def test_what_the_disk_does_not_give_back_is_read_from_the_file(store: SQLiteStore) -> None:
    with waiting(store) as file:
        store.append([run(inputs=f"word{number}") for number in range(3)])
        held = file.appender.text_buffer
        held._spill.take = lambda place: None  # type: ignore[method-assign]
    assert words(store) == "word0 word1 word2"
    assert (len(held), held.bytes, held.memory) == (0, 0, 0)


def test_under_load_words_wait_until_they_are_due_or_too_many(still: SQLiteStore) -> None:
    behind, held = still._behind, still._file.appender.text_buffer
    still.append([run(inputs="word")])
    behind._next_put = 0.0
    assert (behind._from_memory(True), len(held)) == (False, 1)
    behind._next_put, held._most = 0.0, 4
    behind._from_memory(True)
    assert len(held) == 0


def test_what_a_burst_has_left_is_taken_in_large_pieces_when_it_is_over(still: SQLiteStore) -> None:
    behind, held = still._behind, still._file.appender.text_buffer
    behind._piece = 4 * MIN_TRANSACTION_CHARACTERS
    for key in range(20):
        held.add(key, "x" * MIN_TRANSACTION_CHARACTERS, key, 1, new=True)
    behind._under_load = True
    assert behind._most == 4 * MIN_TRANSACTION_CHARACTERS
    behind._under_load = False
    assert behind._most == BURST_FACTOR * 4 * MIN_TRANSACTION_CHARACTERS
    for key in range(12):
        held.drop(key)
    assert behind._most == 4 * MIN_TRANSACTION_CHARACTERS
    for key in range(12, 18):
        held.drop(key)
    assert behind._most == MIN_TRANSACTION_CHARACTERS


def test_load_is_many_spans_that_take_much_of_the_writers_time(still: SQLiteStore) -> None:
    behind, writer, found = still._behind, still._file.writer, []
    for rate, share in ((2.0, 2.0), (2.0, 0.5), (0.5, 2.0)):
        behind._looked -= 10.0
        writer.written += int(rate * 10 * background_jobs.BUSY_RATE)
        writer.spent += share * 10 * background_jobs.BUSY_SHARE
        found.append(behind._is_busy())
    assert found == [True, False, False]


@pytest.mark.process
@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_burst_that_went_to_the_disk_has_the_words_that_are_in_its_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(searchable_text, "BLOCK_BYTES", 4_000)
    monkeypatch.setattr(searchable_text, "MEMORY_BLOCKS", 1)
    monkeypatch.setattr(searchable_text, "SPARE_DISK_BYTES", 0)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        with waiting(store) as file:
            runs = [run(inputs=f"word{number} " * 9, outputs=f"answer{number}") for number in range(400)]
            store.append(runs)
            store.append([replace(one, outputs="final", end_ns=one.end_ns + 1) for one in runs[::7]])
            store.append([child(one, inputs="added") for one in runs[::5]])
            store.delete(trace_ids=tuple(one.trace_id for one in runs[::3]))
            assert file.appender.text_buffer._spill._file is not None
            if lost:
                file.appender.text_buffer.close()
                file.appender.text_buffer = TextBuffer(str(tmp_path))
        found = indexed(store)
        assert (len(file.appender.text_buffer), file.appender.text_buffer.bytes) == (0, 0)
        expected = set()
        for number, one in enumerate(runs):
            if number % 3:
                said = f"word{number} " + ("final" if number % 7 == 0 else f"answer{number}")
                said += " added" * (number % 5 == 0)
                expected |= {(word, one.trace_id) for word in said.split()}
        assert found == expected


@pytest.mark.process
def test_a_trace_that_grows_while_it_is_held_is_indexed_once_and_whole(store: SQLiteStore) -> None:
    with waiting(store) as file:
        store.append([root := run(inputs="first")])
        store.append([child(root, inputs="second")])
        assert len(file.appender.text_buffer) == 1
    assert indexed(store) == {("first", root.trace_id), ("second", root.trace_id)}


@pytest.mark.process
def test_nothing_of_what_is_held_is_lost_when_the_store_is_closed(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store, waiting(store):
        store.append([run(inputs=f"word{number}") for number in range(300)])
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert len(indexed(store)) == 300


def test_traces_that_are_indexed_together_make_one_segment_and_few_statements(still: SQLiteStore) -> None:
    file, statements = still._behind._file, list[str]()
    still.append([run(inputs=f"word{number}") for number in range(2 * INSERT_MULTIPLE + 9)])
    file.write(lambda db: db.set_trace_callback(statements.append))
    put = partial(
        fulltext_index.write_buffered, file.appender.reader, file.appender.text_buffer, 10**6, time.monotonic(), 0.0
    )
    assert (file.write(lambda _: put()) > 0, len(file.appender.text_buffer)) == (True, 9)
    assert (file.write(lambda _: put()) > 0, len(file.appender.text_buffer)) == (True, 0)
    file.write(lambda db: db.set_trace_callback(None))
    assert [one.count("word") for one in statements if one.startswith("INSERT INTO words (rowid")] == [
        2 * INSERT_MULTIPLE + 1,
        10,
    ]
    with file.read() as reader:
        assert reader.db.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchone() == (2,)


def test_what_is_due_hourly_is_done(store: SQLiteStore) -> None:
    store.append([run(inputs="old")])
    store.set_retention(Retention(max_bytes=0))
    store._behind._retention.round()
    assert store.count()["traces"] == 0
