"""A damaged file: nothing more is acknowledged, what is wrong is listed, what can be read is saved."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from collector import former_file
from collector.making import child, run
from spanwise.collector.errors import Halted, Refused, StoreError
from spanwise.collector.records import Amendment, Example
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.schema import PAGE_SIZE
from spanwise.collector.stores.sqlite.maintenance import backup_and_recovery
from spanwise.collector.stores.sqlite.maintenance.backup_and_recovery import DamagedTable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


def filled(file: Path, traces: int = 600) -> dict[str, list[str]]:
    """A file of some MB; returns its traces with their spans."""
    with SQLiteStore(file) as store:
        roots = [run(f"r{n}", inputs=os.urandom(1500).hex(), resource={"host": n % 3}) for n in range(traces)]
        runs = [one for root in roots for one in (root, child(root))]
        store.append(runs)
        for root in roots[::10]:
            store.feedback(root.trace_id, "good", 1, author="ann")
        store.save_examples("set", [Example(id=f"{n}", inputs={"n": n}) for n in range(50)])
        return {
            trace.trace_id: [one.span_id for one in trace.runs] for trace in store.many([r.trace_id for r in roots])
        }


def roots(file: Path, *names: str) -> list[int]:
    """The first pages of tables and indexes, from 0."""
    with closing(sqlite3.connect(file)) as db:
        found = dict(db.execute("SELECT name, rootpage FROM sqlite_schema").fetchall())
    return [found[name] - 1 for name in names]


def overwrite(file: Path, *pages: int) -> None:
    with file.open("r+b") as opened:
        for page in pages:
            opened.seek(page * PAGE_SIZE)
            opened.write(os.urandom(PAGE_SIZE))


def damage(file: Path) -> None:
    """Overwrite the root of what every span goes into."""
    overwrite(file, *roots(file, "spans_by_trace"))


def test_a_server_on_a_damaged_file_acknowledges_nothing_and_says_so(file: Path) -> None:
    filled(file, 20)
    damage(file)
    with SQLiteStore(file) as store, Server(store) as server, httpx.Client(base_url=server.url) as client:
        body = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
        answer = client.post("/v1/traces", json=body)
        assert (answer.status_code, "is damaged" in answer.text) == (503, True)
        assert int(answer.headers["retry-after"]) > 0
        ready = client.get("/readyz")
        assert (ready.status_code, "is damaged" in ready.json()["why"]) == (503, True)
        assert "spanwise_store_halted 1" in client.get("/metrics").text


SPAN = {
    "traceId": "1" * 32,
    "spanId": "1" * 16,
    "name": "x",
    "startTimeUnixNano": "1750000000000000000",
    "endTimeUnixNano": "1750000001000000000",
}


def test_what_reading_finds_damaged_stops_writing(file: Path) -> None:
    ids = filled(file, 20)
    overwrite(file, spans_leaves(file)[0])
    with SQLiteStore(file) as store:
        with pytest.raises(Halted, match="is damaged"):
            store.many(list(ids))
        with pytest.raises(Halted, match="is damaged"):
            store.feedback(next(iter(ids)), "good", 1)


def test_check_lists_what_is_wrong(file: Path) -> None:
    filled(file, 100)
    damage(file)
    problems = backup_and_recovery.check_file(str(file))
    assert any(problem.startswith("spans: ") for problem in problems)
    assert len(problems) > 1


def test_check_says_that_nothing_can_be_read(file: Path) -> None:
    filled(file, 1)
    overwrite(file, 0)
    [problem] = backup_and_recovery.check_file(str(file))
    assert "not a database" in problem
    with pytest.raises(Refused, match=r"cannot read .*the start of the file is damaged, restore a backup"):
        backup_and_recovery.recover(str(file), str(file) + ".saved")


def found_in(saved: Path) -> dict[str, list[str]]:
    with SQLiteStore(saved) as store:
        ids = [one.trace_id for one in store.traces(limit=10_000)]
        return {trace.trace_id: [one.span_id for one in trace.runs] for trace in store.many(ids)}


def recovered(
    file: Path,
) -> tuple[Path, dict[str, backup_and_recovery.TableRecovery], backup_and_recovery.RecoveryReport]:
    """Recover, and hold what is promised of every recovery."""
    saved, before = file.with_name("saved.db"), file.read_bytes()
    said = backup_and_recovery.recover(str(file), str(saved))
    assert file.read_bytes() == before
    assert said.problems == []
    assert set(os.listdir(file.parent)) - {"spanwise.db.reserve"} == {"spanwise.db", "saved.db"}
    assert backup_and_recovery.check_file(str(saved), deep=True) == []
    return saved, {one.table: one for one in said.tables}, said


def test_a_sound_file_is_saved_whole(file: Path) -> None:
    before = filled(file, 30)
    saved, tables, said = recovered(file)
    assert found_in(saved) == before
    assert (tables["spans"].saved, tables["spans"].lost, said.notes) == (60, 0, [])
    with SQLiteStore(saved) as store:
        assert len(store.examples("set")) == 50
        assert store.trace(next(iter(before))).root.resource == {"host": 0}


@pytest.mark.process
def test_rows_before_between_and_behind_damaged_pages_are_saved(file: Path) -> None:
    before = filled(file)
    leaves = spans_leaves(file)
    overwrite(file, leaves[len(leaves) // 4], leaves[len(leaves) // 2])
    saved, tables, _ = recovered(file)
    after = found_in(saved)
    spans = tables["spans"]
    assert spans.lost is not None
    assert 0 < spans.lost < 100
    assert spans.saved + spans.lost == 1200
    assert sum(map(len, after.values())) == spans.saved
    assert all(set(after[id]) <= set(before[id]) for id in after)


def spans_leaves(file: Path) -> list[int]:
    """Leaves with payloads, in order of their rows: those that hold what no other table is large enough for."""
    with closing(sqlite3.connect(file)) as db:
        sql = "SELECT pageno - 1 FROM dbstat WHERE name = 'spans' AND pagetype = 'leaf' ORDER BY path"
        return [row[0] for row in db.execute(sql)]


@pytest.mark.process
def test_a_file_that_was_cut_off_gives_what_stands_before_the_cut(file: Path) -> None:
    with SQLiteStore(file) as store:
        for lot in range(30):
            store.append([run(f"r{lot}", inputs=os.urandom(1500).hex()) for _ in range(20)])
    os.truncate(file, file.stat().st_size // PAGE_SIZE * 2 // 3 * PAGE_SIZE)
    saved, tables, _ = recovered(file)
    assert tables["spans"].saved > 100
    assert len(found_in(saved)) > 50


def test_traces_whose_rows_are_lost_are_made_again(file: Path) -> None:
    before = filled(file, 100)
    overwrite(file, *roots(file, "traces"))
    saved, tables, said = recovered(file)
    assert tables["traces"].saved < 100
    assert found_in(saved) == before
    assert any("traces were restored from" in note for note in said.notes)


def test_feedback_that_came_before_its_trace_takes_no_place_of_one_made_again(file: Path) -> None:
    before = filled(file, 100)
    with SQLiteStore(file) as store:
        store.feedback("f" * 32, "early", 1, author="ann")
    overwrite(file, *roots(file, "traces"))
    saved, _, _ = recovered(file)
    assert found_in(saved) == before
    with SQLiteStore(saved) as store:
        assert [one.target.trace_id for one in store.feedbacks(key="early")] == ["f" * 32]


@pytest.mark.process
@pytest.mark.parametrize(
    ("table", "told"), [("resources", "lost their resource"), ("feedback", None), ("known", None), ("feed", None)]
)
def test_what_is_lost_of_one_table_leaves_the_others(file: Path, table: str, told: str | None) -> None:
    before = filled(file, 100)
    overwrite(file, *roots(file, table))
    saved, tables, said = recovered(file)
    assert tables[table].lost != 0
    assert found_in(saved) == before
    assert told is None or any(told in note for note in said.notes)


def test_a_payload_that_cannot_be_read_leaves_the_rest_of_its_span(file: Path) -> None:
    before = filled(file, 10)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE spans SET payload = x'00' WHERE id = 3")
    with SQLiteStore(file) as store, pytest.raises(StoreError, match="the payload of a span cannot be read"):
        store.many(list(before))
    saved, _, said = recovered(file)
    assert found_in(saved) == before
    assert said.notes == ["1 spans have lost their payload (inputs, outputs, attributes)"]


def test_what_stood_in_the_log_alone_is_saved_and_the_log_stays(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with SQLiteStore(file) as store:
        store.append([run("late")])
        for end in ("", "-wal"):
            (copy / f"spanwise.db{end}").write_bytes(file.with_name(f"spanwise.db{end}").read_bytes())
    log = (copy / "spanwise.db-wal").read_bytes()
    backup_and_recovery.recover(str(copy / "spanwise.db"), str(tmp_path / "saved.db"))
    assert (copy / "spanwise.db-wal").read_bytes() == log
    assert len(found_in(tmp_path / "saved.db")) == 1


def test_an_older_file_is_saved_as_it_is_and_brought_up_to_date(file: Path) -> None:
    former_file.build(file)
    saved, _, _ = recovered(file)
    with SQLiteStore(file) as old, SQLiteStore(saved) as new:
        assert [one.trace_id for one in new.traces()] == [one.trace_id for one in old.traces()]


def test_a_new_span_does_not_answer_to_the_id_of_one_that_was_lost(file: Path, tmp_path: Path) -> None:
    saved, later = tmp_path / "saved.db", run("later", attributes={"gen_ai.response.id": "new"})
    with SQLiteStore(file) as store:
        store.append([run("lost", attributes={"gen_ai.response.id": "lost"})])
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DELETE FROM spans")
    assert "1 response ids without a span" in backup_and_recovery.check_file(str(file))
    assert backup_and_recovery.recover(str(file), str(saved)).problems == []
    with SQLiteStore(saved) as store:
        store.append([later])
        said = [Amendment("", "", {"outputs": id}, response_id=id) for id in ("lost", "new")]
        assert store.add_amendments(said) == [False, True]
        assert store.trace(later.trace_id).root.outputs == "new"


def test_nothing_is_overwritten(file: Path) -> None:
    filled(file, 1)
    with pytest.raises(Refused, match="already exists"):
        backup_and_recovery.recover(str(file), str(file))


@pytest.mark.parametrize("bad", [{1}, {500}, {999}, {0, 999}, {3, 4, 5, 700}, set(range(100, 300))])
def test_a_table_is_read_past_any_rows(tmp_path: Path, bad: set[int]) -> None:
    class Broken(sqlite3.Connection):
        """Cannot read some rows, as where a page is damaged."""

        def execute(self, sql: str, *values: object) -> sqlite3.Cursor:  # type: ignore[override]
            return super().execute(sql.replace("FROM t", "FROM broken") if "BETWEEN" in sql else sql, *values)  # type: ignore[arg-type]

    def readable(number: int) -> int:
        if number in bad:
            raise ValueError
        return number

    with closing(sqlite3.connect(tmp_path / "t.db", factory=Broken)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
        db.create_function("readable", 1, readable)
        db.execute("CREATE TEMP VIEW broken AS SELECT id AS rowid, readable(id) AS id FROM t")
        table = DamagedTable(db, "t", ["id"])
        assert sorted(row[0] for row in table) == sorted(set(range(1000)) - bad)
        assert table.damaged
