"""Aggregates of the newest traces alone: where there are no sums, and they say so."""

from __future__ import annotations

import re

import httpx
import pytest

from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.pages.traces import trace_list
from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.query import record_lists
from spanwise.collector.stores.sqlite.rollups import aggregation
from spanwise.collector.stores.sqlite.rollups.rollup_delta import HOUR_NS

NOW = 486_000 * HOUR_NS + 1
MINUTE = 60 * 10**9


def later(index: int, **fields) -> Run:
    """The only run of a trace, a minute after the one before it."""
    start = NOW + index * MINUTE
    given = {"trace_id": f"{index + 1:032x}", "span_id": "1" * 16, "name": "a", "start_ns": start, "end_ns": start + 5}
    return Run(**{**given, **fields})


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def counts(buckets) -> dict[str | None, tuple[int, int | None]]:
    return {bucket.group: (bucket.traces, bucket.newest) for bucket in buckets}


def test_the_newest_of_those_that_pass_are_counted_and_it_is_said(store):
    store.append([later(i, user_id="ann" if i % 3 else "bob") for i in range(9)])
    store.append([later(9, user_id="eve", kind="evaluator")])
    assert counts(store.aggregate(group_by="user", newest=4)) == {"ann": (3, 4), "bob": (1, 4)}
    [bob] = store.aggregate(group_by="user", user="bob", newest=2)
    assert (bob.traces, bob.start_ns, bob.width_ns) == (2, later(3).start_ns, 3 * MINUTE + 1)


def test_what_is_counted_one_by_one_is_bounded_unless_all_is_asked_for(store, monkeypatch):
    monkeypatch.setattr(aggregation, "DEFAULT_NEWEST", 4)
    store.append([later(i, user_id="ann", experiment_id="x" if i < 2 else None) for i in range(9)])
    assert counts(store.aggregate(group_by="user")) == {"ann": (4, 4)}
    assert counts(store.aggregate(group_by="user", newest="all")) == {"ann": (9, None)}
    assert counts(store.aggregate(group_by="name")) == {"a": (9, None)}
    assert counts(store.aggregate(group_by="experiment")) == {None: (7, None), "x": (2, None)}
    assert counts(store.aggregate(experiment="x")) == {None: (2, None)}
    store.append([later(10 + i, experiment_id="x") for i in range(4)])
    assert counts(store.aggregate(group_by="experiment")) == {"x": (4, 4)}
    assert counts(store.aggregate(group_by="experiment", newest="all")) == {None: (7, None), "x": (6, None)}


def test_all_are_counted_where_there_are_no_more(store):
    store.append([later(i, user_id="ann") for i in range(4)])
    asked = {"user": "ann", "bucket_ns": MINUTE}
    assert store.aggregate(**asked, newest=4) == store.aggregate(**asked)
    assert store.aggregate(**asked, newest=4)[0].newest is None


def test_what_the_sums_answer_is_whole(store):
    store.append([later(i) for i in range(9)])
    [whole] = store.aggregate(newest=2)
    assert (whole.traces, whole.newest) == (9, None)


def test_hours_that_are_not_counted_now_are_counted_of_the_newest(store):
    store.append([later(i) for i in range(9)])
    store._file.write(lambda db: db.execute("UPDATE sums_hours SET state = 2"))
    assert counts(store.aggregate(newest=2)) == {None: (2, 2)}
    assert counts(store.aggregate(newest=9)) == {None: (9, None)}


def test_traces_that_start_at_the_same_moment_are_no_more_than_asked_for(store):
    store.append([later(i, start_ns=NOW, end_ns=NOW + i) for i in range(5)])
    [two] = store.aggregate(bucket_ns=MINUTE, newest=2)
    assert (two.traces, two.newest) == (2, 2)


def test_feedback_and_models_are_those_of_the_newest(store):
    runs = [later(i, model=f"m{i % 2}") for i in range(4)]
    said = [Feedback(target=Target(trace_id=run.trace_id), key="k", score=i) for i, run in enumerate(runs)]
    store.append(runs, said)
    [model] = store.aggregate(group_by="model", bucket_ns=MINUTE, newest=1)
    [last] = store.aggregate(bucket_ns=MINUTE, newest=1)
    assert (model.group, model.traces) == ("m1", 1)
    assert (last.feedback[0].n, last.feedback[0].mean) == (1, 3.0)


@pytest.mark.parametrize("newest", [0, -1, 100_001, 2**63 - 1])
def test_as_many_as_are_in_memory_can_be_asked_for(store, newest):
    with pytest.raises(Refused, match="must be 1 to 100,000"):
        store.aggregate(newest=newest)


@pytest.mark.process
def test_over_http_it_is_the_same(store):
    store.append([later(i, user_id="ann") for i in range(3)])
    with Server(store) as server, HTTPStore(server.url) as client:
        assert client.aggregate(group_by="user", newest=2) == store.aggregate(group_by="user", newest=2)
        assert client.aggregate(group_by="user", newest="all") == store.aggregate(group_by="user", newest="all")
        assert httpx.get(f"{server.url}/api/aggregate?newest=0").status_code == 400
        assert httpx.get(f"{server.url}/api/aggregate?newest=some").status_code == 400


@pytest.mark.process
def test_a_long_answer_is_the_same_in_one_go_and_in_several(store):
    store.append([later(i, user_id=f"u{i}") for i in range(1_001)])
    with Server(store) as server, HTTPStore(server.url) as client:
        assert client.aggregate(group_by="user") == store.aggregate(group_by="user")


