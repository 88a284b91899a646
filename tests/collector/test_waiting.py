"""What is said of runs that are not here yet, on one SQLite file: bounded, durable, counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.making import child, run
from spanwise.collector.errors import Refused
from spanwise.collector.records import Amendment, Retention, Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write import side_tables
from spanwise.collector.stores.sqlite.write.side_tables import PendingAmendments
from spanwise.collector.stores.table_rows import hash_id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(file) as made:
        yield made


def waiting(store: SQLiteStore) -> PendingAmendments:
    return store._traces._file.appender.waiting


def said(of: Run, **fields: Any) -> Amendment:
    return Amendment(of.trace_id, of.span_id, fields)


def numbers(store: SQLiteStore) -> tuple[float, float]:
    health = store.health()
    return health["amendments_waiting"], health["amendments_given_up_total"]


def rows(file: Path) -> int:
    with closing(sqlite3.connect(file)) as db:
        return int(db.execute("SELECT count(*) FROM amendments").fetchone()[0])


def test_it_waits_across_a_restart(store: SQLiteStore, file: Path) -> None:
    root = run()
    store.add_amendments([said(root, outputs="here")])
    store.close()
    with SQLiteStore(file) as again:
        assert numbers(again) == (1, 0)
        again.append([root])
        assert again.trace(root.trace_id).root.outputs == "here"
        assert (numbers(again), rows(file)) == ((0, 0), 0)


def test_of_too_many_the_oldest_are_given_up_and_counted(store: SQLiteStore) -> None:
    runs, waiting(store).most = [run() for _ in range(5)], 3
    store.add_amendments([said(one, outputs="here") for one in runs])
    assert numbers(store) == (3, 2)
    store.append(runs)
    assert [store.trace(one.trace_id).root.outputs for one in runs] == [None, None, "here", "here", "here"]


def test_of_too_many_bytes_the_oldest_are_given_up(store: SQLiteStore) -> None:
    first, second, waiting(store).most_bytes = run(), run(), 1500
    store.add_amendments([said(first, outputs="x" * 1000), said(second, outputs="y" * 1000)])
    assert (numbers(store), waiting(store).bytes < 1500) == ((1, 1), True)
    store.add_amendments([said(second, inputs="z" * 1000)])  # one that grows is too much itself
    assert (numbers(store), waiting(store).bytes) == ((0, 2), 0)


def test_what_is_too_old_is_given_up(store: SQLiteStore) -> None:
    store.add_amendments([said(run(), outputs="here")])
    store._traces._file.write(lambda db: db.execute("UPDATE amendments SET seen_ns = 1"))
    waiting(store).forget()
    store.add_amendments([said(run(), outputs="there")])
    assert numbers(store) == (1, 1)


def test_retention_gives_up_what_waits(store: SQLiteStore) -> None:
    store.add_amendments([said(run(), outputs="secret")])
    store.prune(Retention(project=None, max_age_ns=0))
    assert numbers(store) == (0, 1)


def test_another_projects_is_given_up_when_the_run_comes(store: SQLiteStore) -> None:
    root = run(project="p")
    store.add_amendments([Amendment(root.trace_id, root.span_id, {"outputs": "theirs"}, project="q")])
    store.append([root])
    assert (store.trace(root.trace_id).root, numbers(store)) == (root, (0, 1))


def test_a_commit_that_is_rolled_back_takes_nothing(store: SQLiteStore) -> None:
    root = run()
    store.add_amendments([said(root, outputs="here")])

    def fail(_: sqlite3.Connection) -> None:
        store._traces._file.appender.waiting.take(root.trace_id, root.span_id, "default")
        raise Refused("no")

    with pytest.raises(Refused):
        store._traces._file.write(fail)
    store.append([root])
    assert store.trace(root.trace_id).root.outputs == "here"


def test_deleting_a_trace_leaves_nothing_that_waits_for_it(store: SQLiteStore, file: Path) -> None:
    store.append([root := run(attributes={"gen_ai.response.id": "r"})])
    store.add_amendments([said(child(root), outputs="secret")])
    store.delete(trace_ids=(root.trace_id,))
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT * FROM responses").fetchall() == []
    assert (numbers(store), rows(file)) == ((0, 0), 0)


def test_a_run_does_not_grow_without_bound(store: SQLiteStore) -> None:
    store._traces._file.appender.max_amended_bytes = 2000
    store.append([root := run()])
    with pytest.raises(Refused, match="bytes; the limit is 2,000"):
        store.add_amendments([said(root, attributes={f"a{n}": "x" * 500}) for n in range(5)])
    assert store.trace(root.trace_id).root == root


def test_what_waits_for_one_run_does_not_grow_without_bound(store: SQLiteStore) -> None:
    store._traces._file.appender.max_amended_bytes = 2000
    store.add_amendments([said(root := run(), attributes={"kept": "here"})])
    with pytest.raises(Refused, match=r"amendments waiting for span .* the limit is 2,000"):
        store.add_amendments([said(root, attributes={f"a{n}": "x" * 500}) for n in range(5)])
    store.append([root])
    assert (store.trace(root.trace_id).root.attributes["kept"], numbers(store)) == ("here", (0, 0))


@pytest.mark.parametrize("fields", [{"usage": {"details": {"a": 2**70}}}, {"usage": {"input_tokens": -(2**70)}}])
@pytest.mark.parametrize("later", [False, True])
def test_a_count_that_no_file_can_keep_is_refused_before_it_refuses_its_run(store, later, fields) -> None:
    root = run()
    if later:
        store.append([replace(root, end_ns=root.end_ns - 1)])
    with pytest.raises(Refused, match=r"of a run must be at most \d+, got -?\d+"):
        store.add_amendments([said(root, **fields)])
    store.append([root])
    assert store.trace(root.trace_id).root == root


def test_a_server_says_what_waits_and_what_was_given_up(store: SQLiteStore) -> None:
    with Server(store) as server:
        given = {"trace_id": "a" * 32, "span_id": "b" * 16, "fields": {"outputs": "here"}}
        assert httpx.post(f"{server.url}/api/amendments", json=[given]).json() == [False]
        text = httpx.get(f"{server.url}/metrics").text
    assert "spanwise_store_amendments_waiting 1" in text
    assert "spanwise_store_amendments_given_up_total 0" in text


def test_another_answer_with_the_same_number_is_not_taken_for_it(store: SQLiteStore) -> None:
    store.append([other := run(attributes={"gen_ai.response.id": "other"})])
    store._traces._file.write(lambda db: db.execute("UPDATE responses SET answer = ?", (hash_id("mine"),)))
    said_of_mine = Amendment("0" * 32, "0" * 16, {"outputs": "secret"}, response_id="mine")
    assert (store.add_amendments([said_of_mine]), store.trace(other.trace_id).root) == ([False], other)


def test_what_is_said_of_a_damaged_run_is_refused_alone(store: SQLiteStore) -> None:
    store.append([damaged := run(), sound := run()])
    sql = "UPDATE spans SET payload = x'00' WHERE span_id = ?"
    store._file.write(lambda db: db.execute(sql, (damaged.span_id,)).rowcount)
    with pytest.raises(Refused, match="is damaged"):
        store.add_amendments([said(damaged, outputs="late")])
    assert store.add_amendments([said(sound, outputs="late")]) == [True]


def answered(store: SQLiteStore, *ids: str) -> list[Run]:
    """Runs that bear these ids of answers, each in a part of its own."""
    store._traces._file.appender.responses.size = 1
    runs = [run(attributes={"gen_ai.response.id": id}) for id in ids]
    for one in runs:
        store.append([one])
    return runs


def parts(file: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(file)) as db:
        return db.execute("SELECT part, span FROM responses ORDER BY span").fetchall()


def found(store: SQLiteStore, id: str) -> list[str]:
    with store._traces._file.read() as reader:
        return [trace_id for trace_id, _ in side_tables.find_by_response_id(reader, id)]


def test_answers_are_found_in_every_part_the_latest_first(store: SQLiteStore, file: Path) -> None:
    runs = answered(store, "a", "b", "a", "c")
    assert len({part for part, _ in parts(file)}) == 4
    assert found(store, "a") == [runs[2].trace_id, runs[0].trace_id]
    assert (found(store, "b"), found(store, "d")) == ([runs[1].trace_id], [])


def test_no_more_are_looked_at_than_a_call_has_instrumentations(store: SQLiteStore) -> None:
    runs = answered(store, *["a"] * (side_tables.MAX_CANDIDATES + 4))
    assert found(store, "a") == [one.trace_id for one in reversed(runs[4:])]


def test_a_run_that_is_sent_again_stays_in_its_part(store: SQLiteStore, file: Path) -> None:
    first, *_ = answered(store, "a", "b", "c")
    before = parts(file)
    store.append([replace(first, end_ns=first.end_ns + 1)])
    assert parts(file) == before


def test_an_id_that_a_run_has_only_when_it_comes_again_is_found(store: SQLiteStore) -> None:
    for before in ((), ("a", "b")):
        answered(store, *before)
        store.append([late := run()])
        answered(store, "d", "e")
        store.append([replace(late, end_ns=late.end_ns + 1, attributes={"gen_ai.response.id": "c"})])
        assert found(store, "c") == [late.trace_id]
        store.delete(trace_ids=(late.trace_id,))
        assert (found(store, "c"), store.check(deep=True)) == ([], [])


def test_deleting_some_leaves_the_others_findable(store: SQLiteStore, file: Path) -> None:
    runs = answered(store, "a", "b", "c", "d")
    store.delete(trace_ids=[runs[at].trace_id for at in (0, 2, 3)])
    assert (found(store, "b"), len(parts(file))) == ([runs[1].trace_id], 1)
    [again] = answered(store, "d")
    assert (found(store, "d"), store.check(deep=True)) == ([again.trace_id], [])


def test_a_restart_goes_on_with_the_last_part(store: SQLiteStore, file: Path) -> None:
    answered(store, "a", "b")
    store.close()
    with SQLiteStore(file) as again:
        again.append([run(attributes={"gen_ai.response.id": "c"})])
    [_, (last, _), (part, _)] = parts(file)
    assert part == last


@pytest.mark.process
def test_only_the_latest_answers_are_kept(store: SQLiteStore) -> None:
    runs = answered(store, "a", "b", "c")
    store._traces._file.write(lambda db: side_tables.prune_response_ids(db, most=side_tables.BLOCK_SIZE))
    assert [found(store, id) for id in "abc"] == [[], [runs[1].trace_id], [runs[2].trace_id]]
