"""The notifier: at least once and under one id, in order, past hanging targets, kills and full stores."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.receivers import HTTPReceiver, SMTPReceiver, notification, reply
from integration.serving import Process
from polling import until
from spanwise.collector.errors import Unavailable
from spanwise.collector.notifications import (
    HTTPTarget,
    NotificationConfig,
    Notifier,
    RetrySettings,
    load_targets,
    parse_allowed,
)
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Delivery
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

URL = "http://127.0.0.1:4318"
FAST = RetrySettings(first_s=0.05, longest_s=0.1)
LOOPBACK = parse_allowed(["127.0.0.0/8"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def hook(receiver: HTTPReceiver, name: str = "ops", timeout_s: float = 30.0) -> HTTPTarget:
    return HTTPTarget(name=name, kind="webhook", url=receiver.url, allowed=LOOPBACK, timeout_s=timeout_s)


@contextmanager
def notifying(store: Any, *targets: HTTPTarget, retries: RetrySettings = FAST) -> Iterator[Metrics]:
    notifier = Notifier(NotificationConfig({one.name: one for one in targets}), retries=retries, poll_s=0.02)
    metrics = Metrics()
    notifier.begin(store, metrics, URL)
    try:
        yield metrics
    finally:
        notifier.close()


def deliveries(store: SQLiteStore) -> dict[tuple[str, str], Delivery]:
    return {(one.notification, one.target): one for row in store.notifications(limit=1000) for one in row.deliveries}


def is_delivered(store: SQLiteStore) -> bool:
    return all(one.delivered_ns is not None for one in deliveries(store).values())


def test_each_notification_reaches_each_of_its_targets_once(store: SQLiteStore) -> None:
    with HTTPReceiver() as ops, HTTPReceiver() as other, notifying(store, hook(ops), hook(other, "other")) as metrics:
        store.add_notifications([notification("n1", targets=("ops", "other")), notification("n2", group="g")])
        until(lambda: is_delivered(store))
        assert (sorted(ops.ids), other.ids) == (["n1", "n2"], ["n1"])
        assert metrics.value("spanwise_notifications_delivered_total", target="ops") == 2


def test_links_lead_to_the_server_or_to_its_public_url(store: SQLiteStore) -> None:
    with HTTPReceiver() as receiver:
        for public_url, expected in ((None, f"{URL}/x"), ("https://s.example.com/a/", "https://s.example.com/a/x")):
            notifier = Notifier(NotificationConfig({"ops": hook(receiver)}, public_url), poll_s=0.02)
            notifier.begin(store, Metrics(), URL)
            store.add_notifications([notification(f"n-{public_url}", links={"X": "/x"})])
            until(lambda: is_delivered(store))
            notifier.close()
            assert f'"X":"{expected}"'.encode() in receiver.requests[-1].body


def test_a_target_that_fails_for_a_while_gets_every_change_in_order_under_its_id(store: SQLiteStore) -> None:
    with HTTPReceiver(reply(503)) as receiver, notifying(store, hook(receiver)):
        store.add_notifications([notification(f"n{n}") for n in range(5)])
        until(lambda: len(receiver.requests) >= 4)
        assert set(receiver.ids) == {"n0"}  # the later ones wait for the first
        assert deliveries(store)["n0", "ops"].error == "http 503"
        receiver.requests.clear()
        receiver.answer = reply(200)
        until(lambda: is_delivered(store))
        assert list(dict.fromkeys(receiver.ids)) == [f"n{n}" for n in range(5)]
        assert deliveries(store)["n0", "ops"].error is None


def test_a_hanging_target_holds_up_no_other(store: SQLiteStore) -> None:
    released = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        released.wait(60)
        reply(200)(handler)

    with HTTPReceiver(hang) as hanging, HTTPReceiver() as ops, notifying(store, hook(hanging, "slow"), hook(ops)):
        store.add_notifications([notification(f"n{n}", targets=("slow", "ops"), group=str(n)) for n in range(5)])
        until(lambda: len(ops.requests) == 5)
        assert deliveries(store)["n4", "slow"].delivered_ns is None
        released.set()
        until(lambda: is_delivered(store))
        assert Counter(hanging.ids) == {f"n{n}": 1 for n in range(5)}


def test_a_delivery_is_given_up_after_its_time_and_the_reason_stays(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    retries = RetrySettings(first_s=0.02, longest_s=0.02, give_up_s=0.2, min_attempts=3)
    with HTTPReceiver(reply(500, b"no room")) as receiver, notifying(store, hook(receiver), retries=retries) as metrics:
        store.add_notifications([notification()])
        until(lambda: deliveries(store)["n1", "ops"].gave_up_ns)
        given_up = deliveries(store)["n1", "ops"]
        assert (given_up.error, given_up.attempts >= 3, given_up.next_ns) == ("http 500: no room", True, None)
        count = len(receiver.requests)
        store.add_notifications([notification("n2")])  # the next change does not wait for it
        until(lambda: "n2" in receiver.ids)
        assert receiver.ids[:count] == ["n1"] * count
        until(lambda: metrics.value("spanwise_notifications_given_up_total", target="ops"))
    assert "could not be delivered to 'ops' and is given up: http 500: no room" in caplog.text


def test_a_clock_that_jumps_forward_gives_nothing_up_at_once(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HTTPReceiver(reply(503)) as receiver, notifying(store, hook(receiver)):
        store.add_notifications([notification()])
        until(lambda: len(receiver.requests) == 1)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + 30 * 86_400 * 10**9)
        until(lambda: len(receiver.requests) >= 5)
        assert deliveries(store)["n1", "ops"].gave_up_ns is None
        receiver.answer = reply(200)
        until(lambda: is_delivered(store))


def test_a_target_that_is_not_configured_is_visible_and_delivered_once_it_is(store: SQLiteStore) -> None:
    store.add_notifications([notification(targets=("pager", "ops"))])
    with HTTPReceiver() as receiver:
        with notifying(store, hook(receiver)):
            until(lambda: deliveries(store)["n1", "pager"].attempts)
            until(lambda: deliveries(store)["n1", "ops"].delivered_ns)
            assert "target 'pager' is not configured on this server" in (deliveries(store)["n1", "pager"].error or "")
        with notifying(store, hook(receiver), hook(receiver, "pager")):
            until(lambda: is_delivered(store))
    assert receiver.ids == ["n1", "n1"]


def test_the_log_is_a_target_that_needs_no_configuration(store: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
    store.add_notifications([notification(alert="a\nb\x1b[2J", headline="It fell.\r\nForged line", targets=("log",))])
    with notifying(store):
        until(lambda: is_delivered(store))
    [record] = [one for one in caplog.records if one.levelno == logging.WARNING]
    line = record.getMessage()
    assert "[FIRING] a\\nb\\x1b[2J (project default): It fell.\\r\\nForged line (notification n1)" in line
    assert line.isprintable()


def test_of_two_notifiers_on_one_store_one_sends(store: SQLiteStore) -> None:
    with HTTPReceiver() as receiver, notifying(store, hook(receiver)), notifying(store, hook(receiver)):
        store.add_notifications([notification(f"n{n}", group=str(n)) for n in range(20)])
        until(lambda: is_delivered(store))
        assert Counter(receiver.ids) == {f"n{n}": 1 for n in range(20)}


def test_when_the_first_notifier_ends_the_second_goes_on(store: SQLiteStore) -> None:
    with HTTPReceiver() as receiver:
        with notifying(store, hook(receiver)):
            store.add_notifications([notification("n1")])
            until(lambda: is_delivered(store))
        with notifying(store, hook(receiver)):
            store.add_notifications([notification("n2")])
            until(lambda: is_delivered(store))
    assert (receiver.ids, store.leases()) == (["n1", "n2"], [])


class FullStore:
    """A store that takes no writes while it is full."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store, self.is_full = store, True

    def __getattr__(self, name: str) -> Any:
        if self.is_full and name in ("record_delivery", "acquire", "release"):

            def refuse(*_: Any, **__: Any) -> Any:
                raise Unavailable("the disk is full")

            return refuse
        return getattr(self._store, name)