def test_charts_know_where_they_are_cut(store):
    store.append([later(i * 5, user_id="ann") for i in range(4)])
    view = (Filter(user="ann"), NOW, NOW + 20 * MINUTE)
    assert (whole := trace_list.load_overview(store, *view)) is not None
    assert (some := trace_list.load_overview(store, *view, newest=2)) is not None
    assert (whole.cut, whole.total.traces) == (None, 4)
    assert some.cut == some.total
    assert (some.total.traces, some.total.start_ns) == (2, later(10).start_ns)


def test_bars_may_be_cut_where_the_sum_of_all_is_not(store):
    store.append([later(i * 5) for i in range(4)])
    begin = NOW // HOUR_NS * HOUR_NS
    assert (some := trace_list.load_overview(store, Filter(), begin, begin + HOUR_NS - 1, newest=2)) is not None
    assert some.total.traces == 4
    assert some.cut is not None
    assert some.cut.start_ns <= later(10).start_ns < some.cut.start_ns + some.cut.width_ns


@pytest.mark.slow
def test_more_buckets_than_an_answer_holds_are_refused_before_they_are_made(store, monkeypatch):
    monkeypatch.setattr(aggregation, "MAX_BUCKETS", 5)
    store.append([later(i, user_id=f"u{i}") for i in range(6)])
    made = []
    monkeypatch.setattr(aggregation, "BucketTotals", lambda: made.append(1))
    for asked in ({"bucket_ns": 1}, {"group_by": "user"}, {"group_by": "user", "bucket_ns": 1000}):
        with pytest.raises(Refused, match="more than 5 buckets in one answer: use wider buckets"):
            store.aggregate(**asked)
    assert not made
    monkeypatch.undo()
    assert len(store.aggregate(bucket_ns=1)) == len(store.aggregate(group_by="user")) == 6


def test_what_the_sums_answer_has_no_more_buckets_either(store, monkeypatch):
    monkeypatch.setattr(aggregation, "MAX_BUCKETS", 5)
    store.append([later(i, name=f"n{i}") for i in range(6)])
    with pytest.raises(Refused, match="more than 5 buckets"):
        store.aggregate(group_by="name")
    assert len(store.aggregate(group_by="name", newest=5)) == 5


def test_menus_of_a_project_have_the_values_of_its_newest_traces(store):
    store.append([later(i, user_id=f"u{i}", project="mine") for i in range(3)])
    store.append([later(10 + i, user_id="new", project="mine") for i in range(record_lists.NEWEST_TRACES - 1)])
    store.append([later(20 + record_lists.NEWEST_TRACES, user_id="theirs", project="other")])
    assert ProjectScopedStore(store, "mine").values("user") == store.values("user", project="mine") == ["new", "u2"]


def test_metadata_of_the_newest_traces_is_a_menu(store):
    tenants = ("t1", True, 5, None, "t1")
    store.append([later(number, metadata={"tenant": each}, project="mine") for number, each in enumerate(tenants)])
    store.append([later(9, metadata={"a.b": "y z", "": "x"}, project="other"), later(10)])
    assert store.values("metadata") == ["a.b", "tenant"]
    assert store.values("metadata.tenant") == ["5", "t1", "true"]
    assert store.values("metadata.a.b") == ["y z"]
    assert store.values("metadata.tenant", limit=1) == ["5"]
    assert store.values("metadata", project="mine") == ["tenant"]
    scoped = ProjectScopedStore(store, "mine")
    assert (scoped.values("metadata"), scoped.values("metadata.a.b")) == (["tenant"], [])
    with Server(store) as server, HTTPStore(server.url) as client:
        assert client.values("metadata.tenant") == store.values("metadata.tenant")
    with pytest.raises(Refused, match="unknown field 'colour'"):
        store.values("colour")


@pytest.mark.process
def test_a_page_says_that_its_charts_show_the_newest_alone(store):
    for start in range(0, trace_list.MAX_COUNTED_TRACES + 1, 2_000):
        store.append([later(i, start_ns=NOW, user_id="ann") for i in range(start, start + 2_000)])
    with Server(store) as server:
        asked = {"since": NOW, "until": NOW + HOUR_NS, "user": "ann"}
        page = httpx.get(f"{server.url}/charts", params=asked, timeout=60).text
        short = httpx.get(f"{server.url}/charts", params={**asked, "user": "bob"}, timeout=60).text
    assert re.search(r"cover only the newest 30\.0k ", page)
    assert "the newest" not in short


def test_experiments_are_counted_from_rows_and_the_rest_from_sums(store):
    runs = [
        later(i * 50, experiment_id=(None, "x", None, "y")[i % 4], status="error" if i > 4 else "ok") for i in range(8)
    ]
    store.append(runs, [Feedback(target=Target(trace_id=run.trace_id), key="k", score=0.5) for run in runs])
    with store._file.read() as reader:
        for filter in (
            {},
            {"since_ns": NOW + MINUTE, "until_ns": NOW + 340 * MINUTE},
            {"name": "a"},
            {"experiment": ""},
            {"experiment": "x"},
        ):
            for bucket_ns in (None, HOUR_NS, 24 * HOUR_NS):
                asked = Filter(**filter)
                rows = aggregation._Aggregation(reader.db, asked, bucket_ns, "experiment").buckets(None)
                assert aggregation.compute_buckets(reader.db, asked, bucket_ns, "experiment") == rows
                assert rows
