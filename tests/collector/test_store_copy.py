"""Copies of whole stores: equality, interruption, sources that change, targets that are not empty."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from collector import full_store
from collector.deciding import on, slice
from collector.making import child, run
from collector.others import python
from polling import until
from spanwise.collector import connect
from spanwise.collector.errors import Refused
from spanwise.collector.import_export import (
    copy_store,
    export_lines,
    find_state_file,
    open_source,
    open_target,
    summarize,
)
from spanwise.collector.records import Feedback, Rule, Target
from spanwise.collector.stores import open_backends
from spanwise.collector.stores.control.control_tables import CONTROL_TABLES
from spanwise.collector.stores.sqlite import SQLiteStore, open_snapshot

GOLDEN = Path(__file__).parent.parent / "fixtures" / "golden" / "database.db"


def quiet(what: str, count: int) -> None:
    pass


def copy(source: Path, target: Path) -> None:
    with open_source(str(source), None) as opened, open_target(str(target), None) as empty:
        copy_store(opened, empty, find_state_file(str(source), str(target)), quiet)


def exported(file: Path) -> list[bytes]:
    with closing(open_snapshot(file)) as store:
        return [line for line, _ in export_lines(store, "jsonl")]


def table_rows(file: Path) -> dict[str, list[Any]]:
    with closing(open_snapshot(file)) as store:
        tables = store.control_tables()  # type: ignore[attr-defined]
        return {name: tables.export_rows(name, tables.columns(name), None, 10_000) for name in CONTROL_TABLES}


def side_records(file: Path) -> list[Any]:
    with closing(open_snapshot(file)) as store:
        return list(store.trace_copy().list_side_records())  # type: ignore[attr-defined]


def positions(file: Path) -> list[Any]:
    with closing(open_snapshot(file)) as store:
        return store.trace_copy().list_positions(0, 10_000)  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    with SQLiteStore(path) as store:
        full_store.fill(store)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target.db"


def test_every_kind_of_record_is_in_the_source(source: Path) -> None:
    assert [name for name, rows in table_rows(source).items() if not rows] == ["backfill_draws"]
    assert {record.kind for record in side_records(source)} == {"open_run", "process", "amendment", "tombstone"}


def test_a_copy_is_equal_record_by_record(source: Path, target: Path) -> None:
    copy(source, target)
    assert exported(target) == exported(source)
    assert table_rows(target) == table_rows(source)
    assert side_records(target) == side_records(source)
    assert positions(target) == positions(source)
    assert not find_state_file(str(source), str(target)).exists()
    with SQLiteStore(target) as store:
        assert store.check(deep=True) == []


def test_a_copy_of_a_file_from_before_the_product_was_renamed_is_equal(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "golden.db"
    shutil.copy(GOLDEN, source)
    SQLiteStore(source).close()  # migrates it
    copy(source, target)
    assert exported(target) == exported(source)
    assert positions(target) == positions(source)


@pytest.mark.process
def test_a_copy_to_postgresql_and_back_is_equal(
    source: Path, target: Path, tmp_path: Path, empty_database: str
) -> None:
    state = tmp_path / "state"
    with closing(cast(Any, open_backends(str(tmp_path / "between.db"), empty_database))) as between:
        with open_source(str(source), None) as opened:
            copy_store(opened, between, state, quiet)
        between.save_rule(Rule(name="later", version="1", evaluators=({"key": "k"},)))
        between.delete_rule("later")
        with open_target(str(target), None) as empty:
            copy_store(between, empty, state, quiet)
    before, after = table_rows(source), table_rows(target)
    assert [row for row in after.pop("rules") if "later" not in str(row)] == before.pop("rules")
    assert [row for row in after.pop("settings") if "later" not in str(row)] == before.pop("settings")
    assert [row for row in after.pop("audit") if "later" not in str(row)] == before.pop("audit")
    assert after == before
    assert positions(target) == positions(source)


@pytest.mark.process
def test_a_copy_to_clickhouse_and_postgresql_and_back_is_equal(
    source: Path, target: Path, clickhouse_url: str, empty_database: str
) -> None:
    before = exported(source)
    with (
        open_source(str(source), None) as opened,
        open_target(clickhouse_url, empty_database) as empty,
    ):
        copy_store(opened, empty, source.parent / "state", quiet)
    with (
        open_source(clickhouse_url, empty_database) as opened,
        open_target(str(target), None) as empty,
    ):
        copy_store(opened, empty, source.parent / "state", quiet)
    assert exported(target) == before
    assert table_rows(target) == table_rows(source)
    assert [one[:6] for one in positions(target) if one.span_count] == [
        one[:6] for one in positions(source) if one.span_count
    ]


@pytest.mark.process
def test_rules_continue_on_databases_where_they_were(source: Path, clickhouse_url: str, empty_database: str) -> None:
    with open_source(str(source), None) as opened, open_target(clickhouse_url, empty_database) as empty:
        copy_store(opened, empty, source.parent / "state", quiet)
    with SQLiteStore(source) as before:
        [status] = before.status()
    with closing(connect(clickhouse_url, control=empty_database)) as store:
        [copied] = store.status()
        assert (copied.counts, copied.behind, copied.cursor) == (status.counts, 0, status.cursor)
        store.append([new := run("new")])
        until(lambda: store.status()[0].behind == 1)
        page = store.changes(copied.cursor)
        assert [head.trace_id for head in page.heads] == [new.trace_id]
        assert store.decide(slice(on(page.heads[0]), after=copied.cursor, upto=page.cursor)) == [True]
        assert store.status()[0].behind == 0
        leased = store.claim("r", "1", "w", 60, limit=100)
        assert new.trace_id in {one.target.trace_id for one in leased}
        assert min(one.claim for one in leased) > max(one.claim for one in store.decisions() if one.verdict == "scored")


def test_an_empty_store_is_copied(tmp_path: Path, target: Path) -> None:
    SQLiteStore(tmp_path / "empty.db").close()
    copy(tmp_path / "empty.db", target)
    assert exported(target) == []


def test_rules_continue_where_they_were(source: Path, target: Path) -> None:
    copy(source, target)
    with SQLiteStore(source) as before, SQLiteStore(target) as after:
        assert after.status()[0].behind == before.status()[0].behind == 0
        assert after.status()[0].counts == before.status()[0].counts
        store: Any = after
        store.append([new := run("new")])
        cursor = after.cursor("r", "1")
        page = after.changes(cursor)
        assert [head.trace_id for head in page.heads] == [new.trace_id]
        assert after.decide(slice(on(page.heads[0]), after=cursor, upto=page.cursor)) == [True]
        assert [one.target.trace_id for one in after.claim("r", "1", "w", 60, limit=100)][-1] == new.trace_id


def test_an_amended_run_stays_amended_when_it_is_sent_again(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source.db"
    sent = run(outputs="first")
    with SQLiteStore(source) as store:
        store.append([sent])
        store.amend(sent.trace_id, sent.span_id, {"metadata": {"plan": "gold"}})
    copy(source, target)
    with SQLiteStore(target) as store:
        store.append([sent])
        assert store.run(sent.trace_id).metadata == {"plan": "gold"}


def test_feedback_of_later_leases_still_replaces_that_of_earlier_ones(source: Path, target: Path) -> None:
    copy(source, target)
    with SQLiteStore(target) as store:
        scored = next(one for one in store.feedbacks(key="concise") if one.claim)
        late = Feedback(target=scored.target, key="concise", score=0.99, rule="r", evaluator="concise", claim=0)
        store.add_feedback([late])
        assert [one.id for one in store.feedbacks(key="concise", target=scored.target)] == [scored.id]


def test_a_store_that_is_not_empty_is_no_target(source: Path, target: Path) -> None:
    with SQLiteStore(target) as store:
        store.append([run()])
    with pytest.raises(Refused, match="already holds records; copy into a new, empty store"):
        copy(source, target)


def test_the_progress_of_another_copy_is_not_used(source: Path, target: Path, tmp_path: Path) -> None:
    find_state_file(str(source), "").write_text(json.dumps({"source": "a.db", "target": "b.db"}))
    with pytest.raises(Refused, match="describes a copy from"):
        copy(source, target)


def test_a_file_that_does_not_exist_is_no_source(target: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no file"):
        copy(tmp_path / "missing.db", target)
    assert not target.exists()


class Stopped(Exception):
    pass


def interrupted(source: Path, target: Path, at: str, steps: int) -> None:
    """Copy until some steps of a phase are done."""
    left = steps

    def report(what: str, count: int) -> None:
        nonlocal left
        left -= what == at
        if not left:
            raise Stopped

    with open_source(str(source), None) as opened, open_target(str(target), None) as empty, pytest.raises(Stopped):
        copy_store(opened, empty, find_state_file(str(source), str(target)), report)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACES_PER_STEP", "FEEDBACK_PER_STEP", "ROWS_PER_STEP"):
        monkeypatch.setattr(f"spanwise.collector.import_export.store_copy.{name}", 7)


@pytest.mark.parametrize(
    ("at", "steps"), [("traces", 1), ("traces", 3), ("feedback", 1), ("feedback", 2), ("rules", 1), ("decisions", 1)]
)
def test_an_interrupted_copy_is_continued(source: Path, target: Path, at: str, steps: int, small_steps: None) -> None:
    interrupted(source, target, at, steps)
    copy(source, target)
    assert exported(target) == exported(source)
    assert table_rows(target) == table_rows(source)
    assert positions(target) == positions(source)


def test_changes_of_the_source_after_an_interruption_are_copied(source: Path, target: Path, small_steps: None) -> None:
    interrupted(source, target, "feedback", 2)
    with SQLiteStore(source) as store:
        first, second, third, *_ = (
            store.traces(name="answer 1").items
            + store.traces(name="answer 2").items
            + store.traces(name="answer 3").items
        )
        store.append([child(store.trace(first.trace_id).root, "grew"), run("came later")])
        store.delete(trace_ids=(second.trace_id,))
        store.amend(third.trace_id, store.trace(third.trace_id).root.span_id, {"outputs": ""})
        store.delete_feedback([store.feedbacks(key="helpful").items[0].id])
        store.feedback(Target(trace_id=third.trace_id), "helpful", False, author="bob")
        store.delete_rule("r")
    copy(source, target)
    assert exported(target) == exported(source)
    assert table_rows(target) == table_rows(source)
    assert positions(target) == positions(source)
    assert side_records(target) == side_records(source)


@pytest.fixture
def served(source: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(source) as store:
        yield store


def test_a_snapshot_is_copied_while_the_source_is_written(source: Path, target: Path, served: SQLiteStore) -> None:
    before = served.count()

    def report(what: str, count: int) -> None:
        served.append([run("meanwhile")])
        served.feedback(Target(session_id="s-1"), "meanwhile", 1.0)

    with open_source(str(source), None) as opened, open_target(str(target), None) as empty:
        copy_store(opened, empty, find_state_file(str(source), str(target)), report)
    assert served.count()["traces"] > before["traces"]
    with SQLiteStore(target) as store:
        assert store.count() == before


KILLED = """
import os, signal, sys
from spanwise.collector.import_export import copy_store, find_state_file, open_source, open_target, store_copy
store_copy.TRACES_PER_STEP = store_copy.FEEDBACK_PER_STEP = 5
source, target, at, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
def report(what, count):
    global left
    left -= what == at
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
with open_source(source, None) as opened, open_target(target, None) as empty:
    copy_store(opened, empty, find_state_file(source, target), report)
"""


@pytest.mark.process
@pytest.mark.parametrize(("at", "steps"), [("traces", 4), ("feedback", 2), ("rules", 1), ("compared traces", 1)])
def test_a_killed_copy_is_continued(source: Path, target: Path, at: str, steps: int) -> None:
    with python(KILLED, source, target, at, str(steps)) as process:
        assert process.wait(100) == -9
    copy(source, target)
    assert exported(target) == exported(source)
    assert table_rows(target) == table_rows(source)


def test_contents_tell_the_day_that_differs(source: Path, target: Path) -> None:
    copy(source, target)
    with SQLiteStore(target) as store:
        changed = store.feedbacks(key="order").items[0]
        store.change_feedback({changed.id: {"comment": "another"}})
    with closing(open_snapshot(source)) as one, closing(open_snapshot(target)) as other:
        here, there = summarize(one, quiet), summarize(other, quiet)  # type: ignore[arg-type]
    assert here.find_differences(there) == ["2025-06-15"]


def test_connect_opens_the_copy(source: Path, target: Path) -> None:
    copy(source, target)
    with closing(connect(target)) as store:
        assert store.trace("2" * 32).root.project == "p"
