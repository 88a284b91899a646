"""What a span says beside its run: feedback and content for other spans, kept with it, or told why not."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.making import child, run
from collector.otlp import altered, attribute, json_request, json_span, post, rejected, request, span
from spanwise.collector.dialects import Amendment, Draft, RawSpan, TranslatedSpan, make_side_record, read_span
from spanwise.collector.dialects.translation import DIALECTS
from spanwise.collector.ingest import Receiver, StoreSink, otlp_signals
from spanwise.collector.ingest.decode_pool import Offloader
from spanwise.collector.ingest.otlp_receiver import SignalRoute
from spanwise.collector.ingest.otlp_signals import TRACES, Request
from spanwise.collector.ingest.request_decoder import Limits, decode
from spanwise.collector.ingest.store_sink import BATCH_SIZE
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.stores.sqlite import SQLiteStore

SOME = json.dumps([{"name": "ok", "score": 1.0}])


def _one(draft: Draft, row: dict[str, Any]) -> Feedback | Amendment:
    trace_id = row.get("trace") or draft.span.trace_id
    if "outputs" in row:
        return Amendment(trace_id, row.get("span") or draft.span.span_id, {"outputs": row["outputs"]})
    target = Target(trace_id=trace_id, span_id=row.get("span", draft.span.span_id))
    return Feedback(target=target, key=row.get("name", ""), score=row.get("score"), created_ns=draft.span.end_ns)


def vendor(draft: Draft) -> None:
    """Says in one attribute what it has to say beside its run."""
    if "vendor" in draft.namespaces:
        draft.also += tuple([make_side_record(_one, draft, row) for row in json.loads(draft.attributes["vendor.says"])])


read_item = partial(otlp_signals.read_span_item, dialects=[*DIALECTS, vendor])
SIGNAL = altered(TRACES, read=read_item)


def saying(*rows: Any, name: str = "s") -> Any:
    return span(name, attributes=[attribute("vendor.says", json.dumps(rows))])


def sent(path: Path, body: bytes, *runs: Run) -> tuple[Any, Any, Metrics]:
    """The answer, the feedback and the metrics after one request."""
    metrics = Metrics()
    with SQLiteStore(path / "a.db") as store:
        store.append(runs)
        receiver = Receiver(store, metrics)
        answer = post(SignalRoute(receiver, SIGNAL), body)
        receiver.close()
        return answer, list(store.feedbacks()), metrics


def test_feedback_beside_a_span_is_kept_with_it(tmp_path):
    answer, feedback, metrics = sent(tmp_path, request(saying({"name": "ok", "score": 0.0})))
    assert (answer.status_code, answer.content) == (200, b"")
    assert [(one.key, one.score) for one in feedback] == [("ok", 0.0)]
    assert metrics.value("spanwise_beside_stored_total", signal="traces") == 1
    assert metrics.value("spanwise_stored_total", signal="traces") == 1


def test_in_json_it_is_the_same(tmp_path):
    says = {"key": "vendor.says", "value": {"stringValue": SOME}}
    body = json.dumps(json_request(json_span(attributes=[says]))).encode()
    found = decode(replace(TRACES.json, read=read_item), body, Limits())
    assert ([type(one) for one in found.items], [one.key for one in found.side_records]) == ([Run], ["ok"])


def test_a_faulty_one_costs_itself_and_is_told(tmp_path):
    body = request(saying({"name": "ok", "score": 1.0}, {"name": "none"}, {"score": 1.0}), span())
    answer, feedback, metrics = sent(tmp_path, body)
    count, reason = rejected(answer.content)
    assert (answer.status_code, count, [one.key for one in feedback]) == (200, 0, ["ok"])
    assert "side record of a span: the key of feedback must not be empty" in reason
    assert metrics.value("spanwise_beside_refused_total", signal="traces", reason="value") == 2
    assert metrics.value("spanwise_stored_total", signal="traces") == 2
    assert metrics.value("spanwise_refused_total") == 0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"name": "k" * 2001, "score": 1}, "2,001 characters"),
        ({"name": "k", "score": 1, "trace": "xyz"}, "trace id 'xyz' is not 16 bytes"),
        ({"name": "k", "score": 1, "span": "0" * 16}, "is not 8 bytes"),
        ({"outputs": 1, "trace": "f" * 31}, "is not 16 bytes"),
    ],
)
def test_what_no_store_should_have_is_told(tmp_path, row, reason):
    answer, feedback, _ = sent(tmp_path, request(saying(row)))
    assert (answer.status_code, rejected(answer.content)[0], feedback) == (200, 0, [])
    assert reason in rejected(answer.content)[1]


def test_an_amendment_beside_a_span_fills_in_its_sibling(tmp_path):
    root = run()
    sibling = child(root)
    body = request(saying({"outputs": "streamed", "trace": root.trace_id, "span": sibling.span_id}))
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([root, sibling])
        receiver = Receiver(store)
        assert post(SignalRoute(receiver, SIGNAL), body).content == b""
        receiver.close()
        assert store.trace(root.trace_id).runs[1].outputs == "streamed"


def test_a_key_of_one_project_speaks_of_no_other(tmp_path):
    theirs, mine = run(project="theirs"), run(project="mine")
    rows = [Feedback(target=Target(trace_id=one.trace_id), key="k", score=1.0) for one in (theirs, mine)]
    session = Feedback(target=Target(session_id="s"), key="k", score=1.0)
    their_session = Feedback(target=Target(session_id="s", project="theirs"), key="k", score=1.0)
    asked = Request(TRACES, TRACES.protobuf, b"", project="mine")
    beside = Offloader()
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([theirs])
        keep = StoreSink(store, beside).keep(asked, [mine, *rows, session, their_session])
        refusals = asyncio.run(keep)
        assert [type(refusal).__name__ for refusal in refusals] == ["SideRecordRefused", "SideRecordRefused"]
        assert {one.target for one in store.feedbacks()} == {
            Target(trace_id=mine.trace_id),
            Target(session_id="s", project="mine"),
        }
    beside.close()


def test_of_many_runs_feedback_goes_with_the_last(tmp_path):
    runs = [run() for _ in range(BATCH_SIZE)]
    row = Feedback(target=Target(trace_id=runs[0].trace_id), key="k", score=1.0)
    beside = Offloader()
    with SQLiteStore(tmp_path / "a.db") as store:
        asyncio.run(StoreSink(store, beside).keep(Request(TRACES, TRACES.protobuf, b""), [*runs, row]))
        assert (store.count()["spans"], len(store.feedbacks())) == (BATCH_SIZE, 1)
    beside.close()


def test_the_same_request_again_changes_nothing(tmp_path):
    body = request(saying({"name": "ok", "score": 1.0}))
    first = sent(tmp_path, body)[1]
    assert sent(tmp_path, body)[1] == first


def test_a_dialect_that_fails_after_it_has_spoken_has_said_nothing():
    def fails(draft: Draft) -> None:
        draft.also += (ValueError("x"),)
        raise KeyError("ours")

    told: list[str] = []
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s")
    assert read_span(raw, lambda name, _: told.append(name), [fails]).also == ()
    assert told == ["fails"]


def test_a_dialect_that_says_something_else_is_left_out():
    def wrong(draft: Draft) -> None:
        draft.also += ("text",)  # type: ignore[arg-type]

    told: list[Exception] = []
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s")
    assert read_span(raw, lambda _, error: told.append(error), [wrong]).also == ()
    assert "must be feedback or an amendment" in str(told[0])


rows = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=3) | st.just("k"),
        "score": st.floats() | st.none() | st.booleans(),
        "trace": st.text(max_size=33) | st.just("a" * 32),
        "span": st.text(max_size=17) | st.just("b" * 16),
        "outputs": st.text(max_size=3),
    },
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(rows, max_size=4))
def test_whatever_is_said_the_span_is_kept(given_rows):
    """Property: each row is feedback, an amendment or told; the run is there, and nothing raises."""
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", end_ns=5)
    raw.attributes = {"vendor.says": json.dumps(given_rows, allow_nan=True)}
    kept = read_item(raw, partial(pytest.fail))
    assert isinstance(kept, TranslatedSpan) == bool(given_rows)
    if isinstance(kept, TranslatedSpan):
        assert (len(kept.also), kept.run.name) == (len(given_rows), "s")
        assert all(isinstance(one, Feedback | Amendment | ValueError) for one in kept.also)
