"""Flat tables: one definition for data frames, files and copies, with equal contents everywhere."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest
from pyarrow import parquet

from collector.making import SECOND, START, child, run
from collector.odd_records import FORMULA, HUGE, fill
from spanwise.collector import aio, connect
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import Forbidden, Refused
from spanwise.collector.filters import Filter
from spanwise.collector.import_export import write_analysis_copy, write_tables
from spanwise.collector.records import Example, Feedback, Key, Target
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.collector.stores.flat_tables import TABLES, Table, iterate_pages
from spanwise.collector.stores.queries import table_reader as table_records
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    fill(tmp_path / "spanwise.db")
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def frame_rows(table: Table, frame: pandas.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a frame as plain values: None for missing ones, times in nanoseconds."""
    columns = []
    for column in table.columns:
        values: Any = frame[column.name]
        if column.type == "time":
            values = values.astype("int64").where(values.notna(), None)
        columns.append([None if pandas.isna(value) else value for value in values])
    return list(zip(*columns, strict=True))


def read_time(text: str | None) -> int | None:
    if not text:
        return None
    return int(pandas.Timestamp(text).value)


def sqlite_rows(table: Table, path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        names = ", ".join(f'"{name}"' for name in table.names)
        rows = db.execute(f'SELECT {names} FROM "{table.name}" ORDER BY rowid').fetchall()
    readers: dict[str, Any] = {"time": read_time, "boolean": lambda value: None if value is None else bool(value)}
    types = [column.type for column in table.columns]
    return [
        tuple(readers[kind](value) if kind in readers else value for kind, value in zip(types, row, strict=True))
        for row in rows
    ]


def csv_rows(table: Table, path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a CSV file. Python's reader does not tell an empty text from a null: both are None."""
    readers: dict[str, Any] = {
        "time": read_time,
        "boolean": {"true": True, "false": False}.get,
        "integer": lambda text: int(text) if text else None,
        "real": lambda text: float(text) if text else None,
    }
    with path.open(newline="", encoding="utf-8") as lines:
        head, *rows = list(csv.reader(lines))
    assert head == list(table.names)
    types = [column.type for column in table.columns]
    return [
        tuple(readers.get(kind, lambda text: text or None)(text) for kind, text in zip(types, row, strict=True))
        for row in rows
    ]


def jsonl_rows(table: Table, path: Path) -> list[tuple[Any, ...]]:
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [tuple(read_time(row[c.name]) if c.type == "time" else row[c.name] for c in table.columns) for row in rows]


def parsed(table: Table, rows: list[tuple[Any, ...]], *, empty: bool = True) -> list[tuple[Any, ...]]:
    """Return the rows with JSON parsed, and without `empty` with None instead of empty texts."""
    kinds = [column.type for column in table.columns]
    return [
        tuple(
            json.loads(value) if kind == "json" and value is not None else None if value == "" and not empty else value
            for kind, value in zip(kinds, row, strict=True)
        )
        for row in rows
    ]


@pytest.mark.process
@pytest.mark.parametrize("contents", ["odd", "none"])
def test_all_forms_have_equal_contents(tmp_path: Path, contents: str) -> None:
    path = tmp_path / "spanwise.db"
    if contents == "odd":
        fill(path)
    with SQLiteStore(path) as store, Server(store) as server, HTTPStore(server.url) as client:
        write_analysis_copy(store, str(tmp_path / "copy.db"))
        for format in ("parquet", "csv", "jsonl"):
            write_tables(store, "all", format, tmp_path / format)
        for name, table in TABLES.items():
            pages = list(iterate_pages(store, table, Filter()))
            expected = [row for page in pages for row in zip(*page, strict=True)]
            assert bool(expected) == (contents == "odd")
            assert frame_rows(table, store.to_pandas(name)) == expected
            assert frame_rows(table, client.to_pandas(name)) == expected
            assert sqlite_rows(table, tmp_path / "copy.db") == expected
            arrow = parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
            assert frame_rows(table, arrow.to_pandas(types_mapper=pandas_type)) == expected
            assert csv_rows(table, tmp_path / "csv" / f"{name}.csv") == [
                tuple(None if value == "" else value for value in row) for row in expected
            ]
            assert jsonl_rows(table, tmp_path / "jsonl" / f"{name}.jsonl") == parsed(table, expected)


def pandas_type(kind: Any) -> Any:
    return {"int64": pandas.Int64Dtype(), "bool": pandas.BooleanDtype(), "string": pandas.StringDtype()}.get(str(kind))


def test_traces_have_the_fields_of_lists_and_the_content_of_the_root(store: SQLiteStore) -> None:
    traces = store.to_pandas("traces").set_index("trace_id")
    assert list(traces.index) == [trace.trace_id for trace in store.traces()]
    odd = traces.loc["2" * 32]
    assert (odd["span_count"], odd["error"], odd["cost"]) == (2, FORMULA, 0.5)
    assert json.loads(odd["inputs"]) == {
        "nan": None,
        "huge": str(HUGE),
        "deep": [[{"a": [None, True, 1.5]}]],
        "text": "a\nb\\n",
    }
    assert json.loads(odd["scores"]) == {"order": 1.0, "select": "ja\n", "from": None}
    assert odd["start_time"] == pandas.Timestamp(START + SECOND, tz="UTC")
    assert traces.loc["1" * 32, "inputs"] == '"why?"'
    assert pandas.isna(traces.loc["1" * 32, "outputs"])
    assert traces.loc["3" * 32, "inputs"] == "{}"


def test_feedback_refers_to_traces_of_the_table_or_to_other_targets(store: SQLiteStore) -> None:
    feedback = store.to_pandas("feedback")
    assert list(feedback["key"]) == ["tone", "exact", "mean", "group", "from", "select", "order"]
    assert set(feedback["trace_id"].dropna()) <= set(store.to_pandas("traces")["trace_id"])
    assert list(store.to_pandas("feedback", project="p", experiment="")["key"]) == ["from", "select", "order"]


def test_experiment_results_have_a_row_per_key_and_one_for_a_run_without_feedback(store: SQLiteStore) -> None:
    results = store.to_pandas("experiment_results").astype(object).where(lambda frame: frame.notna(), None)
    assert results[
        ["experiment", "dataset", "dataset_version", "example_id", "key", "score", "label"]
    ].values.tolist() == [
        [None, None, None, "x2", None, None, None],
        ["first", "faq", 1, "x1", "exact", 1.0, None],
        ["first", "faq", 1, "x1", "tone", None, "kind"],
    ]


def test_examples_are_those_of_the_newest_versions(store: SQLiteStore) -> None:
    examples = store.to_pandas("examples")
    assert examples[["dataset", "example_id", "version"]].values.tolist() == [
        ["faq", "x1", 2],
        ["faq", "x2", 1],
        ["other", "y", 1],
    ]


@pytest.mark.parametrize(
    ("conditions", "datasets"),
    [
        ({"dataset": "other"}, {"other"}),
        ({"project": "p"}, {"faq"}),
        ({"experiment": "e" * 32}, {"faq"}),
        ({"project": "q"}, set()),
    ],
)
def test_examples_are_limited_to_datasets_of_the_conditions(
    store: SQLiteStore, conditions: dict[str, Any], datasets: set[str]
) -> None:
    assert set(store.to_pandas("examples", **conditions)["dataset"]) == datasets


def test_conditions_select_the_traces_of_every_table(store: SQLiteStore) -> None:
    for name in ("traces", "runs", "documents"):
        assert set(store.to_pandas(name, name=store.trace("2" * 32).root.name)["trace_id"]) == {"2" * 32}
    assert set(store.to_pandas("runs", kind="evaluator")["trace_id"]) == {"4" * 32}
    assert set(store.to_pandas("runs", dataset="faq")["trace_id"]) == {"5" * 32}
    assert len(store.to_pandas("runs", project="nobody")) == 0
    with pytest.raises(Refused, match=r"unknown table 'run'; expected one of: traces, runs, .*did you mean 'runs'"):
        store.to_pandas("run")


def test_an_empty_frame_has_the_types_of_a_full_one(store: SQLiteStore) -> None:
    for name in TABLES:
        assert dict(store.to_pandas(name, project="nobody").dtypes) == dict(store.to_pandas(name).dtypes)


@pytest.mark.parametrize("table", ["traces", "runs", "documents", "feedback", "examples", "experiment_results"])
@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_pages_of_any_size_have_the_same_rows(store: SQLiteStore, table: str, limit: int) -> None:
    whole = list(zip(*store.table_page(table).columns.values(), strict=True))
    found, cursor = list[Any](), None
    while True:
        page = store.table_page(table, limit=limit, cursor=cursor)
        found += zip(*page.columns.values(), strict=True)
        cursor = page.next
        if cursor is None:
            break
    assert found == whole


def test_a_trace_larger_than_a_page_is_split(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run("large")
    store.append([root, *(child(root, f"c{number}", inputs="x" * 500) for number in range(40))])
    whole = store.to_pandas("runs", name="large")
    monkeypatch.setattr(table_records, "PAGE_BYTES", 3_000)
    page = store.table_page("runs", name="large", limit=10)
    assert 0 < page.count < 10
    assert store.to_pandas("runs", name="large").equals(whole)
    assert list(whole["name"]) == [one.name for one in store.trace(root.trace_id).runs]


def test_a_root_without_inputs_gets_those_of_the_runs_below_in_all_tables(store: SQLiteStore) -> None:
    root = run("workflow")
    store.append([root, child(root, "ask", kind="llm", inputs="When?", outputs="Monday")])
    for table in ("traces", "runs"):
        row = store.to_pandas(table, name="workflow").iloc[-1 if table == "traces" else 0]
        assert (row["inputs"], row["outputs"]) == ('"When?"', '"Monday"')


@pytest.mark.parametrize("cursor", ["x", "1", "1.x", "1.2.3", "a.b.c.d.e", "1.2.x.4.5"])
def test_an_invalid_cursor_is_refused(store: SQLiteStore, cursor: str) -> None:
    with pytest.raises(Refused, match="invalid cursor"):
        store.table_page("runs", cursor=cursor)


def test_the_frame_of_a_shared_store_and_of_an_async_one(tmp_path: Path, store: SQLiteStore) -> None:
    assert len(asyncio.run(aio(store).to_pandas("runs"))) == 6
    store.close()
    with connect(tmp_path / "spanwise.db") as handle:
        assert len(handle.to_pandas("runs")) == 6


@pytest.fixture
def scoped(store: SQLiteStore) -> Iterator[HTTPStore]:
    store.save_key(Key(id="p", name="p", sha256=hashlib.sha256(b"p").hexdigest(), project="p"))
    with Server(store, host="0.0.0.0", api_key="master") as server, HTTPStore(server.url, "p") as client:
        yield client


@pytest.mark.process
def test_a_key_of_a_project_sees_only_its_project(scoped: HTTPStore, tmp_path: Path) -> None:
    for table in ("traces", "runs"):
        assert set(scoped.to_pandas(table)["project"]) == {"p"}
    assert set(scoped.to_pandas("documents")["trace_id"]) == {"2" * 32}
    assert set(scoped.to_pandas("feedback")["key"]) == {"order", "select", "from", "exact", "tone"}
    assert set(scoped.to_pandas("experiment_results")["project"]) == {"p"}
    with pytest.raises(Forbidden, match="'examples'"):
        scoped.to_pandas("examples")
    with pytest.raises(Forbidden):
        scoped.to_pandas("runs", project="other")
    counts = write_analysis_copy(scoped, str(tmp_path / "copy.db"))
    assert (counts["traces"], counts["examples"]) == (2, 0)
    assert write_tables(scoped, "all", "csv", tmp_path / "csv")["examples"] == 0


def test_formulas_stay_texts_in_csv(store: SQLiteStore, tmp_path: Path) -> None:
    write_tables(store, "traces", "csv", tmp_path / "traces.csv")
    text = (tmp_path / "traces.csv").read_text("utf-8")
    assert '"' + FORMULA.replace('"', '""') + '"' in text
    read = pandas.read_csv(io.StringIO(text))
    assert FORMULA in set(read["error"]) & set(read["user_id"])


def test_an_existing_file_is_not_overwritten_and_a_failed_one_does_not_remain(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs.csv").write_text("mine")
    with pytest.raises(Refused, match="already exists"):
        write_tables(store, "runs", "csv", tmp_path / "runs.csv")
    with pytest.raises(Refused, match="unknown format 'xml'"):
        write_tables(store, "runs", "xml", tmp_path / "runs.xml")
    monkeypatch.setattr(store, "table_page", lambda *_, **__: 1 / 0, raising=False)
    with pytest.raises(ZeroDivisionError):
        write_tables(store, "all", "csv", tmp_path / "tables")
    assert sorted(path.name for path in tmp_path.glob("*") if "spanwise" not in path.name) == ["runs.csv"]


def test_a_column_that_an_older_server_lacks_has_nulls(store: SQLiteStore) -> None:
    class Older:
        def table_page(self, *args: Any, **kwargs: Any) -> Any:
            page = store.table_page(*args, **kwargs)
            return type(page)(columns={"trace_id": page.columns["trace_id"]}, next=page.next)

    pages = list(iterate_pages(Older(), TABLES["runs"], Filter()))
    assert pages[0][1] == [None] * 6


def test_texts_of_other_types_are_kept_as_json(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "typed.db") as store:
        store.append([run("a", resource={"service.name": 7})])
        assert list(store.to_pandas("runs")["service"]) == ["7"]


def count(store: Store, table: str) -> int:
    return len(store.to_pandas(table))


def test_rows_of_many_pages_over_http(store: SQLiteStore) -> None:
    store.append([run("many", project="many") for _ in range(2300)])
    store.add_feedback(
        [Feedback(target=Target(trace_id=t.trace_id), key="k", score=1) for t in store.each(project="many")]
    )
    store.save_examples("big", [Example(inputs=number) for number in range(2300)])
    with Server(store) as server, HTTPStore(server.url) as client:
        for table in ("traces", "runs", "feedback", "examples"):
            assert count(client, table) == count(store, table) > 2300
