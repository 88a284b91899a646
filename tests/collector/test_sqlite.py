"""What only the SQLite store does: the file, its lock, its versions, its limits."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path

import pytest
import zstandard

from collector.conformance_traces import FULL, eventually, names
from collector.making import SECOND, START, child, run
from spanwise.collector.errors import Closed, Halted, NotFound, Refused, Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    Example,
    Experiment,
    Feedback,
    Key,
    QueueItem,
    Retention,
    Rule,
    Target,
    Usage,
)
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.sqlite import SQLiteStore, encode, holder
from spanwise.collector.stores.sqlite.database.connections import ReaderPool
from spanwise.collector.stores.sqlite.database.schema import PAGE_SIZE
from spanwise.collector.stores.sqlite.maintenance import deletion

DAY = 86_400 * SECOND


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(file) as made:
        yield made


# the standing of feedback: what lists, filters and aggregates count


def standing(file: Path) -> dict[str, int]:
    """Standing of all feedback, by its comment."""
    with closing(sqlite3.connect(file)) as db:
        return dict(db.execute("SELECT comment, standing FROM feedback ORDER BY comment"))


def of_version(n: int, target: Target, **fields: object) -> Feedback:
    given = {"key": "k", "score": n / 10, "comment": str(n), "evaluator": "k", "version": str(n), "created_ns": n}
    return Feedback(target=target, **{**given, **fields})  # type: ignore[arg-type]


OTHERS = [Target(experiment_id="e"), Target(session_id="s"), Target(trace_id="1" * 32, span_id="2" * 16, document=0)]


@pytest.mark.parametrize("target", OTHERS, ids=["experiment", "session", "document"])
def test_what_deleted_feedback_stood_in_front_of_takes_its_place(
    store: SQLiteStore, file: Path, target: Target
) -> None:
    made = [of_version(n, target) for n in (1, 2, 3)]
    store.add_feedback(made)
    assert standing(file) == {"1": 0, "2": 0, "3": 1}
    store.delete_feedback([made[2].id])
    assert standing(file) == {"1": 0, "2": 1}


@pytest.mark.parametrize("target", [*OTHERS, Target(trace_id="1" * 32)])
def test_feedback_that_moves_to_another_key_leaves_its_place_to_the_one_before(
    store: SQLiteStore, file: Path, target: Target
) -> None:
    store.add_feedback([of_version(1, target), of_version(2, target, id="mine")])
    store.add_feedback([of_version(2, target, id="mine", key="other")])
    first, second = standing(file).values()
    assert first == second > 0


def test_rules_under_one_key_do_not_hide_each_other(store: SQLiteStore, file: Path) -> None:
    on = Target(trace_id="1" * 32)
    store.add_feedback([of_version(1, on, rule="a"), of_version(2, on, rule="b"), of_version(3, on, rule="b")])
    assert standing(file) == {"1": 1, "3": 2}  # a rule's later version overwrites what it said before


# the lock


def test_a_second_store_on_a_file_is_refused_and_told_who_holds_it(store: SQLiteStore, file: Path) -> None:
    store.announce("http://127.0.0.1:4318")
    with pytest.raises(Refused, match=rf"process {os.getpid()}, which answers at http://127.0.0.1:4318"):
        SQLiteStore(file)
    assert holder(file) == {"pid": os.getpid(), "url": "http://127.0.0.1:4318"}


def test_nobody_holds_a_file_that_was_closed(file: Path) -> None:
    assert holder(file) is None
    SQLiteStore(file).close()
    assert holder(file) is None
    SQLiteStore(file).close()


def test_closing_twice_is_harmless_and_writing_afterwards_is_refused(file: Path) -> None:
    store = SQLiteStore(file)
    store.close()
    store.close()
    with pytest.raises(Refused, match="closed"):
        store.append([run()])
    with pytest.raises(Refused, match="closed"):
        store.traces()


def test_what_is_queued_is_written_before_closing(file: Path) -> None:
    store = SQLiteStore(file)
    futures = [store.append_async([run()]) for _ in range(50)]
    store.close()
    assert all(future.done() for future in futures)
    with SQLiteStore(file) as again:
        assert again.count()["spans"] == 50


# files that cannot be used


def test_a_damaged_file_is_named(file: Path) -> None:
    file.write_bytes(b"this is no database" * 1000)
    with pytest.raises(Refused, match=r"spanwise\.db.*is damaged.*spanwise db check"):
        SQLiteStore(file)
    assert holder(file) is None


def test_a_newer_file_is_refused(file: Path) -> None:
    SQLiteStore(file).close()
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(Refused, match=r"newer Spanwise.*99"):
        SQLiteStore(file)


def test_somebody_elses_file_is_refused(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(Refused, match="not a Spanwise database"):
        SQLiteStore(file)
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="missing"):
        SQLiteStore(tmp_path / "missing" / "spanwise.db")


RECORDS = {
    "examples": (lambda store: store.examples("d"), Example(inputs="q", id="e1")),
    "experiments": (lambda store: store.experiments(), Experiment(id="e1", name="n", dataset="d")),
    "rules": (lambda store: store.rules(), Rule(name="r", version="1", evaluators=())),
    "keys": (lambda store: store.keys(), Key(id="k", name="ci", sha256="0")),
    "queue": (lambda store: store.queue("q"), QueueItem(queue="q", target=Target(trace_id="1" * 32), id="i")),
}


def save_one_of_each(store: SQLiteStore) -> None:
    store.save_examples("d", [RECORDS["examples"][1]])
    store.save_experiment(RECORDS["experiments"][1])
    store.save_rule(RECORDS["rules"][1])
    store.save_key(RECORDS["keys"][1])
    store.enqueue([RECORDS["queue"][1]])


@pytest.mark.parametrize("table", RECORDS)
def test_a_record_of_an_older_or_newer_spanwise_is_read(store: SQLiteStore, file: Path, table: str) -> None:
    read, record = RECORDS[table]
    save_one_of_each(store)
    needed = [one.name for one in fields(record) if one.default is one.default_factory is MISSING] + ["id"]
    kept = {name: value for name, value in asdict(record).items() if name in needed}
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"UPDATE {table} SET data = ?", (json.dumps({**kept, "not_yet_invented": 1}),))
        db.commit()
    [found] = read(store)
    whole = type(record)(**{name: getattr(record, name) for name in kept})
    times = {name: getattr(whole, name) for name in ("created_ns", "started_ns") if hasattr(whole, name)}
    assert replace(found, **times) == whole


def test_what_could_not_be_read_again_is_refused_when_it_is_saved(store: SQLiteStore) -> None:
    with pytest.raises(Refused, match=r"Experiment.*cannot be stored.*evaluators"):
        store.save_experiment(Experiment(id="e", name="n", dataset="d", evaluators=("exact",)))  # type: ignore[arg-type]
    assert store.experiments() == []


# crashes and full disks

WRITER = """
import sys
from spanwise.collector.stores.sqlite import SQLiteStore
from collector.making import child, run
store = SQLiteStore(sys.argv[1])
while True:
    root = run(inputs="words " * 50)
    store.append([child(root), root])
    print(root.trace_id, flush=True)
