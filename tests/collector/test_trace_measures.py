"""Kept sums of measures of traces: equal to those of all traces, after any change of traces."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from collector.making import run
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.records import Alert, Feedback, ScoreSums, Target
from spanwise.collector.stores.sqlite import SQLiteStore, open_snapshot
from spanwise.collector.stores.sqlite.score_sums import sum_queries, trace_measures
from spanwise.collector.stores.sqlite.score_sums.trace_measures import MeasureQuery, sum_measure

HOUR = 3_600_000_000_000
FROM, UNTIL = 240 * HOUR, 264 * HOUR
SLOW = Alert(name="slow", measure="latency_ms > 500", above=0.5)
BY_TAG = replace(SLOW, name="by tag", by="tag")
NAMED = replace(SLOW, name="named", filter={"name": "answer"})
SHORT = replace(SLOW, name="short", window_s=3600.0)
ALERTS = (SLOW, BY_TAG, NAMED, SHORT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path) as opened:
        yield opened


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Starts of the blocks that queries have computed from traces, in hours after the first."""
    blocks: list[int] = []

    def count(db: sqlite3.Connection, query: MeasureQuery) -> list[ScoreSums]:
        blocks.extend((start - FROM) // HOUR for start in range(query.since_ns, query.until_ns, query.block_ns))
        return sum_measure(db, query)

    monkeypatch.setattr(sum_queries, "sum_measure", count)
    return blocks


def read(store: SQLiteStore, alert: Alert = SLOW) -> list[ScoreSums]:
    assert alert.measure is not None
    block_s = int(alert.window_s) // 24
    window: Any = {"since_ns": FROM, "until_ns": UNTIL, "block_s": block_s, "by": alert.by}
    return store.measure_sums(alert.measure, alert.filter, **window)


def compare(store: SQLiteStore, alert: Alert = SLOW) -> int:
    """Compare kept sums with those of all traces, and return the number of traces."""
    query = query_of(alert)
    with store._file.read() as reader:
        wanted = sorted(sum_measure(reader.db, query), key=lambda sums: (sums.start_ns, sums.group or ""))
    found = read(store, alert)
    assert found == wanted
    return sum(sums.n for sums in found)


def make(choose: Random, **fields: Any) -> Any:
    start = fields.pop("start_ns", None) or FROM + choose.randrange(24) * HOUR + choose.randrange(HOUR)
    long = choose.choice((100, 900)) * 1_000_000
    tags = tuple(choose.sample(("x", "y"), choose.randrange(3)))
    session = choose.choice((None, "a", "b"))
    name = choose.choice(("answer", "other"))
    return run(
        **{"start_ns": start, "end_ns": start + long, "tags": tags, "session_id": session, "name": name, **fields}
    )


@pytest.mark.parametrize("seed", range(4))
def test_kept_sums_equal_those_of_all_traces_after_any_history(store: SQLiteStore, seed: int) -> None:
    store.save_alert(*ALERTS)
    choose = Random(seed)
    traces: list[str] = []
    for _ in range(60):
        event = choose.choice(("arrive", "arrive", "arrive", "late span", "earlier span", "delete", "label"))
        if event == "arrive":
            new = [make(choose, project=choose.choice(("default", "default", "other"))) for _ in range(5)]
            store.append(new)
            traces += [each.trace_id for each in new if each.project == "default"]
        elif traces:
            trace = choose.choice(traces)
            if event == "late span":
                store.append([make(choose, trace_id=trace, start_ns=UNTIL - HOUR)])
            elif event == "earlier span":
                store.append([make(choose, trace_id=trace, start_ns=FROM + 1)])
            elif event == "label":
                store.add_feedback([Feedback(target=Target(trace_id=trace), key="liked", score=1.0)])
            else:
                store.delete(trace_ids=(trace,))
                traces.remove(trace)
        if choose.random() < 0.3:
            compare(store, choose.choice(ALERTS))
    assert sum(compare(store, alert) for alert in ALERTS) > 50


def test_a_restart_reads_no_window_again(path: Path, computed: list[int]) -> None:
    with SQLiteStore(path) as store:
        store.save_alert(SLOW)
        store.append([make(Random(1), start_ns=FROM + hour * HOUR) for hour in range(24)])
        read(store)
        assert sorted(computed) == list(range(24))
    computed.clear()
    with SQLiteStore(path) as store:
        store.append([make(Random(2), start_ns=FROM + 3 * HOUR + 5)])
        assert compare(store) == 25
        assert computed == [3]
        compare(store)
        assert computed == [3]


def test_a_look_sees_a_trace_of_an_old_block_that_changes(store: SQLiteStore) -> None:
    store.save_alert(SLOW)
    starts = [FROM + place * HOUR // 10 for place in range(200)]
    runs = [run(start_ns=start, end_ns=start + 1_000_000) for start in starts]
    store.append(runs)
    now_ns = UNTIL
    runner = AlertRunner(store, now=lambda: now_ns)
    runner.step()
    [group] = store.alert_groups()
    assert (group.numbers.n, group.numbers.value) == (200, 0.0)
    store.delete(trace_ids=tuple(one.trace_id for one in runs[:50]))
    store.append([run(trace_id=one.trace_id, start_ns=one.start_ns, end_ns=one.start_ns + HOUR) for one in runs[60:75]])
    now_ns += HOUR
    runner.step()
    [group] = store.alert_groups()
    assert (group.numbers.n, group.numbers.value) == (150, 0.1)


def test_feedback_changes_no_sums(store: SQLiteStore, computed: list[int]) -> None:
    store.save_alert(SLOW)
    one = make(Random(1), start_ns=FROM)
    store.append([one])
    read(store)
    computed.clear()
    store.add_feedback([Feedback(target=Target(trace_id=one.trace_id), key="liked", score=1.0)])
    read(store)
    assert computed == []


def test_a_trace_that_is_deleted_while_a_block_is_computed_is_not_kept(store: SQLiteStore) -> None:
    store.save_alert(SLOW)
    one, two = make(Random(1), start_ns=FROM), make(Random(2), start_ns=FROM + 1)
    store.append([one, two])
    read(store)
    store.delete(trace_ids=(one.trace_id,))
    query = query_of(SLOW)
    with store._file.read() as reader:
        id, state = trace_measures.find_measure(reader.db, query), trace_measures.read_measure_state(reader.db)
        computed = sum_measure(reader.db, query)
    assert id is not None
    store.delete(trace_ids=(two.trace_id,))
    blocks = range(FROM // HOUR, UNTIL // HOUR)
    store._file.write(lambda db: trace_measures.keep_sums(db, id, query, state, blocks, computed))
    assert compare(store) == 0


def query_of(alert: Alert) -> MeasureQuery:
    return MeasureQuery(str(alert.measure), alert.filter, "default", FROM, UNTIL, int(alert.window_s) // 24, alert.by)


def tables(store: SQLiteStore) -> dict[str, int]:
    with store._file.read() as reader:
        names = ("trace_measures", "measure_sums", "measure_blocks")
        counts = {name: reader.db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
        sql = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'measured_trace%'"
        return counts | {"triggers": reader.db.execute(sql).fetchone()[0]}


def test_sums_are_kept_as_long_as_an_alert_reads_them(store: SQLiteStore) -> None:
    store.append([make(Random(1), start_ns=FROM)])
    read(store)
    assert not any(tables(store).values())
    store.save_alert(SLOW, replace(SLOW, name="the same", above=0.9), BY_TAG)
    for alert in (SLOW, BY_TAG):
        read(store, alert)
    assert tables(store)["trace_measures"] == 2
    store.delete_alert("slow")
    assert tables(store)["trace_measures"] == 2
    store.save_alert(replace(BY_TAG, by="model"))  # edited
    assert tables(store)["trace_measures"] == 1
    store.delete_alert("the same")
    assert not any(tables(store).values())
    store.append([make(Random(2), start_ns=FROM + 1)])
    store.save_alert(SLOW)
    assert compare(store) == 2


@pytest.mark.parametrize("filter", [{"feedback": ["liked<0.5"]}, {"text": "parcel"}, {"missing": ["liked"]}])
def test_sums_that_more_than_runs_change_are_not_kept(store: SQLiteStore, filter: dict[str, Any]) -> None:
    alert = replace(SLOW, filter=filter)
    store.save_alert(alert)
    one = make(Random(1), start_ns=FROM, outputs="the parcel")
    store.append([one])
    compare(store, alert)
    assert not any(tables(store).values())


def test_a_file_that_can_only_be_read_computes_its_sums(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.save_alert(SLOW)
        store.append([make(Random(1), start_ns=FROM)])
        wanted = read(store)
        store.append([make(Random(2), start_ns=FROM + 7 * HOUR)])
    with closing(open_snapshot(path)) as snapshot:
        assert len(read(snapshot)) == 2  # type: ignore[arg-type]
        assert read(snapshot)[:1] == wanted  # type: ignore[arg-type]


def test_an_alert_of_an_older_file_has_its_sums_kept_from_its_next_look_on(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.save_alert(SLOW)
        assert tables(store)["trace_measures"] == 0
        read(store)
        assert tables(store)["trace_measures"] == 1
