"""The control backend on PostgreSQL, in one process: text, types, errors, time limits, migrations, the clock, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collector.postgres_server import PostgresServer
from spanwise import collector
from spanwise.collector.errors import Closed, NotFound, Refused, TooSlow, Unavailable
from spanwise.collector.records import (
    Booking,
    Claim,
    Decision,
    DecisionBatch,
    Example,
    Experiment,
    QueueItem,
    Retention,
    Rule,
    Target,
    WorkerReport,
)
from spanwise.collector.stores import postgres as postgres_package
from spanwise.collector.stores.backends import DecisionQuery, DeletedTraces
from spanwise.collector.stores.postgres import PostgresControl
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.process

HOSTILE = [
    "it's",
    '"quoted"',
    "100 % of %s and %(name)s",
    "who? ?1 ??",
    ":name ::text",
    "$1 $$ $body$",
    "/*pg FOR UPDATE*/ -- note",
    "'; DROP TABLE spanwise.rules; --",
    "back\\slash \\u0000 \\' \\",
    "nul \0 in \0\0 it\0",
    "\1 and \1\2 and \1\1",
    "\0\1\0\2",
    "tab\tnew\nline\r\x7f\u2028",
    "é Ａ 漢字 🏔 \U0010ffff",
    "x" * 3_000,
]


@pytest.fixture
def control(empty_database: str) -> Iterator[PostgresControl]:
    made = PostgresControl(empty_database)
    yield made
    made.close()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[SQLiteStore]:
    """The same operations on SQLite, for comparison."""
    with SQLiteStore(tmp_path / "control.db") as made:
        yield made


def rule(name: str = "r", version: str = "1", **fields: Any) -> Rule:
    return Rule(name=name, version=version, evaluators=({"key": "k"},), **fields)


def save(control: Any, *rules: Rule) -> None:
    control.save_rules(list(rules), None, False, 0)


def decision_batch(
    *targets: Target, name: str = "r", project: str = "default", after: str | None = None, upto: str = "1"
) -> DecisionBatch:
    rows = [
        Decision(rule=name, version="1", project=project, verdict="waiting", target=target, change=1, runs_change=1)
        for target in targets
    ]
    return DecisionBatch(project=project, rule=name, version="1", after=after, upto=upto, rows=rows)


def decide(control: Any, *targets: Target, name: str = "r", project: str = "default") -> list[bool]:
    return control.record_decisions([decision_batch(*targets, name=name, project=project)])


def use_everywhere(control: Any, text: str) -> list[Any]:
    """Store a text wherever users name something, and return what is read back, without times and lease numbers."""
    save(control, rule(text, project=text, owner=text))
    sessions = [Target(session_id=text), Target(session_id=f"{text}\0"), Target(session_id=f"{text}!")]
    traces = [Target(trace_id=text), Target(trace_id=text, span_id=text), Target(trace_id=f"{text}0")]
    assert decide(control, *sessions, *traces, name=text, project=text) == [True]
    leased = control.lease_decisions(text, "1", text, 60.0, text, 100)
    claims = [Claim(project=text, rule=text, version="1", target=one.target, number=one.claim) for one in leased]
    control.save_examples(
        text, [Example(id=text, inputs=text, split=text), Example(id=f"{text}2", inputs={text: text})]
    )
    control.save_examples(text, [Example(id="m", inputs=1, metadata={"dataset_split": [text, "other"]})])
    control.save_experiment(Experiment(id=text, name=f"n{text}", dataset=text, project=text))
    control.enqueue([QueueItem(queue=text, target=Target(trace_id=text), id=text)])
    control.enqueue([QueueItem(queue=text, target=Target(session_id=text), id=f"{text}2")])
    spent = control.book(
        Booking(id=text, budget=text, amount=1.0, limit=2.0), Booking(id=f"{text}2", budget=text, amount=1.5, limit=2.0)
    )
    control.report(WorkerReport(holder=text, project=text, rules={text: "1"}))
    control.set_retention(Retention(project=text, max_age_ns=1))
    lease = control.acquire(text, text, 60.0)
    found = [
        [(one.name, one.project, one.owner) for one in control.rules(project=text)],
        [(one.target, one.holder, one.rule) for one in sorted(leased, key=lambda one: repr(one.target))],
        control.renew(claims, text, 60.0),
        [one.target for one in control.list_decisions(DecisionQuery(trace_id=text, session=(text, text))).items],
        sorted(repr(one) for one in control.find_results(control.rules(project=text)[0], [*sessions, *traces])),
        [
            (one.probability, one.is_own)
            for one in control.find_probabilities(text, text, None, [(one, 1) for one in traces])
        ],
        control.examples(text),
        control.examples(text, split=text) if "\0" not in text else [],  # SQLite finds no values with U+0000 in JSON
        [one.name for one in control.datasets()],
        control.list_example_records([text], 10, None).items if "\0" not in text else [],
        [control.experiment(text).name, control.experiment(f"n{text}").id],
        [(one.id, one.target) for one in control.queue(text)],
        control.queues(),
        spent,
        [(one.budget, one.reserved) for one in control.booked(text)],
        [(one.holder, one.project, one.rules) for one in control.workers()],
        control.retention(),
        (lease.name, lease.holder),
        [one.name for one in control.leases()],
    ]
    control.delete_references(DeletedTraces([text], [text]))
    found += [[one.target for one in control.list_decisions(DecisionQuery(project=text)).items]]
    found += [control.release(text, text), control.delete_dataset(text), control.delete_rule(text, project=text)]
    return found


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_comes_back_as_it_was_stored_and_as_on_sqlite(
    control: PostgresControl, beside: SQLiteStore, text: str
) -> None:
    assert use_everywhere(control, text) == use_everywhere(beside, text)
    assert control.queues() == {}  # items about deleted traces and sessions


def test_text_with_nul_is_found_in_json(control: PostgresControl) -> None:
    for id, split in {"a": "x\0", "b": "x\1", "c": "x\1\1", "d": "x\\u0000", "e": "x\\\0\0\1"}.items():
        control.save_examples("d", [Example(id=id, inputs="\0", metadata={"dataset_split": [split, "other"]})])
        assert [one.id for one in control.examples("d", split=split)] == [id]
    assert [one.id for one in control.examples("d", split="other")] == ["a", "b", "c", "d", "e"]


def test_text_has_the_order_of_code_points(control: PostgresControl, beside: SQLiteStore) -> None:
    names = ["b", "B", "a", "é", "z", "_", "漢", "\U0001f3d4", "a\0", "a\1", "a\2", "a b", "ab", "Ａ"]
    for one in (control, beside):
        save(one, *(rule(name) for name in names))
    found = [one.name for one in control.rules()]
    assert found == [one.name for one in beside.rules()]
    assert found == sorted(names)


def test_a_lone_surrogate_is_refused(control: PostgresControl) -> None:
    with pytest.raises(Refused, match="surrogate"):
        control.acquire("\ud800", "one", 60.0)
    with pytest.raises(Refused, match="surrogate"):
        control.enqueue([QueueItem(queue="\udfff", target=Target(trace_id="a"))])
    assert control.leases() == []


def test_a_number_beyond_64_bits_is_refused(control: PostgresControl) -> None:
    with pytest.raises(Refused):
        control.book(Booking(id="a", budget="b", amount=1.0, limit=2.0)), control.delete_budget("b", before_ns=2**70)
    assert control.keys() == []


def test_a_refused_operation_changes_nothing(control: PostgresControl) -> None:
    save(control, rule(owner="one"))
    with pytest.raises(Refused, match="belongs to"):
        save(control, rule("new"), rule(owner="other"))
    assert [one.name for one in control.rules()] == ["r"]


def test_sorted_lists_have_the_order_of_sqlite(control: PostgresControl, beside: SQLiteStore) -> None:
    def lists(one: Any) -> list[Any]:
        for number in range(5):
            one.save_examples(f"d{number % 3}", [Example(id=str(id), inputs=id) for id in range(number)])
            experiment = Experiment(id=f"e{number}", name="n", dataset="d", started_ns=number * 10)
            one.save_experiment(replace(experiment, ended_ns=100 if number % 2 else None, example_count=5 - number))
        datasets = [[found.name for found in one.datasets(sort=sort)] for sort in (None, "version", "-examples")]
        sorts = (None, "start", "duration_ms", "-duration_ms", "examples", "-examples")
        return datasets + [[found.id for found in one.experiments(sort=sort)] for sort in sorts]

    assert lists(control) == lists(beside)


# Addresses and connections


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://ann:s3cret@db.example:5433/spans", "postgresql://ann@db.example:5433/spans"),
        ("postgres://db.example/spans?password=s3cret&sslmode=require", "postgresql://db.example/spans"),
        ("postgresql://ann:s3cret@one:1,two:2/spans", "postgresql://ann@one:1,two:2/spans"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, where: str) -> None:
    assert postgres_package.connection_pool.parse_address(url).where == where  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["postgresql://u:s3cret%zz@h/d", "postgresql://u:s3cret@h/d?nonsense=s3cret", "s3cret"])
def test_the_error_for_an_invalid_address_has_no_password(url: str) -> None:
    with pytest.raises(Refused) as refused:
        PostgresControl(url)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_server_that_is_away_is_unavailable_and_its_error_has_no_password(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as away:
        PostgresControl(f"postgresql://ann:s3cret@/d?host={tmp_path}")
    assert str(tmp_path) in str(away.value)
    assert "s3cret" not in str(away.value)
    with pytest.raises(Unavailable):
        PostgresControl("postgresql://ann:s3cret@127.0.0.1:1/d")


def test_an_unknown_database_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(Refused, match="does not exist"):
        PostgresControl(postgres.url("missing"))


def test_a_database_of_another_encoding_is_refused(postgres: PostgresServer) -> None:
    url = postgres.create_database("TEMPLATE template0 ENCODING 'LATIN1'")
    with pytest.raises(Refused, match="LATIN1"):
        PostgresControl(url)
    postgres.drop_database(url)


def test_acknowledged_means_durable_whatever_the_server_has_as_default(control: PostgresControl) -> None:
    # The server of these tests has synchronous_commit = off
    with control._postgres.read() as db:
        assert db.execute("SELECT current_setting('synchronous_commit')").fetchone() == ("on",)


def test_the_store_goes_on_after_its_connections_were_closed_by_the_server(
    control: PostgresControl, postgres: PostgresServer
) -> None:
    control.acquire("a", "one", 60.0)
    close_connections(postgres)
    assert [one.name for one in control.leases()] == ["a"]
    close_connections(postgres)
    assert control.acquire("b", "one", 60.0) is not None


def close_connections(postgres: PostgresServer) -> None:
    with postgres.connect() as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'spanwise'")


def test_a_write_whose_connection_is_lost_runs_again(control: PostgresControl, postgres: PostgresServer) -> None:
    runs = []

    def action(db: Any) -> str:
        runs.append(1)
        db.execute("INSERT INTO keys (id, created_ns, data) VALUES ('a', 1, '{}')")
        if len(runs) == 1:
            close_connections(postgres)
        db.execute("INSERT INTO keys (id, created_ns, data) VALUES ('b', 1, '{}')")
        return "done"

    assert control._postgres.write(action) == "done"
    assert len(runs) == 2


def test_a_connection_that_is_lost_while_reading_is_unavailable(
    control: PostgresControl, postgres: PostgresServer
) -> None:
    with pytest.raises(Unavailable), control._postgres.read() as db:
        close_connections(postgres)
        db.execute("SELECT 1")
    assert control.keys() == []


def test_an_exhausted_pool_is_unavailable(control: PostgresControl) -> None:
    pool = control._postgres._pool
    pool._max_wait, until = 0.3, threading.Event()
    held = [threading.Thread(target=lambda: control._postgres.write(lambda _: until.wait(30))) for _ in range(10)]
    for thread in held:
        thread.start()
    while pool._places._value:  # type: ignore[attr-defined]
        time.sleep(0.01)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="all 10 connections"):
        control.keys()
    assert time.monotonic() - began < 5
    until.set()
    for thread in held:
        thread.join()
    assert control.keys() == []


def test_a_full_disk_is_unavailable_and_remembered(control: PostgresControl) -> None:
    assert not control.is_full()
    with pytest.raises(Unavailable, match="free space"):
        control._postgres.write(lambda db: db.execute("DO 'BEGIN RAISE USING ERRCODE = ''53100''; END'"))
    assert control.is_full()


def test_a_standby_is_unavailable(control: PostgresControl) -> None:
    def action(db: Any) -> None:
        db.execute("SET TRANSACTION READ ONLY")
        db.execute("DELETE FROM keys")

    with pytest.raises(Unavailable, match="standby"):
        control._postgres.write(action)


def test_a_lock_that_others_hold_too_long_is_unavailable(control: PostgresControl) -> None:
    held, until = threading.Event(), threading.Event()

    def hold(db: Any) -> None:
        db.lock("dataset", "d")
        held.set()
        until.wait(30)

    def wait_shortly(db: Any) -> None:
        db.execute("SET LOCAL lock_timeout = '100ms'")
        db.lock("dataset", "d")

    holder = threading.Thread(target=control._postgres.write, args=(hold,))
    holder.start()
    assert held.wait(30)
    with pytest.raises(Unavailable, match="lock timeout"):
        control._postgres.write(wait_shortly)
    until.set()
    holder.join()
    control._postgres.write(wait_shortly)


def test_shared_locks_wait_only_for_others(control: PostgresControl) -> None:
    both, order = threading.Barrier(2), []

    def share(db: Any) -> None:
        db.lock("rule", "r", shared=True)
        both.wait(30)  # two hold it at once
        order.append("shared")

    threads = [threading.Thread(target=control._postgres.write, args=(share,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    control._postgres.write(lambda db: db.lock("rule", "r"))
    assert order == ["shared", "shared"]


def test_a_query_beyond_its_time_limit_is_stopped(control: PostgresControl) -> None:
    context = collector.request_context
    query = context.CancellableQuery("the query", 0.2)
    watching = threading.Thread(target=interrupt_until_over, args=(query,))
    watching.start()
    with pytest.raises(TooSlow), context.query_context(query), control._postgres.read() as db:
        db.execute("SELECT pg_sleep(30)")
    query.leave()
    watching.join()
    assert control.keys() == []


def interrupt_until_over(query: Any) -> None:
    while not query.was_left:
        if query.is_over:
            query.interrupt()
        time.sleep(0.02)


def test_a_closed_store_refuses(control: PostgresControl) -> None:
    control.close()
    control.close()
    with pytest.raises(Closed):
        control.keys()


def test_a_read_sees_one_state(control: PostgresControl) -> None:
    with control._postgres.read() as db:
        before = db.execute("SELECT count(*) FROM leases").fetchone()
        other = threading.Thread(target=control.acquire, args=("a", "one", 60.0))
        other.start()
        other.join()
        assert db.execute("SELECT count(*) FROM leases").fetchone() == before == (0,)


def test_transactions_that_wait_for_each_other_both_succeed(control: PostgresControl) -> None:
    control.acquire("a", "one", 60.0)
    control.acquire("b", "one", 60.0)
    both, runs = threading.Barrier(2), []

    def change(first: str, second: str) -> None:
        def action(db: Any) -> None:
            runs.append(first)
            db.execute("UPDATE leases SET token = token + 1 WHERE name = ?", (first,))
            if len(runs) <= 2:
                both.wait(10)
            db.execute("UPDATE leases SET token = token + 1 WHERE name = ?", (second,))

        control._postgres.write(action)

    before = {one.name: one.token for one in control.leases()}
    threads = [threading.Thread(target=change, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name: one.token - before[one.name] for one in control.leases()} == {"a": 2, "b": 2}
    assert len(runs) >= 3


# Migrations


def newest_version() -> int:
    return len(list((Path(postgres_package.__file__).parent / "migrations").glob("*.sql")))


def test_an_older_database_is_brought_up_to_date_and_keeps_its_records(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    first = PostgresControl(url)
    first.acquire("a", "one", 60.0)
    first.close()
    with postgres.connect(url.split("/")[3].split("?")[0]) as db:
        db.execute("DROP TABLE spanwise.secrets")  # of migration 2
        db.execute("UPDATE spanwise.schema_version SET version = 1")
    again = PostgresControl(url)
    assert len(again.shared_secret()) == 32
    assert [one.name for one in again.leases()] == ["a"]
    again.close()
    with postgres.connect(url.split("/")[3].split("?")[0]) as db:
        assert db.execute("SELECT version FROM spanwise.schema_version").fetchall() == [(newest_version(),)]
    postgres.drop_database(url)


def test_a_database_of_a_newer_version_is_refused(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    PostgresControl(url).close()
    with postgres.connect(url.split("/")[3].split("?")[0]) as db:
        db.execute("UPDATE spanwise.schema_version SET version = version + 1")
    with pytest.raises(Refused, match="newer Spanwise"):
        PostgresControl(url)
    postgres.drop_database(url)


def test_a_user_without_rights_is_told_what_to_do(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with postgres.connect() as db:
        db.execute("DROP ROLE IF EXISTS poor")
        db.execute("CREATE ROLE poor LOGIN")
    with pytest.raises(Refused, match="CREATE SCHEMA spanwise AUTHORIZATION"):
        PostgresControl(url.replace("postgres@", "poor@"))
    with postgres.connect(url.split("/")[3].split("?")[0]) as db:
        db.execute("CREATE SCHEMA spanwise AUTHORIZATION poor")
    PostgresControl(url.replace("postgres@", "poor@")).close()
    postgres.drop_database(url)


def test_lease_numbers_go_on_above_those_of_a_lost_copy(control: PostgresControl, empty_database: str) -> None:
    lease = control.acquire("a", "one", 60.0)
    assert lease is not None
    with control._postgres.read() as db:
        assert db.execute("SELECT last_value FROM lease_numbers").fetchone() == (lease.token,)
    control._postgres.write(lambda db: db.execute("SELECT setval('lease_numbers', 1)"))  # a copy from long ago
    again = PostgresControl(empty_database)
    control.release("a", "one")
    later = again.acquire("a", "two", 60.0)
    again.close()
    assert later is not None
    assert later.token > lease.token


# The clock


def test_the_time_never_goes_back(control: PostgresControl, empty_database: str) -> None:
    day = 86_400 * 10**9
    ahead = control._postgres.clock.now() + day
    control._postgres.write(lambda db: db.execute("SELECT setval('store_clock', ?)", (ahead,)))
    again = PostgresControl(empty_database)
    lease = again.acquire("a", "one", 60.0)
    again.close()
    assert lease is not None
    assert lease.expires_ns >= ahead + 60 * 10**9


def test_processes_with_other_clocks_agree(
    control: PostgresControl, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = control.acquire("a", "one", 60.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(time, "time", lambda: 1e-9)
    skewed = PostgresControl(empty_database)
    assert skewed.acquire("a", "two", 60.0) is None
    assert skewed.leases() == [lease]
    assert abs(skewed._postgres.clock.now() - control._postgres.clock.now()) < 10**9
    skewed.close()


# Processes


@pytest.mark.process
def test_a_forked_child_uses_no_connection_of_its_parent(control: PostgresControl) -> None:
    control.acquire("a", "one", 60.0)
    if (child := os.fork()) == 0:
        code = 1
        try:
            control.keys()
        except Closed:
            control.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [one.name for one in control.leases()] == ["a"]


@pytest.mark.process
def test_without_psycopg_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import spanwise.collector.stores.postgres as postgres\n"
        "try:\n    postgres.PostgresControl('postgresql://u:s3cret@h/d')\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "a store on PostgreSQL needs 'psycopg', which is not installed: pip install '.[postgres]' in a checkout of Spanwise"
    ]


def test_an_unknown_dataset_is_not_found(control: PostgresControl) -> None:
    with pytest.raises(NotFound):
        control.dataset("missing")