def test_on_a_full_store_a_delivered_notification_is_not_sent_again_and_a_failed_one_is(store: SQLiteStore) -> None:
    full = FullStore(store)
    store.add_notifications([notification("n1", group="a"), notification("n2", group="b", targets=("bad",))])
    with HTTPReceiver() as ops, HTTPReceiver(reply(503)) as bad, notifying(full, hook(ops), hook(bad, "bad")):
        until(lambda: len(bad.requests) >= 4)
        assert ops.ids == ["n1"]
        bad.answer = reply(200)
        until(lambda: len(bad.requests) >= 5)
        full.is_full = False
        until(lambda: is_delivered(store))
        assert ops.ids == ["n1"]


def test_the_server_shows_what_it_sends_in_its_metrics(store: SQLiteStore) -> None:
    with HTTPReceiver() as receiver:
        notifier = Notifier(NotificationConfig({"ops": hook(receiver)}), poll_s=0.02)
        with Server(store, notifier=notifier) as server:
            store.add_notifications([notification()])
            until(lambda: is_delivered(store))
            wanted = 'spanwise_notifications_delivered_total{target="ops"} 1'
            until(lambda: wanted in httpx.get(f"{server.url}/metrics").text)


# Processes that are killed


def write_targets(folder: Path, receiver: HTTPReceiver, mail: SMTPReceiver | None = None) -> Path:
    text = f'[targets.ops]\nkind = "webhook"\nurl = "{receiver.url}"\nallow = ["127.0.0.1"]\n'
    if mail is not None:
        text += (
            f'[targets.mail]\nkind = "email"\nhost = "127.0.0.1"\nport = {mail.port}\nsecurity = "none"\n'
            'allow = ["127.0.0.1"]\nfrom = "spanwise@x.test"\nto = ["ops@x.test"]\n'
        )
    (folder / "targets.toml").write_text(text)
    load_targets(folder / "targets.toml", {})
    return folder / "targets.toml"


