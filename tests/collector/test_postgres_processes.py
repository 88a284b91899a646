"""Control records on PostgreSQL with several processes at once, some of which are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import postgres_workers
from collector.postgres_server import PostgresServer, running_server
from collector.postgres_workers import finish_of, run_together, start
from collector.separate_networks import Network, separate_network
from collector.test_postgres import decide, newest_version, rule, save
from polling import until
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Alert, AlertResult, Example, QueueItem, Target
from spanwise.collector.stores.backends import DecisionQuery, DeletedTraces
from spanwise.collector.stores.postgres import PostgresControl

pytestmark = pytest.mark.process
PROCESSES = [(number,) for number in range(4)]


@pytest.fixture
def control(empty_database: str) -> Iterator[PostgresControl]:
    made = PostgresControl(empty_database)
    yield made
    made.close()


def waiting(control: PostgresControl, count: int) -> None:
    save(control, rule())
    assert decide(control, *(Target(trace_id=f"t{number}") for number in range(count))) == [True]


def test_processes_that_migrate_at_once_wait_for_each_other(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    run_together(postgres_workers.open_store, url, PROCESSES)
    with postgres.connect(url.split("/")[3].split("?")[0]) as db:
        assert db.execute("SELECT version FROM spanwise.schema_version").fetchall() == [(newest_version(),)]
    postgres.drop_database(url)


def test_a_restored_backup_can_be_used(control: PostgresControl, postgres: PostgresServer, empty_database: str) -> None:
    waiting(control, 2)
    control.enqueue([QueueItem(queue="q", target=Target(trace_id=id)) for id in ("t0", "odd\0")])
    [leased] = control.lease_decisions("r", "1", "one", 60.0, "default", 1)
    copy = postgres.copy_database(empty_database)
    restored = PostgresControl(copy)
    assert restored.queue("q") == control.queue("q")
    restored.delete_references(DeletedTraces(["odd\0"]))
    assert [one.target.trace_id for one in restored.queue("q")] == ["t0"]
    [other] = restored.lease_decisions("r", "1", "two", 60.0, "default", 5)
    assert (other.target, other.claim > leased.claim) == (Target(trace_id="t1"), True)
    assert restored.finish_leases([finish_of(leased)]) == ["finished"]
    restored.close()
    postgres.drop_database(copy)


def test_budgets_hold_across_processes(control: PostgresControl, empty_database: str) -> None:
    results = run_together(postgres_workers.book, empty_database, PROCESSES)
    accepted, settled = (sum(column) for column in zip(*results, strict=True))
    [shared] = control.booked("shared")
    assert shared.settled == settled * 0.5
    assert shared.settled + shared.reserved + shared.unknown == pytest.approx(accepted - settled * 0.5)
    assert accepted - settled * 0.5 == pytest.approx(100.0, abs=0.5)
    [other] = control.booked("other")
    assert other.reserved + other.unknown == 100.0


@pytest.mark.parametrize("limit", [1, 7])
def test_each_decision_is_leased_to_one_process(control: PostgresControl, empty_database: str, limit: int) -> None:
    waiting(control, 300)
    found = run_together(postgres_workers.lease_and_finish, empty_database, [(number, limit) for number in range(4)])
    done = [one for each in found for one in each]
    assert Counter(target for target, _, _ in done) == {f"t{number}": 1 for number in range(300)}
    assert {answer for _, _, answer in done} == {"finished"}
    assert len({number for _, number, _ in done}) == 300


def test_the_lease_numbers_of_a_decision_rise(control: PostgresControl, empty_database: str, tmp_path: Path) -> None:
    waiting(control, 5)
    path = str(tmp_path / "numbers")
    run_together(postgres_workers.lease_again_and_again, empty_database, [(number, path) for number in range(4)])
    numbers: dict[str, list[int]] = defaultdict(list)
    for line in Path(path).read_text().splitlines():
        numbers[line.split()[0]].append(int(line.split()[1]))
    assert sum(map(len, numbers.values())) > 40
    for found in numbers.values():
        assert found == sorted(set(found))


def test_the_tokens_of_a_lease_rise_from_holder_to_holder(
    control: PostgresControl, empty_database: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "tokens")
    run_together(postgres_workers.take_turns, empty_database, [(number, path) for number in range(4)])
    tokens = [int(line) for line in Path(path).read_text().splitlines()]
    assert len(tokens) == 100
    assert tokens == sorted(set(tokens))


def test_leases_of_a_new_version_have_higher_numbers_than_those_of_the_old_one(control: PostgresControl) -> None:
    waiting(control, 1)
    leased, let_go, order = threading.Event(), threading.Event(), []
    write = control._postgres.write

    def slow(action):  # type: ignore[no-untyped-def]
        def held(db):  # type: ignore[no-untyped-def]
            result = action(db)
            leased.set()
            assert let_go.wait(30)
            order.append(("1", result[0].claim))
            return result

        return write(held)

    def lease_old() -> None:
        control._postgres.write = slow  # type: ignore[method-assign]
        control.lease_decisions("r", "1", "old", 60.0, "default", 1)

    old = threading.Thread(target=lease_old)
    old.start()
    assert leased.wait(30)
    control._postgres.write = write  # type: ignore[method-assign]

    def activate() -> None:
        save(control, rule(version="2"))
        order.append(("in force", 0))

    new = threading.Thread(target=activate)
    new.start()
    new.join(0.3)
    assert new.is_alive()  # waits for the lease of the old version
    let_go.set()
    for thread in (old, new):
        thread.join(30)
    assert [name for name, _ in order] == ["1", "in force"]
    with pytest.raises(Refused, match="not in force"):
        control.lease_decisions("r", "1", "late", 60.0, "default", 1)


def test_versions_of_a_dataset_that_processes_save_at_once_are_all_kept(
    control: PostgresControl, empty_database: str
) -> None:
    found = run_together(postgres_workers.save_examples, empty_database, PROCESSES)
    assert sorted(version for each in found for version in each) == list(range(1, 41))
    assert [one.version for one in control.versions("d")] == list(range(40, 0, -1))
    assert {one.id for one in control.examples("d")} == {f"{n}-{at}" for n in range(4) for at in range(10)} | {"both"}
    assert [one.example_count for one in reversed(control.versions("d"))] == [version + 1 for version in range(1, 41)]


def test_a_dataset_that_is_deleted_while_others_save_it_is_whole(control: PostgresControl, empty_database: str) -> None:
    run_together(postgres_workers.save_or_delete_examples, empty_database, PROCESSES)
    control.save_examples("d", [Example(id="last", inputs=1)])
    versions = control.versions("d")
    assert [one.version for one in versions] == list(range(len(versions), 0, -1))
    for one in versions:
        assert one.example_count == len(control.examples("d", one.version)) == one.version


def test_one_version_of_a_rule_is_in_force_after_processes_have_saved_others(
    control: PostgresControl, empty_database: str
) -> None:
    run_together(postgres_workers.save_rules, empty_database, PROCESSES)
    in_force = control.rules()
    assert [one.name for one in in_force] == ["a", "b"]
    assert in_force[0].version == in_force[1].version  # those of one file
    assert len(control.rules(all_versions=True)) == 80
    assert len(control.settings("a")) == 40


def test_a_cursor_is_moved_by_one_process_at_a_time(control: PostgresControl, empty_database: str) -> None:
    save(control, rule())
    recorded = sum(run_together(postgres_workers.decide_in_steps, empty_database, PROCESSES))
    cursor = int(control.cursor("r", "1", project="default") or 0)
    assert recorded >= cursor > 0
    decisions = control.list_decisions(DecisionQuery(limit=1_000)).items
    assert {str(one.target.trace_id).split("-")[1] for one in decisions} == {str(at) for at in range(1, cursor + 1)}
    assert len(decisions) == cursor


def test_a_target_is_enqueued_once(control: PostgresControl, empty_database: str) -> None:
    run_together(postgres_workers.enqueue, empty_database, PROCESSES)
    assert len(control.queue("q")) == 20


def test_a_look_at_an_alert_is_recorded_once(control: PostgresControl) -> None:
    control.save_alert(Alert(name="a", measure="lag_s", above=60.0, to=("ops",)))
    [alert] = control.alerts()
    look = AlertResult(alert="a", project="default", version=alert.version, token=1, looked_ns=10, now_ns=10, groups=())
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(control.record_look(look))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]


def test_a_decision_of_a_killed_worker_is_leased_again(
    control: PostgresControl, empty_database: str, tmp_path: Path
) -> None:
    waiting(control, 1)
    worker = start(postgres_workers.hold_a_lease, empty_database, str(tmp_path / "number"))
    until(lambda: (tmp_path / "number").exists() and (tmp_path / "number").read_text())
    held = control.list_decisions(DecisionQuery()).items[0]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    [again] = until(lambda: control.lease_decisions("r", "1", "next", 60.0, "default", 5))
    assert (again.deaths, again.claim > held.claim, held.holder) == (1, True, "killed")
    assert control.finish_leases([finish_of(held)])[0].startswith("refused: claim")
    assert control.finish_leases([finish_of(again)]) == ["finished"]


def test_what_a_killed_process_has_not_committed_is_undone(
    control: PostgresControl, empty_database: str, tmp_path: Path
) -> None:
    waiting(control, 1)
    worker = start(postgres_workers.hang_in_a_transaction, empty_database, str(tmp_path / "changed"))
    until((tmp_path / "changed").exists)
    assert control.lease_decisions("r", "1", "other", 60.0, "default", 5) == []  # left out, not waited for
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    [leased] = until(lambda: control.lease_decisions("r", "1", "other", 60.0, "default", 5))
    assert (leased.holder, leased.deaths) == ("other", 0)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """With the server's default durability. kill -9 of all its processes, four times, while six processes work."""
    with running_server() as server:
        url = server.create_database()
        control = PostgresControl(url)
        save(control, rule())
        stop = str(tmp_path / "stop")

        def kill_and_stop() -> None:
            for _ in range(4):
                time.sleep(random.uniform(0.5, 1.5))
                server.kill()
                time.sleep(random.uniform(0.0, 0.5))
                server.start()
            time.sleep(1.0)
            Path(stop).touch()

        killing = threading.Thread(target=kill_and_stop)
        jobs = [(postgres_workers.decide_through_failures, 0)]
        jobs += [(postgres_workers.work_through_failures, number) for number in range(1, 5)]
        killing.start()
        found = run_together(run_job, url, [(number, job.__name__, stop) for job, number in jobs])
        killing.join()
        recorded, finished = found[0], [target for each in found[1:] for target in each]
        stored = {one.target.trace_id: one for one in control.list_decisions(DecisionQuery(limit=100_000)).items}
        control.close()
        assert len(recorded) > 20
        assert len(finished) > 20
        assert set(recorded) <= set(stored)
        assert {stored[target].verdict for target in finished} == {"scored"}
        assert max(Counter(finished).values()) == 1