"""


@pytest.mark.process
def test_a_store_leaves_the_adapters_of_sqlite3_to_the_application(tmp_path: Path) -> None:
    code = """
import sqlite3, sys
before = dict(sqlite3.adapters)
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore
with SQLiteStore(sys.argv[1]) as store:
    store.append([Run(trace_id="1" * 32, span_id="a" * 16, name="n")])
print(sqlite3.adapters == before)
"""
    assert python(code, str(tmp_path / "a.db")).communicate(timeout=60)[0] == "True\n"


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=env)


def said(code: str, file: Path) -> str:
    """What a process that works on the file says until its end."""
    with python(code, str(file)) as process:
        output, _ = process.communicate(timeout=240)
    return output.strip()


@pytest.mark.process
@pytest.mark.parametrize("acknowledged", [1, 40, 300])
def test_kill_9_loses_nothing_that_was_acknowledged(file: Path, acknowledged: int) -> None:
    with python(WRITER, str(file)) as process:
        assert process.stdout is not None
        kept = [process.stdout.readline().strip() for _ in range(acknowledged)]
        process.send_signal(signal.SIGKILL)
    with SQLiteStore(file) as store:
        assert [len(trace.runs) for trace in store.many(kept)] == [2] * acknowledged
        assert store.check(deep=True) == []


@pytest.mark.process
def test_what_was_not_indexed_before_a_crash_is_indexed_after(file: Path) -> None:
    with python(WRITER, str(file)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    with SQLiteStore(file) as store:
        assert eventually(lambda: len(store.traces(text="words", limit=1)), 1)


FULL_DISK = """
import resource, sys
from spanwise.collector.errors import Unavailable
from spanwise.collector.stores.sqlite import SQLiteStore
from collector.making import run
import secrets
store = SQLiteStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
kept = 0
try:
    while True:
        store.append([run(inputs=secrets.token_hex(20_000)) for _ in range(5)])
        kept += 5
