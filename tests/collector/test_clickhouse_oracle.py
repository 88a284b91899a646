"""Random questions about 3,000 odd traces: ClickHouse gives the answers that SQLite gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from collector.clickhouse_server import ClickHouseServer
from collector.conformance_traces import eventually
from collector.odd_traces import Odd, ask_lists, ask_sums, make_filter, make_odd
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import iterate_pages
from spanwise.collector.stores import CombinedStore, Store
from spanwise.collector.stores.clickhouse import ClickHouseTraces
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl, SQLiteStore

pytestmark = pytest.mark.slow

TRACES, BATCH, SEED = 3_000, 700, 36
QUESTIONS = 20  # in each of the parts, so that several workers share them
PARTS = 4


class Stores(NamedTuple):
    """The two stores with the same traces, and the traces."""

    sqlite: Store
    clickhouse: Store
    odd: Odd


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, clickhouse_server: ClickHouseServer) -> Iterator[Stores]:
    folder, odd = tmp_path_factory.mktemp("oracle"), make_odd(TRACES, SEED)
    with clickhouse_server.database() as url, SQLiteStore(folder / "spanwise.db") as sqlite:
        control = SQLiteControl(DatabaseFile(folder / "control.db"))
        with closing(CombinedStore(ClickHouseTraces(url), control)) as clickhouse:
            for store in (sqlite, clickhouse):
                for start in range(0, len(odd.runs), BATCH):
                    store.append(odd.runs[start : start + BATCH])
                store.add_feedback(odd.feedback)
            assert eventually(lambda: sqlite.traces(text="parcel OR depot").unindexed, 0, 60)
            yield Stores(sqlite, clickhouse, odd)  # type: ignore[arg-type]


def answers(store: Store, seed: int, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to random questions about the traces that pass some conditions."""
    try:
        pick = random.Random(seed)
        return {**dict(ask_lists(store, pick, conditions)), **dict(ask_sums(store, pick, conditions))}
    except Refused as refused:
        return {"refused": str(refused)}


@pytest.mark.parametrize("part", range(PARTS))
def test_random_questions_have_the_same_answers(stores: Stores, part: int) -> None:
    pick = random.Random(SEED + part)
    passing = 0
    for _ in range(QUESTIONS):
        conditions, seed = make_filter(pick), pick.getrandbits(32)
        expected, found = (answers(store, seed, conditions) for store in (stores.sqlite, stores.clickhouse))
        for question, answer in expected.items():
            assert found.get(question) == answer, (conditions, question)
        passing += any(answer for answer in expected.values())
    assert passing > QUESTIONS // 2  # most filters pass some traces


def test_whole_traces_are_equal(stores: Stores) -> None:
    ids = [trace.trace_id for trace in stores.sqlite.traces(limit=500)]
    for expected, found in zip(stores.sqlite.many(ids), stores.clickhouse.many(ids), strict=True):
        assert {run.span_id: run for run in found.runs} == {run.span_id: run for run in expected.runs}
        assert {each.id: each for each in found.feedback} == {each.id: each for each in expected.feedback}
        assert found.root == expected.root


def test_menus_are_equal(stores: Stores) -> None:
    fields = "project environment name kind model tag session user prompt prompt_version agent finish_reason feedback"
    for field in (*fields.split(), "metadata", "metadata.a"):
        assert stores.clickhouse.values(field, limit=500) == stores.sqlite.values(field, limit=500), field


@pytest.mark.parametrize("table", ["traces", "runs", "documents", "feedback", "experiment_results"])
def test_tables_are_equal(stores: Stores, table: str) -> None:
    def read(store: Store) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = store.table_page(table, Filter(project="shop"), limit=300, cursor=cursor)
            columns = {name: values for name, values in page.columns.items() if name != "complete"}
            rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            cursor = page.next
            if cursor is None:
                return sorted(rows, key=repr)

    expected, found = read(stores.sqlite), read(stores.clickhouse)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert _sorted_lists(one) == _sorted_lists(other)


def _sorted_lists(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose lists do not depend on the order in which spans arrived."""
    return {name: sorted(str(value)) if name in ("tags", "models") else value for name, value in row.items()}


def test_rules_filters_have_the_same_results(stores: Stores) -> None:
    pick = random.Random(SEED)
    filters = [Filter(**conditions) for _ in range(60) if not _is_for_lists(conditions := make_filter(pick))]
    results = []
    for store in (stores.sqlite, stores.clickhouse):
        heads = iterate_heads(store, filters)
        results.append({head.trace_id: head.passes for head in heads})
    assert results[0] == results[1]


def _is_for_lists(conditions: dict[str, Any]) -> bool:
    """Return whether rules have no such conditions, or SQLite has not indexed the text of all traces."""
    return "document_feedback" in conditions or "text" in conditions


def iterate_heads(store: Store, filters: list[Filter]) -> Iterator[Any]:
    cursor: str | None = None
    while (page := store.changes(cursor, filters=filters)).heads:
        yield from page.heads
        cursor = page.cursor


def test_each_page_of_a_list_is_full(stores: Stores) -> None:
    pages = []
    iterate = iterate_pages(
        lambda cursor: pages.append(page := stores.clickhouse.traces(limit=97, cursor=cursor)) or page
    )
    count = sum(1 for _ in iterate)
    assert [len(page) for page in pages[:-1]] == [97] * (len(pages) - 1)
    assert count == sum(len(page) for page in pages)


def test_counts_are_equal(stores: Stores) -> None:
    assert stores.clickhouse.count() == stores.sqlite.count()