@pytest.fixture
def network() -> Iterator[Network]:
    with separate_network() as network:
        yield network


@pytest.mark.slow
def test_a_network_that_is_cut_makes_the_store_unavailable_until_it_is_mended(network: Network) -> None:
    address = network.address
    with running_server(namespace=network.name, listen_addresses=address) as server:
        database = server.create_database().split("/")[3].split("?")[0]
        limits = "connect_timeout=2&tcp_user_timeout=2000&keepalives_idle=1&keepalives_interval=1&keepalives_count=2"
        control = PostgresControl(f"postgresql://postgres@{address}:5432/{database}?{limits}")
        control.save_examples("d", [Example(id="a", inputs=1)])
        network.cut()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(Unavailable):
                control.save_examples("d", [Example(id="b", inputs=1)])
            assert time.monotonic() - began < 30
        network.mend()
        until(lambda: is_answering(control), 60)
        assert control.save_examples("d", [Example(id="b", inputs=1)]).version == 2
        assert [one.id for one in control.examples("d")] == ["a", "b"]
        control.close()


def is_answering(control: PostgresControl) -> bool:
    try:
        control.keys()
    except Unavailable:
        return False
    return True


def run_job(url: str, number: int, name: str, stop: str) -> list[str]:
    return getattr(postgres_workers, name)(url, number, stop)  # type: ignore[no-any-return]


def test_the_store_is_unavailable_while_the_server_is_away_and_goes_on_when_it_is_back() -> None:
    with running_server() as server:
        url = server.create_database()
        control = PostgresControl(url)
        control.save_examples("d", [Example(id="a", inputs=1)])
        server.kill()
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(Unavailable) as away:
                control.save_examples("d", [Example(id="b", inputs=1)])
            assert time.monotonic() - began < 5
            assert away.value.retry_after > 0
        with pytest.raises(Unavailable):
            control.examples("d")
        server.start()
        assert [one.id for one in control.examples("d")] == ["a"]
        assert control.save_examples("d", [Example(id="b", inputs=1)]).version == 2
        control.close()
