"""Feedback sent on to other collectors: all of it, once each there, from where it stood, past whatever fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from collector.making import run
from collector.outlets import Scripted, attributes
from polling import until
from spanwise.collector.dialects import RawLog, read_feedback, read_via, write_feedback_attributes
from spanwise.collector.errors import Refused
from spanwise.collector.forward import FeedbackForwarder, ForwardTarget, forwarder, parse_targets
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Feedback
from spanwise.collector.records import Target as Of
from spanwise.collector.server import Server
from spanwise.collector.stores import FeedbackSource
from spanwise.collector.stores.backends import TargetFeedback
from spanwise.collector.stores.sqlite import SQLiteStore

ROOT = run(project="shop", environment="prod")
ON = Of(trace_id=ROOT.trace_id)
SPAN = Of(trace_id=ROOT.trace_id, span_id=ROOT.span_id)
ALL = [
    Feedback(target=SPAN, key="zero", score=0.0, comment="why", source="model", evaluator="judge", version="3"),
    Feedback(target=ON, key="thumb", score=True, source="human", author="ann", metadata={"at": ["a", 1]}),
    Feedback(target=ON, key="tone", label="polite"),
    Feedback(target=ON, key="broken", outcome="error", error="TimeoutError: after 30 s", evaluator="slow"),
    Feedback(target=ON, key="left", outcome="skip", comment="no documents"),
    Feedback(target=replace(SPAN, document=2), key="relevant", score=False),
    Feedback(target=ON, key="pii", score=1.0, rule="no-pii", evaluator="pii"),
    Feedback(target=Of(session_id="s-1"), key="solved", score=1.0),
    Feedback(target=Of(session_id="s-1", project="shop"), key="solved_in_project", score=0.5),
    Feedback(target=Of(experiment_id="e-1"), key="recall", score=0.5),
]


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "POLL_INTERVAL", 0.05)


@pytest.fixture
def open_(tmp_path: Path) -> Iterator[Callable[..., SQLiteStore]]:
    with ExitStack() as stack:
        yield lambda name="a": stack.enter_context(SQLiteStore(tmp_path / f"{name}.db"))


def sending(store: SQLiteStore, *urls: str) -> Server:
    return Server(
        store, feedback_to=FeedbackForwarder([ForwardTarget(f"t{number}", url) for number, url in enumerate(urls)])
    )


def rows(store: SQLiteStore) -> list[Feedback]:
    """What is stored, without what each store has of its own."""
    found = (replace(one, metadata={**one.metadata}) for one in store.feedbacks())
    for one in (made := list(found)):
        one.metadata.pop("spanwise.via", None)  # type: ignore[attr-defined]
    return sorted(made, key=lambda one: one.key)


def idle(store: SQLiteStore) -> bool:
    return [one.waiting for one in store.outlets()] == [0] * len(store.outlets())


# To a collector of ours


@pytest.mark.process
def test_a_second_collector_has_all_of_it_as_it_was(open_):
    store, other = open_("a"), open_("b")
    with Server(other) as receiver, sending(store, receiver.url):
        store.append([ROOT], ALL)
        until(lambda: len(rows(other)) == len(ALL))
        until(lambda: idle(store))
    assert rows(other) == rows(store) == sorted(ALL, key=lambda one: one.key)
    assert {tuple(read_via(one)) for one in other.feedbacks()} == {(store.identity(),)}
    assert store.outlets()[0].sent == len(ALL)


def test_what_changes_is_sent_again_under_its_id_and_the_same_again_is_not(open_):
    store = open_()
    first = Feedback(target=ON, key="k", score=0.0, author="ann")
    store.add_feedback([first])
    (number,) = [one.number for one in store.feedback_after(0, 10)]
    store.add_feedback([first])
    assert [one.number for one in store.feedback_after(0, 10)] == [number]
    store.change_feedback({first.id: {"score": 1.0}})
    ((said, again, *_),) = store.feedback_after(number, 10)
    assert (said > number, again.id, again.score) == (True, first.id, 1.0)


@pytest.mark.process
def test_after_a_restart_it_goes_on_where_it_stood(tmp_path):
    with Scripted() as other:
        for keys in (["a", "b"], ["c"]):
            with SQLiteStore(tmp_path / "a.db") as store:
                with sending(store, other.url):
                    store.add_feedback([Feedback(target=ON, key=key, score=1.0) for key in keys])
                    until(lambda: idle(store))
                store.add_feedback([Feedback(target=ON, key=f"while away {keys[0]}", score=1.0)])
        assert other.keys == ["a", "b", "while away a", "c"]


@pytest.mark.process
def test_it_waits_in_the_store_while_nobody_listens(open_):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    store, other = open_("a"), open_("b")
    with sending(store, f"http://127.0.0.1:{port}") as server:
        store.add_feedback(ALL)
        until(lambda: store.outlets()[0].error)
        assert store.outlets()[0].waiting == len(ALL)
        text = httpx.get(f"{server.url}/metrics").text
        assert f'spanwise_feedback_out_waiting{{target="t0"}} {float(len(ALL))}' in text
        assert 'spanwise_feedback_out_failures_total{target="t0",reason="ConnectError"}' in text
        with Server(other, port=port):
            until(lambda: len(rows(other)) == len(ALL))
            until(lambda: idle(store))
    assert store.outlets()[0].error is None


@pytest.mark.process
def test_two_that_send_to_each_other_stop(open_):
    one, two = open_("a"), open_("b")
    with Server(one) as first, Server(two) as second:
        outs = [FeedbackForwarder([ForwardTarget("other", url)]) for url in (second.url, first.url)]
        for out, store in zip(outs, (one, two), strict=True):
            out.begin(store, Metrics())
        one.add_feedback([ALL[0], ALL[6]])
        two.add_feedback([ALL[1]])
        until(lambda: len(rows(one)) == len(rows(two)) == 3 and idle(one) and idle(two))
        before = [store.outlets()[0].sent for store in (one, two)]
        two.add_feedback([replace(ALL[1], comment="more")])
        until(lambda: any(row.comment == "more" for row in one.feedbacks()) and idle(one) and idle(two))
        for out in outs:
            out.close()
    assert before == [3, 3]
    assert {row.key: tuple(read_via(row)) for row in one.feedbacks()}["zero"] == ()


@pytest.mark.process
def test_what_was_sent_and_not_noted_goes_out_again_and_is_there_once(open_):
    store, other = open_("a"), open_("b")
    with Server(other) as receiver:
        lost = FeedbackForwarder([ForwardTarget("t0", receiver.url)])
        lost.begin(Unnoted(store), Metrics())
        store.add_feedback(ALL)
        until(lambda: len(rows(other)) == len(ALL))
        lost.close()
        assert store.outlets()[0].waiting == len(ALL)
        with sending(store, receiver.url):
            until(lambda: idle(store))
    assert rows(other) == rows(store)


class Unnoted:
    """A store that is killed whenever it is to note what was sent."""

    def __init__(self, store: SQLiteStore) -> None:
        self.identity, self.open_outlet, self.feedback_after = store.identity, store.open_outlet, store.feedback_after
        self.count_feedback_after, self.find_stored_feedback = store.count_feedback_after, store.find_stored_feedback

    def move_outlet(self, name: str, cursor: int, sent: int, dropped: int, error: str | None = None) -> None:
        raise OSError("killed")


def test_new_targets_begin_with_what_is_said_from_then_on(open_):
    store = open_()
    store.add_feedback(ALL[:2])
    assert store.open_outlet("t", "http://a").waiting == 0
    store.add_feedback(ALL[2:])
    assert store.open_outlet("t", "http://a").waiting == len(ALL) - 2
    assert store.open_outlet("t", "http://b").waiting == 0


# To any endpoint


@pytest.mark.process
def test_the_bytes_are_the_fields_events(open_):
    store = open_()
    with Scripted() as other, sending(store, other.url):
        store.append([ROOT], ALL)
        until(lambda: idle(store))
    path, headers, _ = other.requests[0]
    assert (path, headers["content-type"]) == ("/v1/logs", "application/x-protobuf")
    by_key = {attributes(record)["gen_ai.evaluation.name"]: record for record in other.taken}
    zero = by_key["zero"]
    said = attributes(zero)
    assert (zero.event_name, zero.trace_id.hex(), zero.span_id.hex()) == (
        "gen_ai.evaluation.result",
        ROOT.trace_id,
        ROOT.span_id,
    )
    assert (said["gen_ai.evaluation.score.value"], said["gen_ai.evaluation.explanation"]) == (0.0, "why")
    assert said["spanwise.feedback.id"] == ALL[0].id
    assert attributes(by_key["tone"])["gen_ai.evaluation.score.label"] == "polite"
    broken = attributes(by_key["broken"])
    assert (broken["error.type"], "gen_ai.evaluation.score.value" in broken) == ("TimeoutError", False)
    groups = [
        group for _, _, body in other.requests for group in ExportLogsServiceRequest.FromString(body).resource_logs
    ]
    projects = {one.value.string_value for group in groups for one in group.resource.attributes}
    assert {"shop", "prod"} <= projects


@pytest.mark.process
def test_headers_come_from_the_environment_and_are_shown_nowhere(open_):
    store = open_()
    with Scripted() as other:
        (target,) = parse_targets(
            [f"hub={other.url}"], {"SPANWISE_FORWARD_HEADERS_HUB": "authorization=Bearer%20secret"}
        )
        with Server(store, feedback_to=FeedbackForwarder([target])) as server:
            store.add_feedback(ALL[:1])
            until(lambda: idle(store))
            assert "secret" not in httpx.get(f"{server.url}/metrics").text + repr(store.outlets()) + repr(target)
    assert other.requests[0][1]["authorization"] == "Bearer secret"


@pytest.mark.process
@pytest.mark.parametrize("status", [400, 413])
def test_one_that_is_refused_costs_itself(open_, status):
    store = open_()

    def refuses(records: list[Any]) -> int:
        return status if any("tone" in attributes(one).values() for one in records) else 200

    with Scripted(refuses) as other, sending(store, other.url):
        store.add_feedback(ALL)
        until(lambda: idle(store))
    assert sorted(other.keys) == sorted(one.key for one in ALL if one.key != "tone")
    assert (store.outlets()[0].sent, store.outlets()[0].dropped) == (len(ALL) - 1, 1)


@pytest.mark.process
def test_what_came_through_many_collectors_goes_no_further(open_):
    store = open_()
    via = [f"c{number}" for number in range(8)]
    with Scripted() as other, sending(store, other.url):
        store.add_feedback([replace(ALL[0], metadata={"spanwise.via": via}), ALL[1]])
        until(lambda: idle(store))
    assert other.keys == ["thumb"]


def test_a_large_one_does_not_keep_the_others_in_memory(open_):
    store = open_()
    store.add_feedback([replace(ALL[0], key=f"k{number}", comment="x" * 600_000, id="") for number in range(4)])
    assert [
        len(store.feedback_after(0, 10)),
        len(store.feedback_after(store.feedback_after(0, 10)[-1].number, 10)),
    ] == [1, 1]


def test_a_server_does_not_send_to_itself(open_):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(Refused, match=r"--feedback-to .* is the address of this server"):
        Server(open_(), port=port, feedback_to=FeedbackForwarder([ForwardTarget("t", f"http://localhost:{port}")]))


def test_deleted_feedback_is_not_sent(open_):
    store = open_()
    store.open_outlet("t", "http://a")
    store.append([ROOT], ALL[:2])
    store.delete(trace_ids=(ROOT.trace_id,))
    assert list(store.feedback_after(0, 10)) == []


# The words


texts = st.text(max_size=5)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.fixed_dictionaries({"score": finite | st.booleans()}, optional={"label": texts.filter(bool)})
values |= st.fixed_dictionaries({"label": texts.filter(bool)})
values |= st.fixed_dictionaries({"outcome": st.just("error"), "error": st.text(min_size=1, max_size=9)})
values |= st.fixed_dictionaries({"outcome": st.just("skip"), "comment": texts})


@pytest.mark.process
@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(
        [
            SPAN,
            ON,
            replace(SPAN, document=1),
            Of(session_id="s"),
            Of(session_id="s", project="p"),
            Of(experiment_id="e"),
        ]
    ),
    values,
    st.fixed_dictionaries(
        {"key": st.text(min_size=1, max_size=5), "source": st.sampled_from(["code", "model", "human"])},
        optional={"author": texts, "evaluator": texts, "version": texts, "rule": texts}
        | {"metadata": st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=2)},
    ),
)
def test_what_is_written_is_read_as_it_was(target, value, fields):
    one = Feedback(target=target, created_ns=5, **{**fields, **value})
    assert (
        read_feedback(
            RawLog(ROOT.trace_id, target.span_id, 5, write_feedback_attributes(one), "gen_ai.evaluation.result")
        )
        == one
    )


def test_a_store_that_numbers_feedback_says_so(open_):
    assert isinstance(open_(), FeedbackSource)


def test_what_a_via_may_not_be_is_nothing():
    for via in (5, "x", [5], ["x" * 65], None, {"a": 1}):
        log = RawLog("1" * 32, None, 1, {**write_feedback_attributes(ALL[2]), "spanwise.feedback.via": via})  # type: ignore[dict-item]
        assert "spanwise.via" not in read_feedback(log).metadata


def test_outlets_are_shown_over_http(open_):
    store = open_()
    store.open_outlet("hub", "http://hub")
    with Server(store) as server:
        (shown,) = json.loads(httpx.get(f"{server.url}/api/outlets").content)
    assert (shown["name"], shown["url"], shown["waiting"]) == ("hub", "http://hub", 0)


@pytest.mark.process
def test_one_on_which_a_target_fails_again_and_again_blocks_nobody(open_):
    store = open_()

    def fails(records: list[Any]) -> int:
        return 500 if any("tone" in attributes(one).values() for one in records) else 200

    out = FeedbackForwarder([ForwardTarget("t", "")], longest_pause=0.01)
    with Scripted(fails) as other:
        out.targets = (ForwardTarget("t", other.url),)
        out.begin(store, Metrics())
        store.add_feedback(ALL)
        until(lambda: idle(store))
        out.close()
    assert sorted(set(other.keys)) == sorted(one.key for one in ALL if one.key != "tone")
    assert store.outlets()[0].dropped == 1


@pytest.mark.process
def test_a_target_that_fails_on_everything_loses_nothing(open_):
    store = open_()
    with Scripted(lambda _: 500) as other:
        out = FeedbackForwarder([ForwardTarget("t", other.url)], longest_pause=0.01)
        out.begin(store, Metrics())
        store.add_feedback(ALL)
        until(lambda: len(other.requests) > 40)
        assert (store.outlets()[0].waiting, store.outlets()[0].dropped) == (len(ALL), 0)
        other.status = lambda _: 200
        until(lambda: idle(store))
        out.close()
    assert sorted(set(other.keys)) == sorted(one.key for one in ALL)


def test_what_a_rule_said_is_among_it(open_):
    store = open_()
    store.append([ROOT])
    said = TargetFeedback("r", ON, 1, ["judge"], [Feedback(target=ON, key="k", score=1.0, evaluator="judge")])
    store.replace_rule_feedback([said])
    ((_, row, project, environment),) = store.feedback_after(0, 10)
    assert (row.rule, row.claim, project, environment) == ("r", 1, "shop", "prod")
    store.replace_rule_feedback([said._replace(claim=2, feedback=[])])
    assert list(store.feedback_after(0, 10)) == []


def test_what_was_said_is_put_in_order_only_where_it_is_sent_on(open_: Callable[..., SQLiteStore]) -> None:
    store = open_()

    def indexes() -> int:
        with store._traces._file.read() as reader:
            return int(
                reader.db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'feedback_as_said'").fetchone()[0]
            )

    before = indexes()
    store.open_outlet("a", "http://127.0.0.1:1")
    assert (before, indexes()) == (0, 1)
