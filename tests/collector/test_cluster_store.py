"""Stores whose traces and control records are in separate databases: opening, passwords, maintenance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from collector.making import SECOND, run
from polling import until
from spanwise.collector import connect
from spanwise.collector.address_parsing import expand_environment, hide_password, remove_secrets
from spanwise.collector.errors import Refused
from spanwise.collector.records import Retention
from spanwise.collector.stores import ClusterStore, LocalStore, Store, open_backends
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl, SQLiteTraces

TRACES, CONTROL = "clickhouse://ann:pa%24s@db.test:9/spans", "postgresql://ann:pa%24s@db.test:9/control"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPANWISE_URL", "SPANWISE_CONTROL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_backends(str(tmp_path / "traces.db"), str(tmp_path / "control.db"))) as made:
        yield cast(Store, made)


# Opening


def test_a_store_of_two_files_is_used_like_any_other(store: Store) -> None:
    store.append([run("a")])
    store.set_retention(Retention(max_age_ns=1))
    assert [trace.name for trace in store.traces()] == ["a"]
    assert store.retention() == [Retention(max_age_ns=1)]
    assert isinstance(store, LocalStore)
    assert store.is_exclusive  # nothing else can write the file of control records
    assert (store.trouble(), store.health()["writable"]) == (None, 1)
    assert store.where.endswith("control.db")


def test_traces_in_clickhouse_need_a_place_for_control_records() -> None:
    with pytest.raises(Refused, match=r"'clickhouse://ann@db.test:9/spans' holds traces only; .* SPANWISE_CONTROL"):
        connect(TRACES)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_alone_holds_no_traces(scheme: str) -> None:
    with pytest.raises(Refused, match=r"'postgres(ql)?://ann@db/x' can hold control records, but no traces; name a"):
        connect(f"{scheme}://ann:secret@db/x")


@pytest.mark.parametrize("where", ["spanwise.db", "http://127.0.0.1:1"])
def test_other_stores_take_no_place_for_control_records(where: str) -> None:
    with pytest.raises(Refused, match="belong to a clickhouse:// store"):
        connect(where, control=CONTROL)


def test_the_variable_for_control_records_does_not_concern_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANWISE_CONTROL", CONTROL)
    with closing(connect(tmp_path / "spanwise.db")) as store:
        assert store.traces().items == ()


@pytest.mark.parametrize("traces", ["mysql://ann:geheim@h/d", "https://ann:geheim@h/d"])
def test_an_unknown_engine_of_traces_is_refused_without_its_password(traces: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is no trace store") as caught:
        open_backends(traces, str(tmp_path / "control.db"))
    assert "geheim" not in str(caught.value)


def test_an_unknown_engine_of_control_records_is_refused_and_the_traces_are_closed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="'mysql://ann@h/d' is no control store"):
        open_backends(str(tmp_path / "traces.db"), "mysql://ann:geheim@h/d")
    DatabaseFile(tmp_path / "traces.db").close()  # nobody holds it


def test_an_unreachable_database_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
        connect("clickhouse://ann:geheim@127.0.0.1:1/spans", control=tmp_path / "control.db").traces()
    assert "geheim" not in str(caught.value)


# Passwords


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("clickhouse://h/d", "clickhouse://h/d"),
        ("clickhouse://ann@h/d", "clickhouse://ann@h/d"),
        ("clickhouse://ann:p@h:1/d", "clickhouse://ann@h:1/d"),
        ("postgresql://ann:p@ss:/?#@h/d", "postgresql://ann@h/d"),
        ("postgresql://ann@h/d?password=p&sslpassword=p", "postgresql://ann@h/d"),
        ("postgresql://:p@h/d", "postgresql://@h/d"),
        ("folder/spanwise.db", "folder/spanwise.db"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_a_password_comes_from_the_environment_and_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "a b@/:?")
    assert expand_environment("clickhouse://ann:${DB_PASSWORD}@h/d") == "clickhouse://ann:a%20b%40%2F%3A%3F@h/d"


def test_a_variable_that_is_not_set_is_refused() -> None:
    with pytest.raises(Refused, match="'clickhouse://ann@h/d' refers to the environment variable NO_SUCH_NAME, which"):
        expand_environment("clickhouse://ann:${NO_SUCH_NAME}@h/d")


def test_texts_of_drivers_lose_the_password_in_both_forms() -> None:
    text = f"cannot parse {TRACES!r}: 'pa%24s', 'pa$s'"
    assert remove_secrets(text, TRACES) == "cannot parse 'clickhouse://ann@db.test:9/spans': '***', '***'"


def test_the_default_start_imports_no_driver() -> None:
    code = (
        "import sys, spanwise.collector, spanwise.collector.server, spanwise.cli.commands.serve\n"
        "from spanwise.collector.stores.sqlite import SQLiteStore\n"
        "names = ('clickhouse_connect', 'psycopg', 'psycopg_pool', 'spanwise.collector.stores.clickhouse',"
        " 'spanwise.collector.stores.postgres', 'spanwise.collector.import_export.store_copy')\n"
        "print([name for name in names if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("driver", "extra", "traces", "control"),
    [
        ("clickhouse_connect", "clickhouse", "clickhouse://h/d", "control.db"),
        ("psycopg", "postgres", "traces.db", "postgresql://h/d"),
    ],
)
def test_a_missing_driver_is_one_line_that_names_the_extra(
    driver: str, extra: str, traces: str, control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("spanwise.collector.stores.")]:
        if "clickhouse" in name or "postgres" in name:
            monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == driver]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused) as caught:
        open_backends(traces, control)
    assert f"needs '{driver}', which is not installed: pip install '.[{extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


# Maintenance


def test_a_served_store_is_pruned_by_its_rules(tmp_path: Path) -> None:
    files = DatabaseFile(tmp_path / "traces.db"), DatabaseFile(tmp_path / "control.db")
    store: Any = ClusterStore(
        cast(Any, SQLiteTraces(files[0])),
        cast(Any, SQLiteControl(files[1])),
        files[1],
        maintenance_s=0.05,
        retry_s=0.01,
    )
    with closing(store):
        store.append([run("old"), run("new", start_ns=2**62)])
        store.set_retention(Retention(max_age_ns=SECOND))
        store.announce("http://127.0.0.1:1")
        until(lambda: [trace.name for trace in store.traces()] == ["new"])
        store.announce(None)


def test_of_two_processes_one_applies_the_rules(tmp_path: Path) -> None:
    files = DatabaseFile(tmp_path / "traces.db"), DatabaseFile(tmp_path / "control.db")
    backends: Any = SQLiteTraces(files[0]), SQLiteControl(files[1])
    one, other = (ClusterStore(*backends, maintenance_s=1000, retry_s=0.01) for _ in range(2))
    store: Any = one
    for each in (one, other):
        each.announce("http://127.0.0.1:1")
    until(lambda: len(store.leases()) == 1)
    [lease] = store.leases()
    store.append([run("old")])
    store.set_retention(Retention(max_age_ns=SECOND))
    until(lambda: other._maintenance is not None)
    assert store.leases() == [lease]
    one.close()
    other.close()
