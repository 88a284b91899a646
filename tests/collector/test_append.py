"""What writing remembers, and when a run that comes again is written again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collector.conformance_traces import eventually
from collector.making import SECOND, child, run
from spanwise.collector.errors import Refused, StoreError, Unavailable
from spanwise.collector.records import Run, Usage
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteStore
from spanwise.collector.stores.sqlite.database import connections
from spanwise.collector.stores.sqlite.database.connections import IDLE_READERS, MAX_READERS
from spanwise.collector.stores.sqlite.database.group_commit import (
    HEAVY_WEIGHT,
    PATIENT_TURN_SECONDS,
    QUEUED_WEIGHT,
    WriteJob,
)
from spanwise.collector.stores.sqlite.search.fulltext_index import (
    MAX_TRANSACTION_CHARACTERS,
    MIN_TRANSACTION_CHARACTERS,
    IndexEntry,
    split_by_size,
    write_entries,
)
from spanwise.collector.stores.sqlite.write import side_tables
from spanwise.tracer.attribute_names import INSTANCE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def settled(store: SQLiteStore) -> bool:
    """Whether the text index has caught up: a trace that is written again would wait for it anew."""
    return eventually(lambda: store.health()["text_index_waiting_traces"], 0)


@pytest.mark.process
def test_the_same_run_again_is_not_written_again(store: SQLiteStore) -> None:
    store.append([root := run()])
    assert settled(store)
    store.append([root])
    assert store.health()["text_index_waiting_traces"] == 0


@pytest.mark.process
def test_the_same_run_again_is_not_written_again_after_a_restart(store: SQLiteStore) -> None:
    store.append([root := run(usage=Usage(1, 2, {"cache_read": 1}), tags=("a",), metadata={"k": "v"})])
    assert settled(store)
    store.close()
    with SQLiteStore(store.path) as again:
        again.append([root])
        assert again.health()["text_index_waiting_traces"] == 0


@pytest.mark.parametrize("fields", [{"name": "other"}, {"session_id": "s"}, {"status": "error", "error": "E"}], ids=str)
def test_a_run_as_late_and_as_full_that_differs_takes_the_place(store: SQLiteStore, fields: dict[str, str]) -> None:
    store.append([root := run(), below := child(root)])
    store.append([changed := replace(root, **fields)])
    assert store.trace(root.trace_id).runs == (changed, below)


def test_an_earlier_or_thinner_run_changes_nothing(store: SQLiteStore) -> None:
    store.append([root := run(outputs="whole")])
    store.append([replace(root, outputs="w")])
    store.append([replace(root, outputs="whole and more", end_ns=root.end_ns - 1)])
    assert store.trace(root.trace_id).runs == (root,)


def test_what_is_remembered_is_bounded_by_spans(store: SQLiteStore) -> None:
    store._behind._file.appender.max_cached_spans = 10
    appender = store._behind._file.appender
    roots = [run() for _ in range(8)]
    for root in roots:
        store.append([root, child(root), child(root)])
        assert sum(len(state.facts) for state in appender._cache.values()) == appender._cached_spans <= 10
    assert list(appender._cache) == [root.trace_id for root in roots[-3:]]


def test_a_trace_that_is_written_stays_remembered(store: SQLiteStore) -> None:
    store._behind._file.appender.max_cached_spans = 3
    first, second, third = run(), run(), run()
    for one in (first, second, third, child(first)):
        store.append([one])
    assert list(store._behind._file.appender._cache) == [third.trace_id, first.trace_id]
    store.append([late := child(second)])
    assert store.trace(second.trace_id).runs == (second, late)


def test_deleting_forgets_as_many_spans_as_go(store: SQLiteStore) -> None:
    store.append([gone := run(), child(gone), stays := run()])
    store.delete(trace_ids=(gone.trace_id,))
    appender = store._behind._file.appender
    assert (list(appender._cache), appender._cached_spans) == ([stays.trace_id], 1)


def test_a_file_whose_trace_is_larger_than_the_bound_is_still_written(store: SQLiteStore) -> None:
    store._behind._file.appender.max_cached_spans = 2
    store.append([root := run(), *(child(root) for _ in range(5))])
    store.append([child(root)])
    assert store.traces().items[0].span_count == 7


def test_equal_resources_are_kept_once_across_requests_and_restarts(store: SQLiteStore) -> None:
    store.append([run(resource={"service.name": "a"}), run(resource={"service.name": "a"}), run()])
    store.close()
    with SQLiteStore(store.path) as again:
        again.append([late := run(resource={"service.name": "a"})])
        assert again.trace(late.trace_id).root.resource == {"service.name": "a"}
        assert again.stats()["resources"] == 2


def test_known_values_are_noted_once(store: SQLiteStore) -> None:
    store.append([run(tags=("a", "b"), model="m"), run(tags=("b",), kind="llm")])
    store.append([run(prompt_name="p", prompt_version="1", agent_name="n", finish_reasons=("stop",))] * 2)
    with closing(sqlite3.connect(store.path)) as db:
        rows = db.execute("SELECT field, value FROM known ORDER BY field, value").fetchall()
    assert rows == [
        ("agent", "n"),
        ("environment", "default"),
        ("finish_reason", "stop"),
        *(("kind", kind) for kind in ("chain", "llm")),
        ("model", "m"),
        ("prompt", "p"),
        ("prompt_version", "1"),
        *(("tag", tag) for tag in "ab"),
    ]


def test_integer_keys_go_on_after_a_restart(store: SQLiteStore) -> None:
    first: list[Run] = [run(), run()]
    store.append(first)
    store.close()
    with SQLiteStore(store.path) as again:
        again.append([last := run(), child(last)])
        with closing(sqlite3.connect(store.path)) as db:
            traces = dict(db.execute("SELECT trace_id, id FROM traces"))
            spans = [row[0] for row in db.execute("SELECT id FROM spans ORDER BY id")]
    assert [traces[one.trace_id] for one in (*first, last)] == [1, 2, 3]
    assert spans == [1, 2, 3, 4]


# groups of writes, held together while the writer waits at a gate


@contextmanager
def held(store: SQLiteStore) -> Iterator[DatabaseFile]:
    """The file of a store whose writer stands still meanwhile, so that what is asked for goes into one commit."""
    file, there, gate = store._behind._file, threading.Event(), threading.Event()
    future = file.writer.put(WriteJob(weight=1, alone=lambda _: (there.set(), gate.wait(120))))
    assert there.wait(60)
    try:
        yield file
    finally:
        gate.set()
        future.result(60)


def test_what_a_rollback_took_back_is_not_remembered(store: SQLiteStore) -> None:
    first, other = run(resource={"n": 1}, tags=("a",)), run(resource={"n": 2}, tags=("b",))
    with held(store) as file:
        kept = store.append_async([first])
        failing = file.writer.put(WriteJob(weight=1, action=lambda db: db.execute("nonsense")))
    with pytest.raises(StoreError, match="nonsense"):
        failing.result(60)
    kept.result(60)
    store.append([other])
    assert [store.trace(one.trace_id).root for one in (first, other)] == [first, other]
    assert store.values("tag") == ["a", "b"]
    assert store.check(deep=True) == []


def test_writes_that_wait_share_a_commit(store: SQLiteStore) -> None:
    before = store.health()["commits"]
    with held(store):
        futures = [store.append_async([run()]) for _ in range(5)]
        assert store.health()["queued_spans"] == 5
    for future in futures:
        future.result(60)
    assert (store.health()["commits"], store.health()["queued_spans"]) == (before + 1, 0)


def test_what_else_the_writer_is_to_do_is_not_counted_as_spans_that_wait(store: SQLiteStore) -> None:
    with held(store) as file:
        work = file.writer.put(WriteJob(weight=64, action=lambda db: None, patient=True))
        kept = store.append_async([run()])
        assert store.health()["queued_spans"] == 1
    work.result(60)
    kept.result(60)


def test_a_refused_action_takes_back_only_what_it_did(store: SQLiteStore) -> None:
    def refused(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM traces")
        raise Refused("no")

    store.append([stays := run()])
    with held(store) as file:
        futures = [store.append_async([run()])]
        action = file.writer.put(WriteJob(weight=1, action=refused))
        futures.append(store.append_async([child(stays)]))
    with pytest.raises(Refused):
        action.result(60)
    assert [future.result(60) for future in futures] == [None, None]
    assert (store.count()["traces"], len(store.trace(stays.trace_id).runs)) == (2, 2)


def test_who_no_longer_waits_disturbs_nobody(store: SQLiteStore) -> None:
    with held(store):
        gone, waits = store.append_async([run()]), store.append_async([run()])
        assert gone.cancel()
    waits.result(60)
    store.append([run()])
    assert store.health()["writable"]


def test_what_is_patient_goes_in_turn_with_all_that_others_wait_for(store: SQLiteStore) -> None:
    done = dict[str, int]()  # by name, in order: how many commits there were before
    with held(store) as file:

        def note(name: str, _: sqlite3.Connection) -> None:
            done[name] = file.writer.commits
            threading.Event().wait(PATIENT_TURN_SECONDS if name > "m" else 0)

        for name in "xyabz":
            file.writer.put(WriteJob(weight=1, action=partial(note, name), patient=name > "m"))
    assert eventually(lambda: list(done), ["x", "a", "b", "y", "z"])
    assert done["x"] < done["a"] == done["b"] < done["y"] < done["z"]


def test_what_is_patient_is_done_before_the_end(store: SQLiteStore) -> None:
    done = list[int]()
    with held(store) as file:
        futures = [file.writer.put(WriteJob(weight=1, action=lambda _: done.append(1), patient=True)) for _ in range(5)]
    store.close()
    assert (len(done), [future.done() for future in futures]) == (5, [True] * 5)


def test_a_batch_that_is_heavy_has_a_commit_of_its_own(store: SQLiteStore) -> None:
    done = dict[int, int]()  # by place: how many commits there were with it
    with held(store) as file:
        for place, size in enumerate((HEAVY_WEIGHT, 1, HEAVY_WEIGHT, 1)):
            note = partial(lambda place, _: done.update({place: file.writer.commits}), place)
            store.append_async([run() for _ in range(size)]).add_done_callback(note)
    assert eventually(lambda: sorted(done), [0, 1, 2, 3])
    assert done[1] == done[3]
    assert len({done[0], done[1], done[2]}) == 3
    assert store.count()["traces"] == 2 * HEAVY_WEIGHT + 2


LONG = [{"tags": tuple(f"{n}" * 2_000 for n in range(50))}, {"error": "e" * 100_000}, {"user_id": "u" * 100_000}]


# Of what has grown the error is in the file alone
@pytest.mark.parametrize(("long", "grows"), [*((one, False) for one in LONG), (LONG[0], True), (LONG[2], True)])
def test_traces_of_long_texts_count_for_many_spans_in_memory(store: SQLiteStore, long: Any, grows: bool) -> None:
    appender = store._behind._file.appender
    appender.max_cached_spans = 200
    for _ in range(20):
        store.append([root := run(**long)])
        if grows:
            store.append([child(root)])
    assert store.count()["traces"] == 20
    assert len(appender._cache) <= 4


def test_of_resources_and_values_that_differ_for_ever_some_are_remembered(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_tables, "CACHED_RESOURCES", 5)
    monkeypatch.setattr(side_tables, "CACHED_VALUES", 5)
    monkeypatch.setattr(connections, "CACHED_RESOURCES", 5)
    appender, made = store._behind._file.appender, []
    for n in range(20):
        made.append(run(resource={INSTANCE: f"i{n % 10}", "of": n}, kind=f"kind {n}", tags=("a", "b")))
        store.append([made[-1]])
        assert max(len(appender.resources), len(appender.filter_values)) <= 6
    assert [store.trace(one.trace_id).root for one in made] == made
    assert {one.instance: one.stored for one in store.processes()} == {f"i{n}": 2 for n in range(10)}
    assert store.values("kind") == sorted(f"kind {n}" for n in range(20))
    with closing(sqlite3.connect(store.path)) as db:
        assert db.execute("SELECT count(*) FROM resources").fetchone() == (20,)
    with store._file.read() as reader:
        assert len(reader._resources) <= 6


def test_a_large_resource_is_kept_and_not_remembered(store: SQLiteStore) -> None:
    large = {INSTANCE: "i", "large": "x" * 100_000}
    store.append([first := run(resource=large)])
    store.append([second := run(resource=large)])
    assert [store.trace(one.trace_id).root.resource for one in (first, second)] == [large, large]
    assert not store._behind._file.appender.resources._keys
    [process] = store.processes()
    assert process.stored == 2
    with store._file.read() as reader:
        assert not reader._resources
        assert reader.db.execute("SELECT count(*) FROM resources").fetchone() == (1,)


def test_a_rush_of_readers_leaves_few_open(store: SQLiteStore) -> None:
    file = store._behind._file
    with ExitStack() as rush:
        for _ in range(MAX_READERS - 1):  # one is left to the index
            rush.enter_context(file.read())
    assert len(file._readers._free) <= IDLE_READERS
    assert store.count()["traces"] == 0


def test_the_text_index_is_written_in_pieces() -> None:
    sizes = (MIN_TRANSACTION_CHARACTERS // 2, MIN_TRANSACTION_CHARACTERS // 2, 1, 3 * MIN_TRANSACTION_CHARACTERS, 1)
    assert list(split_by_size(enumerate(sizes), MIN_TRANSACTION_CHARACTERS)) == [[0, 1], [2], [3], [4]]


def test_so_much_may_wait_and_no_more(store: SQLiteStore) -> None:
    with held(store) as file:
        full = file.writer.put(WriteJob(weight=QUEUED_WEIGHT, action=lambda _: None))
        with pytest.raises(Unavailable, match=rf"the write queue is full \({QUEUED_WEIGHT} spans\)"):
            store.append([run()])
    full.result(60)
    store.append([run()])


def test_what_is_larger_than_the_queue_is_taken_when_nothing_waits(store: SQLiteStore) -> None:
    assert store._behind._file.writer.put(WriteJob(weight=10 * QUEUED_WEIGHT, action=lambda _: 7)).result(60) == 7


def test_a_piece_of_the_text_index_is_as_large_as_a_moment_allows(store: SQLiteStore) -> None:
    behind = store._behind
    behind._fit(1, 1.0)
    assert behind._piece == MIN_TRANSACTION_CHARACTERS
    for _ in range(10):
        behind._fit(10 * MAX_TRANSACTION_CHARACTERS, 1e-6)
    assert behind._piece >= MAX_TRANSACTION_CHARACTERS - MIN_TRANSACTION_CHARACTERS
    for _ in range(10):
        behind._fit(10 * MAX_TRANSACTION_CHARACTERS, 1e6)
    assert behind._piece == MIN_TRANSACTION_CHARACTERS


def test_what_stands_in_the_text_index_says_nothing_about_how_fast_it_is(store: SQLiteStore) -> None:
    same, other = IndexEntry(1, "words", "words"), IndexEntry(2, None, "more words")
    reader = store._behind._file.appender.reader
    assert store._behind._file.write(lambda _: write_entries(reader, [same], set())) == 0
    assert store._behind._file.write(lambda _: write_entries(reader, [same, other], set())) == len("more words")


@pytest.mark.parametrize("cursor", ["", "1", "x.1", "1.x", "1.2.3"])
def test_a_cursor_that_is_none_is_refused(store: SQLiteStore, cursor: str) -> None:
    for verb in (store.traces, store.feedbacks, store.decisions):
        with pytest.raises(Refused, match="invalid cursor"):
            verb(cursor=cursor)


def test_a_foreign_trace_is_complete_once_nothing_has_come_for_five_seconds(store: SQLiteStore) -> None:
    store.append([run("quiet"), run("busy")])
    with closing(sqlite3.connect(store.path)) as db:
        for name, seconds in (("quiet", 6), ("busy", -60)):
            db.execute("UPDATE traces SET updated_ns = ? WHERE name = ?", (time.time_ns() - seconds * SECOND, name))
        db.commit()
    assert [one.name for one in store.traces(complete=True)] == ["quiet"]
    assert [one.name for one in store.traces(complete=False)] == ["busy"]
