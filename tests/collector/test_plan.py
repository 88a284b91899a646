"""How filters reach their rows: SQLite keeps no statistics here, so the indexes that matter are named."""

import sqlite3

import pytest

from assay.collector.errors import Refused
from assay.collector.filters import Filter
from assay.collector.stores.sqlite import SQLiteStore
from assay.collector.stores.sqlite._plan import plan
from assay.collector.stores.sqlite._where import conditions, matching
from collector.making import run


@pytest.mark.parametrize(
    "filter",
    [
        Filter(feedback=(("k", "<", 0.5),)),
        Filter(missing=("k",)),
        Filter(untried=("k",)),
        Filter(failed=("k",)),
        Filter(skipped=("k",)),
    ],
)
def test_a_condition_on_feedback_looks_at_the_traces_own_feedback_only(tmp_path, filter):
    with SQLiteStore(tmp_path / "assay.db"):
        condition = conditions(filter)[-1]
        db = sqlite3.connect(tmp_path / "assay.db")
        plan = db.execute(
            f"EXPLAIN QUERY PLAN SELECT t.id FROM traces t WHERE {condition.sql}", condition.values
        ).fetchall()
        db.close()
    assert "INDEX feedback_by_trace (trace=? AND key=?)" in " ".join(row[-1] for row in plan)


def test_traces_with_errors_have_an_index(tmp_path):
    with SQLiteStore(tmp_path / "assay.db"):
        db = sqlite3.connect(tmp_path / "assay.db")
        found = plan(db, Filter(status="error", name="n", project="p"))
        rows = db.execute(f"EXPLAIN QUERY PLAN SELECT t.id FROM {found.source} WHERE {found.where}", found.values)
        way = " ".join(row[-1] for row in rows)
        db.close()
    assert "USING INDEX traces_with_errors" in way


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("why not", '"why" "not"'),
        ("pay*", '"pay"*'),
        ("state-of-the-art", '"state" "of" "the" "art"'),
        ("it's x_y a.b", '"it" "s" "x" "y" "a" "b"'),
        ('"quoted" AND (x)', '"quoted" "AND" "x"'),
        ("cafe\u0301", '"café"'),
        ("a\x00b", '"a" "b"'),
        ("a* a* ab* b* b", '"ab"* "b"'),
    ],
)
def test_a_text_is_searched_by_its_words(tmp_path, text, words):
    assert matching(text) == words
    with SQLiteStore(tmp_path / "assay.db") as store:
        assert store.traces(text=text).items == ()


def test_a_text_of_many_beginnings_is_refused_and_soon(tmp_path):
    with SQLiteStore(tmp_path / "assay.db") as store:
        assert store.traces(text="a* " * 100).items == ()
        for many in (" ".join(f"{letter}*" for letter in "abcdefghi"), "-".join(f"{n:x}*" for n in range(20_000))):
            with pytest.raises(Refused, match="more than 8 beginnings"):
                store.traces(text=many)


def test_a_text_without_a_word_is_refused(tmp_path):
    assert matching(" - * ") == ""
    with SQLiteStore(tmp_path / "assay.db") as store, pytest.raises(Refused, match="holds no word"):
        store.traces(text=" - * ")


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
        ({}, "traces_shown"),
        ({"experiment": ""}, "traces_shown"),
        ({"project": "p"}, "traces_shown_by_project (project=?)"),
        ({"kind": "evaluator"}, "traces_of_evaluators"),
        ({"kind": "evaluator", "project": "p"}, "traces_of_evaluators"),
        ({"kind": "llm"}, "traces_by_start"),
        ({"any_kind": "evaluator", "project": "p"}, "traces_by_project (project=?)"),
    ],
    ids=str,
)
def test_many_judgements_slow_no_list_down(tmp_path, conditions, index):
    with SQLiteStore(tmp_path / "assay.db") as store:
        store.append([run(kind="llm"), run(kind="evaluator")])
        db = sqlite3.connect(tmp_path / "assay.db")
        found = plan(db, Filter(**conditions))
        sql = f"SELECT t.id FROM {found.source} WHERE {found.where} ORDER BY t.start_ns DESC, t.id DESC"
        way, *_ = [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", found.values)]
        db.close()
    assert way.endswith(f"USING INDEX {index}")
