"""Files from before the product was renamed: attributes that the product writes get their present names, once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector import former_file, making
from collector.test_migrations import KILLED_AT
from spanwise.collector import connect
from spanwise.collector.dialects import RawLog, RawSpan, read_log, read_run
from spanwise.collector.errors import Refused
from spanwise.collector.record_corrections import ATTRIBUTES, present_names, present_run
from spanwise.collector.records import Feedback, OpenRun, Run, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.file_lock import FileLock
from spanwise.collector.stores.sqlite.database.name_conversion import FORMER_APPLICATION_ID, adopt_former_file
from spanwise.collector.stores.sqlite.database.schema import APPLICATION_ID
from spanwise.collector.stores.sqlite.maintenance.backup_and_recovery import check_file, recover, restore

TEXT = 'said "assay.cost"'


def former_run(**fields: Any) -> Run:
    attributes = {"assay.partial": True, "assay.anything": 1, "assay.via": "x", "spanwise.mine": 2}
    resource = {"service.name": "shop", "assay.monitor": True, "assay.team": "a"}
    return making.run(
        inputs={"assay.cost": 1}, outputs=TEXT, attributes=attributes, metadata={"assay.cost": 3}, resource=resource,
        **fields,
    )  # fmt: skip


def dump(file: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(file)) as db:
        tables = [
            row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'words'")
        ]
        return {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


def ids(file: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(file)) as db:
        [[application], [version]] = (
            db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
    return application, version


@pytest.fixture
def runs() -> list[Run]:
    return [former_run() for _ in range(3)]


@pytest.fixture
def file(tmp_path: Path, runs: list[Run]) -> Path:
    """A database of the version before the renaming."""
    path = tmp_path / "database.db"
    with SQLiteStore(path) as store:
        target = Target(trace_id=runs[0].trace_id)
        metadata = {"assay.via": ["c"], "assay.sent.created_ns": 5, "assay.cost": 1, "assay.note": "mine"}
        store.append(runs, [Feedback(target=target, key="k", score=1.0, metadata=metadata)])
        plain = making.run(resource={**present_names(runs[0].resource)})
        store.append([plain], [])
    former_file.mark(path)
    return path


def test_names_of_the_product_are_converted_and_those_of_users_stay(file: Path, runs: list[Run]) -> None:
    with SQLiteStore(file) as store:
        run = store.trace(runs[0].trace_id).root
        [feedback] = store.feedbacks()
    assert run.attributes == {"spanwise.partial": True, "assay.anything": 1, "spanwise.via": "x", "spanwise.mine": 2}
    assert run.resource == {"service.name": "shop", "spanwise.monitor": True, "assay.team": "a"}
    assert (run.inputs, run.outputs, run.metadata) == ({"assay.cost": 1}, TEXT, {"assay.cost": 3})
    expected = {"spanwise.via": ["c"], "spanwise.sent.created_ns": 5, "assay.cost": 1, "assay.note": "mine"}
    assert feedback.metadata == expected
    assert ids(file)[0] == APPLICATION_ID


def test_a_run_that_is_delivered_again_changes_nothing(file: Path, runs: list[Run]) -> None:
    with SQLiteStore(file) as store:
        before = store.trace(runs[0].trace_id)
        cursor = store.changes().cursor
        store.append([present_run(run) for run in runs], [])
        assert store.trace(runs[0].trace_id) == before
        assert store.changes().cursor == cursor
        assert store.check(deep=True) == []
    with closing(sqlite3.connect(file)) as db:
        wrong = "SELECT count(*) FROM traces t WHERE size <> (SELECT sum(size) FROM spans WHERE trace = t.id)"
        assert db.execute(wrong).fetchone() == (0,)


def test_resources_that_become_equal_are_one(file: Path) -> None:
    with SQLiteStore(file):
        pass
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT count(*) FROM resources").fetchone() == (1,)


def test_a_file_that_is_converted_twice_is_unchanged(file: Path) -> None:
    with SQLiteStore(file):
        pass
    before = dump(file)
    former_file.mark(file)
    with SQLiteStore(file):
        pass
    assert dump(file) == before


@pytest.mark.process
@pytest.mark.parametrize(
    "statement", ["UPDATE resources SET", "json_set(data", "application_id = ", "user_version = 20"]
)
def test_a_conversion_that_is_killed_leaves_the_former_file_and_is_done_again(
    file: Path, statement: str, runs: list[Run]
) -> None:
    if statement == "UPDATE resources SET":  # one of two equal ones
        statement = "UPDATE spans SET resource"
    before = dump(file)
    killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(file), statement], check=False)
    assert (killed.returncode, ids(file)) == (-9, (FORMER_APPLICATION_ID, 19))
    assert dump(file) == before
    with SQLiteStore(file) as store:
        assert store.trace(runs[0].trace_id).root.attributes["spanwise.partial"] is True
        assert store.check(deep=True) == []


def test_a_payload_that_cannot_be_read_does_not_prevent_opening(file: Path, runs: list[Run]) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE spans SET payload = x'00' WHERE id = 1")
    with SQLiteStore(file) as store:
        assert store.trace(runs[1].trace_id).root.attributes["spanwise.partial"] is True


def test_a_former_file_is_checked_restored_and_recovered(file: Path, tmp_path: Path, runs: list[Run]) -> None:
    assert check_file(str(file), deep=True) == []
    recover(str(file), str(tmp_path / "recovered.db"))
    restore(str(file), str(tmp_path / "restored.db"))
    for name in ("recovered.db", "restored.db"):
        with SQLiteStore(tmp_path / name) as store:
            assert store.trace(runs[0].trace_id).root.attributes["spanwise.partial"] is True


def test_the_default_file_gets_the_present_name(
    file: Path, tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPANWISE_URL", raising=False)
    monkeypatch.setattr("spanwise.collector.store_connection.probe_server", lambda url: None)
    file.rename("assay.db")
    Path("assay.db.forward").mkdir()
    with connect() as store:
        assert store.trace(runs[0].trace_id).root == present_run(runs[0])
        assert Path(store.where).name == "spanwise.db"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spanwise.db", "spanwise.db.forward"]


def test_a_former_default_file_that_is_open_elsewhere_is_refused(file: Path, tmp_path: Path) -> None:
    file.rename(tmp_path / "assay.db")
    lock = FileLock(str((tmp_path / "assay.db").resolve()))
    with pytest.raises(Refused, match=r"assay\.db"):
        adopt_former_file(str(tmp_path / "spanwise.db"))
    lock.release()


def test_a_database_of_another_program_keeps_its_name(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "assay.db")) as db:
        db.execute("CREATE TABLE samples (id)")
    (tmp_path / "assay-demo.db").write_bytes(b"text, not a database, of more than a hundred bytes" * 4)
    for name in ("spanwise.db", "spanwise-demo.db"):
        adopt_former_file(str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["assay-demo.db", "assay.db"]


def test_received_spans_and_log_records_get_the_present_names() -> None:
    attributes = {"assay.cost": 0.5, "assay.local_root": "1" * 16, "assay.anything": 1}
    run = read_run(RawSpan("1" * 32, "1" * 16, "ask", attributes=attributes, scope="assay", trace_state="assay=1-1-2"))
    assert (run.cost, run.attributes.pop("otel.trace_state")) == (0.5, "assay=1-1-2")
    assert run.attributes == {"spanwise.local_root": "1" * 16, "assay.anything": 1}
    opened = read_log(RawLog("1" * 32, "1" * 16, 5, {"assay.span.name": "ask"}, "assay.span.started"))
    assert isinstance(opened, OpenRun)
    assert opened.name == "ask"


def test_a_present_name_wins_over_a_former_one() -> None:
    both = {"assay.cost": 1, "spanwise.cost": 2}
    assert present_names(both) == both


def test_attributes_without_former_names_are_not_copied() -> None:
    attributes = dict.fromkeys([*ATTRIBUTES.values(), "assay.mine"], 1)
    assert present_names(attributes) is attributes