@pytest.mark.process
def test_what_was_sent_but_not_recorded_before_a_kill_is_sent_again_under_its_id(tmp_path: Path) -> None:
    file, released = tmp_path / "spanwise.db", threading.Event()

    def wait(handler: BaseHTTPRequestHandler) -> None:
        released.wait(60)
        reply(200)(handler)

    with SQLiteStore(file) as store:
        store.add_notifications([notification()])
    with HTTPReceiver(wait) as receiver:
        options = ["--no-grpc", "--targets", str(write_targets(tmp_path, receiver))]
        with Process(file, options=options) as server:
            until(lambda: receiver.requests)
            server.kill()
        released.set()
        with Process(file, options=options) as server:
            until(lambda: len(receiver.requests) == 2)
            assert "sends notifications to ops" in server.stop()
        assert receiver.ids == ["n1", "n1"]
    with SQLiteStore(file) as store:
        assert is_delivered(store)


@pytest.mark.slow
@pytest.mark.long
def test_after_twenty_kills_each_change_has_arrived_under_one_id(tmp_path: Path) -> None:
    file, seed = tmp_path / "spanwise.db", random.randrange(10**6)
    draw, ids = random.Random(seed), [f"n{n}" for n in range(60)]
    with SQLiteStore(file) as store:
        store.add_notifications(
            [notification(id, group=str(n % 7), targets=("ops", "mail")) for n, id in enumerate(ids)]
        )
    failing = iter(lambda: draw.random() < 0.2, None)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(draw.random() / 20)
        reply(503 if next(failing) else 200)(handler)

    with HTTPReceiver(answer) as receiver, SMTPReceiver() as mail:
        options = ["--no-grpc", "--targets", str(write_targets(tmp_path, receiver, mail))]
        for _ in range(20):
            with Process(file, options=options) as server:
                time.sleep(draw.random() * 1.5)  # the moment of the kill
                server.kill()
        with Process(file, options=options) as server:
            until(lambda: not server_due(server), 300)
            server.stop()
        mailed = Counter(raw.split(b"Idempotency-Key: ")[1].split(b"\r\n")[0].decode() for raw in mail.messages)
        assert set(receiver.ids) == set(mailed) == set(ids), seed
        assert sum(mailed.values()) <= len(ids) + 21, seed  # a kill repeats at most the mail that was on its way
    with SQLiteStore(file) as store:
        assert is_delivered(store)
        assert store.check(deep=True) == []


def server_due(server: Process) -> int:
    page = httpx.get(f"{server.url}/api/notifications?limit=1000", timeout=60).json()
    rows = [one for row in page["items"] for one in row["deliveries"]]
    return sum(one["delivered_ns"] is None for one in rows)