except Unavailable as error:
    assert "free space" in str(error), error
assert store.count()["spans"] == kept > 0
assert len(store.traces(limit=500)) == min(500, kept)
assert not store.health()["writable"]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.append([run("after")])
assert store.count()["spans"] == kept + 1
assert store.check(deep=True) == [], store.check(deep=True)
store.close()
print("recovered")
"""


@pytest.mark.process
def test_a_full_disk_stops_acknowledging_serves_reads_and_recovers(file: Path) -> None:
    assert said(FULL_DISK, file) == "recovered"


ROOM_AGAIN = """
import resource, sys
from spanwise.collector.errors import Unavailable
from spanwise.collector.stores.sqlite import SQLiteStore
from collector.conformance_traces import eventually
from collector.making import run
store = SQLiteStore(sys.argv[1])
store.append([run()])
assert eventually(lambda: store.health()["text_index_waiting_traces"], 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    store.append([run()])
except Unavailable:
    assert not store.health()["writable"]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert eventually(lambda: store.health()["writable"], 1)
store.close()
print("noticed")
"""


@pytest.mark.process
def test_room_on_the_disk_is_noticed_without_anything_to_write(file: Path) -> None:
    assert said(ROOM_AGAIN, file) == "noticed"


@pytest.mark.process
def test_a_queue_that_is_full_says_so_instead_of_growing(store: SQLiteStore) -> None:
    batch = encode([run() for _ in range(4000)])
    with pytest.raises(Unavailable, match="write queue is full"):
        for _ in range(100):
            store.write(batch)


# writing


def test_batches_may_be_made_in_another_process(store: SQLiteStore) -> None:
    batch = pickle.loads(pickle.dumps(encode([FULL])))
    store.write(batch).result()
    assert store.trace(FULL.trace_id).root == FULL


def test_many_threads_write_and_read(store: SQLiteStore) -> None:
    roots = [[run(inputs=n) for n in range(20)] for _ in range(8)]
    threads = [threading.Thread(target=lambda mine=mine: [store.append([one]) for one in mine]) for mine in roots]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.traces(limit=10)
    assert store.count()["traces"] == 160


@pytest.mark.process
def test_a_dictionary_is_made_and_old_and_new_rows_stay_readable(store: SQLiteStore, file: Path) -> None:
    first = [run(inputs={"question": f"where is parcel {n}?"}, outputs=f"in depot {n * 7}") for n in range(1200)]
    store.append(first)
    assert eventually(lambda: store.stats()["dictionaries"], 1)
    assert eventually(lambda: dictionary_in_use(store, file), 1)
    store.append([last := replace(first[0], trace_id="e" * 32)])
    assert store.trace(first[0].trace_id).root == first[0]
    assert store.trace(last.trace_id).root == last
    store.close()
    with SQLiteStore(file) as again:
        assert dictionary_in_use(again, file) == 1
        assert again.trace(last.trace_id).root == last


def dictionary_in_use(store: SQLiteStore, file: Path) -> int:
    """The number of the dictionary that one more span is compressed with."""
    store.append([run(inputs="x" * 500, outputs="y")])
    with closing(sqlite3.connect(file)) as db:
        [blob] = db.execute("SELECT payload FROM spans ORDER BY id DESC LIMIT 1").fetchone()
    return zstandard.get_frame_parameters(blob).dict_id


@pytest.mark.process
def test_dictionaries_of_the_same_payloads_do_not_spoil_each_other(store: SQLiteStore, file: Path) -> None:
    same = [run(inputs="x" * 500, outputs="y") for _ in range(20_500)]
    store.append(same[:1_500])
    assert eventually(lambda: store.stats()["dictionaries"], 1)
    store.append(same[1_500:-1])
    assert eventually(lambda: store.stats()["dictionaries"], 2)
    assert eventually(lambda: dictionary_in_use(store, file), 2)
    store.append(same[-1:])
    assert store.many([one.trace_id for one in (same[0], same[2_000], same[-1])])[-1].root == same[-1]


def test_a_late_span_after_a_restart_joins_its_trace(file: Path) -> None:
    root = run(tags=("a",), session_id="s", usage=Usage(1, 1), kind="llm", model="m")
    with SQLiteStore(file) as store:
        store.append([root])
    with SQLiteStore(file) as store:
        store.append([child(root, tags=("b",), kind="llm", model="m", usage=Usage(2, 2))])
        [summary] = store.traces()
        assert (summary.span_count, summary.tags, summary.session_id) == (2, ("a", "b"), "s")
        assert summary.input_tokens == 2


def test_a_refused_action_leaves_its_neighbours_alone(store: SQLiteStore) -> None:
    futures = [store.append_async([run()]) for _ in range(20)]
    with pytest.raises(Refused):
        store.delete()
    futures += [store.append_async([run()]) for _ in range(20)]
    for future in futures:
        future.result(60)
    assert store.count()["spans"] == 40


# looking after the file


def test_pruning_by_age_is_by_project(store: SQLiteStore) -> None:
    old, new = START, START + 10**9 * SECOND
    for project in ("p", "q"):
        store.append([run("old", project=project, start_ns=old), run("new", project=project, start_ns=new)])
    assert store.prune(Retention(project="p", max_age_ns=DAY)) == 1
    assert names(store.traces(project="p")) == ["new"]
    assert names(store.traces(project="q")) == ["new", "old"]


def test_pruning_by_size_takes_the_oldest(store: SQLiteStore) -> None:
    store.append([run(str(n), inputs=os.urandom(2000).hex()) for n in range(200)])
    share = store.stats()["projects"][0]["bytes"]
    gone = store.prune(Retention(project="default", max_bytes=share // 2))
    assert 90 <= gone <= 110
    assert names(store.traces(limit=1)) == ["199"]
    assert store.prune(Retention(project="default", max_bytes=share)) == 0


def test_feedback_whose_trace_never_came_is_pruned_too(store: SQLiteStore) -> None:
    store.feedback("1" * 32, "good", 1)
    assert store.prune(Retention(max_age_ns=0)) == 0
    assert store.count()["feedbacks"] == 0


def test_rules_of_retention_are_kept(store: SQLiteStore) -> None:
    store.set_retention(Retention(max_age_ns=30 * DAY))
    store.set_retention(Retention(project="p", max_bytes=10**9))
    assert store.retention() == [Retention(max_age_ns=30 * DAY), Retention(project="p", max_bytes=10**9)]
    store.set_retention(Retention(project="p"))
    assert store.retention() == [Retention(max_age_ns=30 * DAY)]


def test_vacuum_gives_space_back_and_forgets_what_nothing_uses(store: SQLiteStore, file: Path) -> None:
    store.append([run(inputs=os.urandom(5000).hex(), tags=("gone",), resource={"host": str(n)}) for n in range(200)])
    store.append([run("stays", tags=("kept",))])
    store.delete(tags="gone")
    store.checkpoint()
    before = store.stats()
    freed = store.vacuum()
    after = store.stats()
    assert freed == before["file_bytes"] - after["file_bytes"] > 500_000
    # VACUUM may lay out the table of the schema on one more page
    assert after["used_bytes"] <= before["used_bytes"] + PAGE_SIZE
    assert after["resources"] == 1
    assert store.values("tag") == ["kept"]
    assert store.check(deep=True) == []


def test_check_finds_what_does_not_fit_together(store: SQLiteStore, file: Path) -> None:
    root = run()
    store.append([root, child(root)])
    store.close()
    with sqlite3.connect(file) as db:
        db.execute("DELETE FROM spans WHERE name = 'search'")
    db.close()
    with SQLiteStore(file) as again:
        assert again.check() == ["1 traces whose number of spans is wrong"]


@pytest.mark.process
def test_a_deleted_traces_words_leave_no_trace_in_the_file(store: SQLiteStore, file: Path) -> None:
    store.append([root := run(inputs="xylophone")])
    assert eventually(lambda: len(store.traces(text="xylophone")), 1)
    store.delete(trace_ids=(root.trace_id,))
    with pytest.raises(NotFound):
        store.trace(root.trace_id)
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT rowid FROM words WHERE words MATCH 'xylophone'").fetchall() == []
    db.close()


@pytest.mark.process
def test_a_trace_that_is_deleted_while_it_is_indexed_leaves_no_words(store: SQLiteStore) -> None:
    store.append([gone := run("gone", inputs="secret")])
    file = store._behind._file

    def delete_slowly(db: sqlite3.Connection) -> int:
        count, _ = deletion.delete_traces(file.appender, DeletedTraces([gone.trace_id]), deletion.DeletionPace(), db)
        # its text may have been read meanwhile, and shall be written next
        eventually(lambda: file.writer.depth > 0, True, seconds=1)
        return count

    assert file.write(delete_slowly) == 1
    store.append([run()])
    assert eventually(lambda: store.health()["text_index_waiting_traces"], 0)
    assert store.check() == []


def test_feedback_on_a_session_stays_while_a_trace_of_it_comes(store: SQLiteStore) -> None:
    store.append([old := run(session_id="s")])
    store.add_feedback([Feedback(target=Target(session_id="s"), key="k", score=1.0)])
    assert (going := store.find_deletable_traces(Filter(trace_ids=(old.trace_id,)))) == DeletedTraces(
        [old.trace_id], ["s"]
    )
    store.append([run(session_id="s")])
    assert store.delete_traces([going]) == 1
    assert len(store.feedbacks(target=Target(session_id="s"))) == 1


def test_feedback_on_a_session_goes_with_two_that_go_at_once(store: SQLiteStore) -> None:
    store.append(runs := [run(session_id="s"), run(session_id="s")])
    store.add_feedback([Feedback(target=Target(session_id="s"), key="k", score=1.0)])
    lots = [store.find_deletable_traces(Filter(trace_ids=(root.trace_id,))) for root in runs]
    assert [store.delete_traces([lot]) for lot in lots if lot] == [1, 1]
    assert not store.feedbacks(target=Target(session_id="s")).items


@pytest.mark.process
def test_health_says_what_waits(store: SQLiteStore) -> None:
    def waiting_after_one_more() -> bool:
        before = store.health()["commits"]
        store.append([run()])
        found = store.health()
        assert (found["commits"] > before, found["writable"], found["queued_spans"]) == (True, 1, 0)
        return found["text_index_waiting_traces"] == 1

    assert eventually(waiting_after_one_more, True)  # unless it was indexed meanwhile
    assert eventually(lambda: store.health()["text_index_lag_seconds"], 0.0)


CROWD = """
import sys, threading
from spanwise.collector.stores.sqlite import SQLiteStore
from collector.making import child, run
store = SQLiteStore(sys.argv[1])
lock = threading.Lock()
def work():
    while True:
        roots = [run(inputs="words " * 20) for _ in range(20)]
        store.append([child(root) for root in roots])
        store.append(roots)
        store.feedback(roots[0].trace_id, "good", 1)
        with lock:
            print(" ".join(root.trace_id for root in roots), flush=True)
for _ in range(4):
    threading.Thread(target=work).start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("requests", range(5, 205, 20))
def test_kill_9_in_a_crowd_loses_nothing_that_was_acknowledged(file: Path, requests: int) -> None:
    with python(CROWD, str(file)) as process:
        assert process.stdout is not None
        kept = [process.stdout.readline().split() for _ in range(requests)]
        process.send_signal(signal.SIGKILL)
    with SQLiteStore(file) as store:
        found = store.many([trace_id for ids in kept for trace_id in ids])
        assert [len(trace.runs) for trace in found] == [2] * 20 * requests
        assert sum(len(trace.feedback) for trace in found) >= requests
        assert store.check(deep=True) == []


@pytest.mark.process
@pytest.mark.parametrize("page", [0.2, 0.4, 0.6, 0.8])
def test_a_page_that_was_overwritten_is_told_wherever_it_is_met(file: Path, page: float) -> None:
    with SQLiteStore(file) as store:
        store.append([run(inputs=os.urandom(300).hex(), tags=(str(n),)) for n in range(2000)])
        store.checkpoint()
    content = bytearray(file.read_bytes())
    start = int(len(content) * page) // 16384 * 16384
    content[start : start + 16384] = os.urandom(16384)
    file.write_bytes(content)
    with pytest.raises((Refused, Halted, AssertionError)), SQLiteStore(file) as store:
        assert store.check(deep=True) == []
    assert holder(file) is None


LONG = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 100000000) SELECT sum(x) FROM n"


def test_closing_ends_a_query_and_pulls_no_connection_from_under_it(store: SQLiteStore, file: Path) -> None:
    readers, inside, outcomes = ReaderPool(str(file), time.time_ns), threading.Semaphore(0), list[BaseException]()

    def read() -> None:
        try:
            with readers.acquire() as reader:
                inside.release()
                reader.db.execute(LONG).fetchall()
        except Closed as error:
            outcomes.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
        inside.acquire()
    readers.close()
    for thread in threads:
        thread.join(60)
    assert [str(outcome) for outcome in outcomes] == ["the store is closed"] * 4
