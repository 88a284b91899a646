"""How filters reach their rows: SQLite keeps no statistics here, so the indexes that matter are named."""

import sqlite3

import pytest

from collector.making import child, run
from polling import until
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, metadata_text
from spanwise.collector.stores.backends import ScoreQuery
from spanwise.collector.stores.sqlite import SQLiteStore, encode
from spanwise.collector.stores.sqlite.query import record_lists
from spanwise.collector.stores.sqlite.query.filter_sql import compile_filter, plan_query
from spanwise.collector.stores.sqlite.score_sums.listed_scores import list_rule_scores
from spanwise.collector.stores.sqlite.search.searchable_text import compile_match


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
    with SQLiteStore(tmp_path / "spanwise.db"):
        condition = compile_filter(filter)[-1]
        db = sqlite3.connect(tmp_path / "spanwise.db")
        plan = db.execute(
            f"EXPLAIN QUERY PLAN SELECT t.id FROM traces t WHERE {condition.sql}", condition.values
        ).fetchall()
        db.close()
    assert "INDEX feedback_by_trace (trace=? AND key=?" in " ".join(row[-1] for row in plan)


def test_traces_with_errors_have_an_index(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db"):
        db = sqlite3.connect(tmp_path / "spanwise.db")
        found = plan_query(db, Filter(status="error", name="n", project="p"))
        rows = db.execute(f"EXPLAIN QUERY PLAN SELECT t.id FROM {found.source} WHERE {found.where}", found.values)
        way = " ".join(row[-1] for row in rows)
        db.close()
    assert "USING INDEX traces_with_errors" in way


MENUS = [*record_lists.ALL_PROJECTS_SQL.values(), *record_lists.ONE_PROJECT_SQL.values()]


@pytest.mark.parametrize(
    "sql",
    MENUS,
    ids=[*record_lists.ALL_PROJECTS_SQL, *(f"{field} of a project" for field in record_lists.ONE_PROJECT_SQL)],
)
def test_no_menu_scans_a_table(tmp_path, sql):
    with SQLiteStore(tmp_path / "spanwise.db"):
        db = sqlite3.connect(tmp_path / "spanwise.db")
        steps = [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", {"limit": 1, "project": "p"})]
        db.close()
    scans = [step for step in steps if step.startswith("SCAN") and not step.startswith(BOUNDED)]
    assert steps
    assert not scans


# The values found so far, and an index over evaluators' traces or JSON of rows that a LIMIT bounds
BOUNDED = (
    "SCAN v",
    "SCAN t",
    "SCAN j VIRTUAL TABLE",
    "SCAN m VIRTUAL TABLE",
    "SCAN (subquery",
    "SCAN traces USING INDEX traces_of_evaluators",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("why not", '"why"* "not"*'),
        ("pay*", '"pay"*'),
        ("to be or no", '"to" "be" "or" "no"'),
        ("state-of-the-art", '"state of the art"*'),
        ("it's x_y a.b", '"it s" "x y" "a b"'),
        ('"quoted" AND (x)', '"quoted" "AND"* "x"'),
        ('"in the depot"', '"in the depot"'),
        ("“in the” depot", '"in the" "depot"*'),
        ('"pay lat*"', '"pay lat"'),
        ('6" pipe', '"6" "pipe"*'),
        ("cafe\u0301", '"café"*'),
        ("a\x00b", '"a b"'),
        ("abc* abc* abcd* bcd* bcd", '"abcd"* "bcd"*'),
        ('pay "payment"', '"payment"'),
        ("a b c d e f ggg hhh iii", '"a" "b" "c" "d" "e" "f" "ggg" "hhh" "iii"'),
        ("返", '"返"*'),
        ("返品", '"返品"'),
        ("返品の方法", '"返品 品の の方 方法"'),
        ('"返品 方法"', '"返品 品 方法"'),
        ("RAG返品", '"RAG 返品"'),
        ("返品RAG", '"返品 品 RAG"*'),
        ("返品A", '"返品 品 A"'),
        ("환불", '"환불"'),
    ],
)
def test_a_text_is_searched_by_its_words(tmp_path, text, words):
    assert compile_match(text) == words
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert store.traces(text=text).items == ()


def test_a_text_of_many_words_in_one_term_is_refused(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, pytest.raises(Refused, match="20,000 words, more than"):
        store.traces(text="-".join(map(str, range(20_000))))


def test_a_text_of_many_beginnings_is_refused_and_soon(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert store.traces(text="abc* " * 100).items == ()
        for many in (" ".join(f"{letter}bc*" for letter in "abcdefghi"), "-".join(f"{n:x}*" for n in range(20_000))):
            with pytest.raises(Refused, match="more than 8 prefixes"):
                store.traces(text=many)


def test_a_text_without_a_word_is_refused(tmp_path):
    assert compile_match(" - * ") == ""
    with SQLiteStore(tmp_path / "spanwise.db") as store, pytest.raises(Refused, match="contains no word"):
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
        ({"any_kind": "evaluator", "project": "p"}, "traces_by_start"),
    ],
    ids=str,
)
def test_many_judgements_slow_no_list_down(tmp_path, conditions, index):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run(kind="llm"), run(kind="evaluator")])
        db = sqlite3.connect(tmp_path / "spanwise.db")
        found = plan_query(db, Filter(**conditions))
        sql = f"SELECT t.id FROM {found.source} WHERE {found.where} ORDER BY t.start_ns DESC, t.id DESC"
        way, *_ = [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", found.values)]
        db.close()
    assert way.endswith(f"USING INDEX {index}")


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def ids(store, **conditions):
    return [one.trace_id for one in store.traces(**conditions)]


def test_what_no_run_has_is_not_looked_for(store):
    store.append([run(model="m", environment="e", tags=("t",))])
    for absent in ({"model": "x"}, {"environment": "x"}, {"kind": "x"}, {"any_kind": "x"}, {"tags": ("t", "x")}):
        db = sqlite3.connect(store.path)
        assert plan_query(db, Filter(**absent)).where == "0"
        db.close()
        assert ids(store, **absent) == []


def test_a_value_that_came_in_whichever_way_is_found(store):
    long, other = run(environment="e"), run()
    store.append([long, *(child(long, model=f"m{n}") for n in range(300)), other])
    store.amend(other.trace_id, other.span_id, {"model": "amended", "tags": ["said"]})
    assert ids(store, model="m299") == ids(store, environment="e") == [long.trace_id]
    assert ids(store, model="amended") == ids(store, tags=("said",)) == [other.trace_id]


def test_a_tag_that_came_again_after_it_was_forgotten_is_found(store):
    for _ in range(2):
        store.append([root := run(tags=("ann",))])
        assert ids(store, tags=("ann",)) == [root.trace_id]
        store.delete(trace_ids=(root.trace_id,))
        assert "ann" not in store.values("tag")


def test_a_value_of_a_request_that_failed_is_noted_by_the_next(store):
    batch = encode([run(environment="late")])
    broken = batch._replace(resource_blobs=[object()])
    with pytest.raises(Exception, match="object"):
        store.write(broken).result(60)
    store.append([root := run(environment="late")])
    assert ids(store, environment="late") == [root.trace_id]


def test_conditions_on_one_key_are_asked_of_its_newest_score_together(store):
    roots = [run() for _ in range(4)]
    store.append(roots)
    for root, scores in zip(roots, ((0.2,), (0.2, 0.6), (0.9,), ("good", 0.5)), strict=True):
        for score in scores:
            named = {"label": score} if isinstance(score, str) else {"score": score}
            store.feedback(root.trace_id, "concise", **named, author=str(score))
    assert ids(store, feedback=(("concise", ">", 0.4), ("concise", "<", 0.8))) == [roots[3].trace_id, roots[1].trace_id]
    assert ids(store, feedback=(("concise", "<", 0.5), ("concise", ">", 0.5))) == []
    assert ids(store, feedback=(("concise", "=", "good"), ("concise", ">", 0.1))) == []
    db = sqlite3.connect(store.path)
    assert plan_query(db, Filter(feedback=(("concise", "<", 0.5), ("concise", ">", 0.5)))).where.count("SELECT") == 1
    db.close()


@pytest.mark.parametrize("value", [5, -7, 0, True, False, None, "5", "true", "", 0.25, 1e16, 2**60, "a", [1], '"5'])
def test_metadata_is_found_by_its_text_whatever_it_is(tmp_path, value):
    one, other = run(metadata={"k": value, "j": 5}), run(metadata={"k": 55, "j": "x5"})
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([one, other])
        for text in ("5", "-7", "0", "true", "false", "0.25", "a", "", "55", "x", "1152921504606846976", '"5'):
            found = {trace.trace_id for trace in store.traces(metadata={"k": text}).items}
            expected = {one.trace_id} if value is not None and metadata_text(value) == text else set()
            assert found == expected | ({other.trace_id} if text == "55" else set())


@pytest.mark.parametrize("text", ["a*", "pay é*", "pay* пр*", "e-m*"])
def test_no_word_may_begin_with_a_letter_or_two(text):
    with pytest.raises(Refused, match=r"prefix '(a|é|пр|m)\*' in text is too short; write at least three letters"):
        compile_filter(Filter(text=text))


@pytest.mark.process
@pytest.mark.parametrize("text", ["pay*", "co", "co* costs", "支*"])
def test_a_beginning_that_few_words_have_is_searched(store, text):
    store.append([run(inputs="costs pay co 支付")])
    assert until(lambda: ids(store, text="costs"))
    assert len(ids(store, text=text)) == 1


@pytest.mark.parametrize("window", [{}, {"since_ns": 1}, {"since_ns": 1, "until_ns": 5, "key": "k", "cursor": "4.2"}])
def test_scores_of_a_rule_are_read_in_the_order_of_an_index(tmp_path, monkeypatch, window):
    """However many scores a rule has given, a page of them costs what it holds."""
    asked = []
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.weighted("r")
        db = sqlite3.connect(tmp_path / "spanwise.db")
        db.set_trace_callback(asked.append)
        list_rule_scores(db, ScoreQuery("r", "default", **window))
        db.set_trace_callback(None)
        way = " ".join(row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {asked[-1]}"))
        db.close()
    assert "feedback_of_rules (rule=?" in way
    assert ("trace_start_ns" in way) == bool(window)
    assert "TEMP B-TREE" not in way
    assert "USING INTEGER PRIMARY KEY (rowid=?)" in way


def test_the_start_of_a_trace_moves_its_scores_by_the_index_over_traces(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db"):
        db = sqlite3.connect(tmp_path / "spanwise.db")
        [body] = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'trace_start_moved'").fetchone()
        update = body.partition("BEGIN ")[2].partition(";")[0].replace("new.start_ns", "1").replace("new.id", "1")
        way = " ".join(row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {update}"))
        db.close()
    assert "SEARCH feedback USING INDEX feedback_by_trace (trace=?" in way
