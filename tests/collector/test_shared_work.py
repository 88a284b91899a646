"""Work that several collectors on one store divide by leases: feedback to other systems, notifications, sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from collector.making import run
from collector.outlets import Scripted
from collector.receivers import HTTPReceiver, notification
from collector.test_notifier import deliveries, hook, is_delivered, notifying
from polling import until
from spanwise.collector.forward import FeedbackForwarder, ForwardTarget, forwarder
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores import open_backends

pytestmark = pytest.mark.process


@pytest.fixture
def store(tmp_path: Path, empty_database: str) -> Iterator[Any]:
    """A store that other processes may use, too: its control records are on PostgreSQL."""
    with closing(open_backends(str(tmp_path / "traces.db"), empty_database)) as made:
        assert not made.is_exclusive
        yield made


@pytest.fixture
def forwarding(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scripted, list[FeedbackForwarder]]]:
    """Two collectors that send feedback to one target."""
    monkeypatch.setattr(forwarder, "POLL_INTERVAL", 0.02)
    with ExitStack() as stack:
        receiver = stack.enter_context(Scripted())
        senders = [FeedbackForwarder([ForwardTarget("t", receiver.url)]) for _ in range(2)]
        for sender in senders:
            sender.begin(store, Metrics())
            stack.callback(sender.close)
        yield receiver, senders


def scored(store: Any, *keys: str) -> None:
    root = run()
    store.append([root], [Feedback(target=Target(trace_id=root.trace_id), key=key, score=1.0) for key in keys])


def test_of_two_collectors_one_sends_feedback(store: Any, forwarding: tuple[Scripted, list[FeedbackForwarder]]) -> None:
    receiver, _ = forwarding
    for number in range(20):
        scored(store, f"a{number}", f"b{number}")
    until(lambda: store.outlets()[0].waiting == 0)
    assert Counter(receiver.keys) == Counter([*(f"a{n}" for n in range(20)), *(f"b{n}" for n in range(20))])
    assert [lease.name for lease in store.leases()] == ["feedback-to/t"]


def test_when_the_sending_collector_stops_the_other_one_continues(
    store: Any, forwarding: tuple[Scripted, list[FeedbackForwarder]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "RENEW_S", 0.05)
    receiver, senders = forwarding
    scored(store, "first")
    until(lambda: receiver.keys == ["first"])
    [lease] = store.leases()
    first = next(one for one in senders if one._senders[0]._lease._holder == lease.holder)  # type: ignore[union-attr]
    first.close()
    scored(store, "second")
    until(lambda: receiver.keys == ["first", "second"])


def test_a_collector_that_starts_does_not_take_over_the_notifications_of_another(store: Any) -> None:
    with HTTPReceiver() as receiver, notifying(store, hook(receiver)):
        store.add_notifications([notification("n1")])
        until(lambda: is_delivered(store))
        [lease] = store.leases()
        with notifying(store, hook(receiver)):
            store.add_notifications([notification("n2"), notification("n3")])
            until(lambda: len(deliveries(store)) == 3 and is_delivered(store))
            assert [one.holder for one in store.leases()] == [lease.holder]
    assert sorted(receiver.ids) == ["n1", "n2", "n3"]


def test_the_shared_secret_is_the_same_for_every_process(store: Any, empty_database: str, tmp_path: Path) -> None:
    with closing(open_backends(str(tmp_path / "others.db"), empty_database)) as other:
        assert store.shared_secret() == other.shared_secret()
    assert len(store.shared_secret()) == 32
