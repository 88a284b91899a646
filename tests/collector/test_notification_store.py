"""Notifications in the store: queued once, due in order, and open until they are delivered or given up."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import Forbidden, NotFound, Refused
from spanwise.collector.records import Key, Notification, make_test_notification
from spanwise.collector.server import Server
from spanwise.collector.stores.control import notifications
from spanwise.collector.stores.control.notifications import enqueue_notifications
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def notification(id: str = "n1", **fields: Any) -> Notification:
    given = {"alert": "grounded", "status": "firing", "headline": "It fell.", "targets": ("ops",)}
    return Notification(id=id, **{**given, **fields})


def due(store: Any, target: str = "ops") -> list[str]:
    return [one.notification.id for one in store.due_deliveries(target)]


def test_a_notification_is_due_at_each_of_its_targets_until_it_is_delivered(store: SQLiteStore) -> None:
    store.add_notifications([notification(targets=("ops", "mail", "ops"))])
    assert store.count_due_deliveries() == {"mail": 1, "ops": 1}
    store.record_delivery("n1", "ops", "delivered")
    assert (due(store), due(store, "mail"), store.count_due_deliveries()) == ([], ["n1"], {"mail": 1})


def test_all_fields_come_back_in_their_order(store: SQLiteStore) -> None:
    full = notification(
        project="p", group="gpt", facts={"n": 3, "bound": 0.8, "a": None}, links={"Chart": "/x?a=1"}, created_ns=5
    )
    store.add_notifications([full])
    [found] = store.notifications(project="p")
    assert found.notification == full
    assert list(found.notification.facts) == ["n", "bound", "a"]


def test_an_id_is_stored_once(store: SQLiteStore) -> None:
    store.add_notifications([notification(), notification(headline="Again.")])
    store.record_delivery("n1", "ops", "delivered")
    store.add_notifications([notification(targets=("ops", "mail"))])
    [found] = store.notifications()
    assert (found.notification.headline, len(found.deliveries), store.count_due_deliveries()) == ("It fell.", 1, {})


def test_a_rolled_back_change_of_state_leaves_no_notification(store: SQLiteStore) -> None:
    def change(db: sqlite3.Connection) -> None:
        enqueue_notifications(db, [notification()])
        raise Refused("the change of state failed")

    with pytest.raises(Refused):
        store._file.write(change)
    assert len(store.notifications()) == 0


def test_a_failed_delivery_is_due_again_later_with_its_reason(store: SQLiteStore) -> None:
    store.add_notifications([notification()])
    store.record_delivery("n1", "ops", "retry", error="http 503", retry_s=3600)
    [found] = store.notifications()
    [delivery] = found.deliveries
    assert (due(store), delivery.attempts, delivery.error, delivery.delivered_ns) == ([], 1, "http 503", None)
    assert delivery.next_ns is not None
    assert delivery.first_attempt_ns is not None
    assert delivery.next_ns - delivery.first_attempt_ns == 3600 * 10**9


def test_a_delivery_that_was_given_up_shows_its_reason_and_is_not_due(store: SQLiteStore) -> None:
    store.add_notifications([notification()])
    store.record_delivery("n1", "ops", "gave up", error="http 500")
    [found] = store.notifications()
    [delivery] = found.deliveries
    assert (due(store), delivery.gave_up_ns is not None, delivery.error) == ([], True, "http 500")


def test_a_closed_delivery_stays_as_it_is(store: SQLiteStore) -> None:
    store.add_notifications([notification()])
    store.record_delivery("n1", "ops", "delivered")
    store.record_delivery("n1", "ops", "retry", error="late")
    [found] = store.notifications()
    assert [(one.attempts, one.error) for one in found.deliveries] == [(1, None)]


def test_unknown_deliveries_and_outcomes_are_refused(store: SQLiteStore) -> None:
    store.add_notifications([notification()])
    with pytest.raises(NotFound, match="no delivery of notification 'n1' to target 'pager'"):
        store.record_delivery("n1", "pager", "delivered")
    with pytest.raises(Refused, match="unknown outcome 'lost'"):
        store.record_delivery("n1", "ops", "lost")  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(Refused, match="retry_s must be from 0"):
            store.record_delivery("n1", "ops", "retry", retry_s=seconds)


def test_changes_of_one_alert_and_group_are_delivered_in_order(store: SQLiteStore) -> None:
    store.add_notifications(
        [notification("a1", group="a"), notification("a2", group="a"), notification("b1", group="b"), notification("c")]
    )
    assert due(store) == ["a1", "b1", "c"]
    store.record_delivery("a1", "ops", "retry", retry_s=3600)
    assert due(store) == ["b1", "c"]


def test_a_notification_that_keeps_failing_holds_up_others_for_an_hour_only(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_notifications([notification("a1"), notification("a2")])
    store.record_delivery("a1", "ops", "retry", retry_s=7200)
    assert due(store) == []
    monkeypatch.setattr(notifications, "ORDER_NS", 0)
    assert due(store) == ["a2"]


def test_a_test_waits_for_no_failing_notification(store: SQLiteStore) -> None:
    store.add_notifications([notification("a1")])
    store.record_delivery("a1", "ops", "retry", retry_s=3600)
    test = make_test_notification("grounded", targets=["ops"])
    store.add_notifications([test])
    assert due(store) == [test.id]
    assert "test" in test.headline


def test_lists_are_paged_newest_first_by_project_and_alert(store: SQLiteStore) -> None:
    rows = [notification(f"n{number}", project="pq"[number % 2], alert=f"a{number // 2}") for number in range(6)]
    store.add_notifications(rows)
    first = store.notifications(limit=4)
    rest = store.notifications(limit=4, cursor=first.next)
    assert [one.notification.id for one in (*first, *rest)] == ["n5", "n4", "n3", "n2", "n1", "n0"]
    assert rest.next is None
    assert [one.notification.id for one in store.notifications(project="p", alert="a1")] == ["n2"]


def test_old_notifications_are_deleted_unless_they_are_open(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MAX_NOTIFICATIONS", 10)
    store.add_notifications([notification("open"), *(notification(f"n{n}", targets=()) for n in range(199))])
    assert [one.notification.id for one in store.notifications()][-2:] == ["n189", "open"]
    assert due(store) == ["open"]


def test_what_was_due_before_a_restart_is_due_after_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.add_notifications([notification()])
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert due(store) == ["n1"]


@pytest.mark.parametrize("path", ["https://evil.test/", "//evil.test/", "/\\evil.test", "rules", ""])
def test_a_link_is_a_path_on_this_server(path: str) -> None:
    with pytest.raises(ValueError, match="must be a path on this server"):
        notification(links={"Chart": path})


def test_the_operations_answer_over_http_as_the_store_does(store: SQLiteStore) -> None:
    with Server(store) as server, HTTPStore(server.url) as client:
        store.add_notifications([notification(group="a/b", targets=("ops team/1",))])
        assert client.count_due_deliveries() == {"ops team/1": 1}
        assert client.due_deliveries("ops team/1") == store.due_deliveries("ops team/1") != []
        client.record_delivery("n1", "ops team/1", "retry", error="x", retry_s=9)
        assert client.notifications(alert="grounded") == store.notifications(alert="grounded")


def test_a_key_of_one_project_sees_its_notifications_and_delivers_none(store: SQLiteStore) -> None:
    sha = hashlib.sha256(b"secret").hexdigest()
    store.save_key(Key(id="k", name="k", sha256=sha, project="p", scopes=("read", "write", "admin")))
    store.add_notifications([notification("mine", project="p"), notification("other", project="q")])
    with Server(store) as server, HTTPStore(server.url, api_key="secret") as client:
        assert [one.notification.id for one in client.notifications()] == ["mine"]
        for call in (client.count_due_deliveries, lambda: client.due_deliveries("ops")):
            with pytest.raises(Forbidden):
                call()
        with pytest.raises(Forbidden):
            client.record_delivery("other", "ops", "delivered")
