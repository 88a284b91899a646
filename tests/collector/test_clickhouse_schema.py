"""Tables on ClickHouse: durability, one version for all processes, statements for a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.stores.clickhouse import ClickHouseTraces
from spanwise.collector.stores.clickhouse.connection import Connection, Database
from spanwise.collector.stores.clickhouse.schema import TABLES, create_statements, get_column_types, get_mutation_target

pytestmark = pytest.mark.process


@pytest.fixture
def db(clickhouse_url: str) -> Iterator[Database]:
    with closing(Database(clickhouse_url)) as db:
        yield db


def test_what_is_acknowledged_is_on_disk(db: Database) -> None:
    sql = "SELECT name, create_table_query FROM system.tables WHERE database = currentDatabase()"
    tables = dict(db.query(sql))
    assert tables.keys() == {table.name for table in TABLES}
    for statement in tables.values():
        assert "fsync_after_insert = 1, fsync_part_directory = 1" in statement
        assert "non_replicated_deduplication_window = 1000" in statement


def test_inserts_are_not_acknowledged_before_they_are_stored(db: Database) -> None:
    sql = "SELECT name, value FROM system.settings WHERE name IN ('async_insert', 'insert_deduplicate')"
    assert dict(db.query(sql)) == {"async_insert": "0", "insert_deduplicate": "1"}


def test_the_engine_knows_every_setting_of_the_tables(db: Database) -> None:
    names = ("fsync_after_insert", "fsync_part_directory", "non_replicated_deduplication_window")
    found = db.query(
        "SELECT name FROM system.merge_tree_settings WHERE name IN {names:Array(String)}", {"names": list(names)}
    )
    assert {row[0] for row in found} == set(names)


def test_every_column_has_a_comment_and_a_type_that_the_engine_shows(db: Database) -> None:
    sql = "SELECT table, name, type, comment FROM system.columns WHERE database = currentDatabase()"
    found = db.query(sql)
    assert not [row for row in found if not row[3]]
    shown = {(table, name): type.replace(" ", "") for table, name, type, _ in found}
    for table in TABLES:
        for name, type in get_column_types(table.name).items():
            if name not in ("floor", "first_number"):  # sent, but not stored
                assert shown[table.name, name] == type.replace(" ", "")


def test_the_same_insert_with_its_token_is_stored_once(db: Database) -> None:
    for _ in range(2):
        db.insert("tombstones", {"trace_id": ["a", "b"], "batch": ["x", "x"]}, token="t1")
    db.insert("tombstones", {"trace_id": ["a", "b"], "batch": ["x", "x"]}, token="t2")
    assert db.query("SELECT count() FROM tombstones") == [(4,)]


def test_processes_that_open_a_new_database_at_once_agree(clickhouse_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(ClickHouseTraces, [clickhouse_url] * 4))
    identities = {store.identity() for store in stores}
    for store in stores:
        store.close()
    with closing(ClickHouseTraces(clickhouse_url)) as later:
        identities.add(later.identity())
    assert len(identities) == 1


def test_a_database_of_a_newer_version_is_refused(db: Database, clickhouse_url: str) -> None:
    db.insert("database_facts", {"name": ["schema_version"], "value": ["999"]})
    with pytest.raises(Refused, match="has version 999 of the tables, this Spanwise knows 1; upgrade Spanwise"):
        ClickHouseTraces(clickhouse_url)


def test_statements_for_a_cluster_are_valid_sql(db: Database) -> None:
    statements = create_statements("main")
    for statement in statements:
        [(parsed,)] = db.query("SELECT formatQueryOrNull({sql:String})", {"sql": statement})
        assert parsed is not None, statement
    assert sum("ReplicatedReplacingMergeTree" in statement for statement in statements) >= 8
    assert all("ON CLUSTER main" in statement for statement in statements)


def test_all_rows_of_a_trace_are_on_one_shard() -> None:
    distributed = [statement for statement in create_statements("main") if "ENGINE = Distributed" in statement]
    for name in ("spans", "traces", "feedback", "amendments", "open_runs", "tombstones"):
        [statement] = [one for one in distributed if f" {name}_local" in one]
        assert f"{name}_local, cityHash64(trace_id))" in statement


def test_mutations_in_a_cluster_are_of_the_local_tables() -> None:
    assert get_mutation_target("spans", "main") == "spans_local ON CLUSTER main"
    assert get_mutation_target("spans", None) == "spans"


@pytest.mark.parametrize(
    "url",
    [
        "clickhouse://",
        "clickhouse://host:port/db",
        "clickhouse://host/db?secure=1&unknown=2",
        "clickhouse://host/db?cluster=a;DROP TABLE spans",
        "http://host/db",
    ],
)
def test_an_invalid_address_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(Refused) as caught:
        Connection(url.replace("//", "//user:geheim@"))
    assert "geheim" not in str(caught.value)


def test_a_server_that_is_away_is_unavailable_and_the_password_is_not_shown() -> None:
    with pytest.raises(Unavailable, match=r"cannot be reached: .*refused") as caught:
        ClickHouseTraces("clickhouse://user:geheim@127.0.0.1:9/spans")
    assert "geheim" not in repr(caught.value)
    assert caught.value.__cause__ is None
