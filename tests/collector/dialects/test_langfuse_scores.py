"""Langfuse's scores, from its SDKs' own bytes and by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.making import run
from fixtures.dialects.capture import replay
from looped_cases import loop_over
from spanwise.collector.dialects import read_langfuse_score
from spanwise.collector.records import Feedback, Key, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SENT = Path(__file__).parents[2] / "fixtures" / "dialects" / "langfuse_scores"
TRACE, SPAN = "0123456789abcdef0123456789abcdef", "fedcba9876543210"
SEEDED = sha256(b"order-17").hexdigest()[:32]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as made:
        yield made


@pytest.fixture
def http(store: SQLiteStore) -> Iterator[httpx.Client]:
    with Server(store) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def sent(store: SQLiteStore, version: int) -> tuple[dict[str, Feedback], list[tuple[int, Any]]]:
    with Server(store) as server:
        answers = replay(SENT / f"scores{version}.jsonl.gz", server.url)
    return {one.key: one for one in store.feedbacks()}, [(status, json.loads(body)) for status, body in answers]


@pytest.mark.parametrize("version", [2, 3, 5])
def test_scores_of_every_sdk_are_feedback(store, version):
    found, _ = sent(store, version)
    assert (found["zero"].score, found["zero"].comment, found["zero"].target) == (
        0.0,
        "not at all",
        Target(trace_id=TRACE),
    )
    assert (found["helpful"].score, found["helpful"].target) == (True, Target(trace_id=TRACE, span_id=SPAN))
    assert isinstance(found["helpful"].score, bool)
    assert (found["tone"].score, found["tone"].label) == (None, "friendly")
    assert {one.source for one in found.values()} == {"code"}


@pytest.mark.process
@pytest.mark.parametrize("version", [2, 3, 5])
def test_an_id_that_is_no_trace_id_becomes_one_as_the_sdk_makes_it(store, version):
    legacy = sent(store, version)[0]["legacy"]
    assert (legacy.target.trace_id, legacy.metadata["langfuse.trace_id"]) == (SEEDED, "order-17")


@pytest.mark.parametrize("version", [3, 5])
def test_sessions_metadata_and_time_are_kept(store, version):
    found, _ = sent(store, version)
    assert (found["session"].target, found["noted"].metadata) == (Target(session_id="s-1"), {"why": "it asked twice"})
    assert found["zero"].created_ns < found["noted"].created_ns


def test_texts_and_corrections_are_labels_and_comments(store):
    found, _ = sent(store, 5)
    assert (found["output"].label, found["output"].comment) == ("correction", "Within two days.")
    assert found["words"].label == "could be shorter"


@pytest.mark.process
def test_the_sdks_are_answered_as_they_read_it(tmp_path):
    answers = {}
    for version in (2, 3, 5):
        with SQLiteStore(tmp_path / f"{version}.db") as store:
            ((status, answer),) = sent(store, version)[1]
            answers[version] = (status, len(answer.get("successes", ())), len(answer.get("errors", ())))
    assert answers == {2: (207, 4, 1), 3: (207, 6, 0), 5: (202, 0, 0)}


@pytest.mark.process
def test_the_same_batch_again_is_stored_once(store):
    first, _ = sent(store, 3)
    assert sent(store, 3)[0] == first


def test_a_score_before_its_trace_shows_once_that_is_there(store):
    sent(store, 5)
    store.append([run(trace_id=TRACE, span_id=SPAN)])
    assert {one.key for one in store.trace(TRACE).feedback} >= {"zero", "helpful", "tone", "noted"}


def test_other_events_are_refused_one_by_one_and_told_where_spans_go(http, store):
    batch = [{"id": "e1", "type": "span-create", "body": {}}, {"id": "e2", "type": "score-create", "body": 5}, {}]
    answer = http.post("/api/public/ingestion", json={"batch": batch})
    errors = answer.json()["errors"]
    assert (answer.status_code, answer.json()["successes"], [one["id"] for one in errors]) == (
        207,
        [],
        ["e1", "e2", ""],
    )
    assert "send spans by OTLP" in errors[0]["message"]


def test_one_score_is_answered_with_its_id(http, store):
    answer = http.post("/api/public/scores", json={"id": "x", "traceId": TRACE, "name": "k", "value": 1})
    assert (answer.status_code, answer.json()) == (200, {"id": "x"})
    refused = http.post("/api/public/scores", json={"traceId": TRACE, "name": "k", "value": None})
    assert (refused.status_code, "not a valid value of dataType NUMERIC" in refused.json()["message"]) == (400, True)


@pytest.mark.process
def test_of_a_list_the_good_ones_are_kept_and_the_others_told(http, store):
    scores = [{"traceId": TRACE, "name": "k", "value": 1}, {"traceId": TRACE, "value": 1}, {"name": "k", "value": 1}]
    answer = http.post("/api/public/scores", json=scores)
    told = answer.json()
    assert (answer.status_code, told["accepted"], told["rejected"]) == (207, 1, 2)
    assert ("name of a score must be" in told["errors"][0]["message"], len(list(store.feedbacks()))) == (True, 1)


@pytest.mark.process
def test_without_an_id_each_is_another(http, store):
    for value in (0, 1):
        http.post("/api/public/scores", json=[{"traceId": TRACE, "name": "k", "value": value}])
    assert sorted(one.score or 0.0 for one in store.feedbacks()) == [0.0, 1.0]


@pytest.mark.process
def test_an_id_of_langfuse_never_overwrites_feedback_of_ours(http, store):
    ours = store.feedback(TRACE, "k", 1.0, author="ann")
    http.post("/api/public/scores", json=[{"id": ours.id, "traceId": TRACE, "name": "k", "value": 0}])
    assert {(one.author, one.score) for one in store.feedbacks()} == {("ann", 1.0), (None, 0.0)}


@pytest.mark.process
def test_what_is_none_of_it_is_refused(http):
    bodies = [b"", b"[", b"5", b"[5]", b'{"batch": 5}', b"null", b'{"value": 1e999}']
    headers = {"content-type": "application/json"}
    for path in ("scores", "ingestion"):
        answers = [http.post(f"/api/public/{path}", content=body, headers=headers) for body in bodies]
        assert {answer.status_code for answer in answers} == {400}


def test_a_key_of_a_project_gives_scores_to_its_own_traces_alone(store):
    theirs = run(project="theirs")
    store.append([theirs])
    for secret, fields in {"p": {"project": "p", "scopes": ("ingest",)}, "r": {"scopes": ("read",)}}.items():
        store.save_key(Key(id=secret, name=secret, sha256=sha256(secret.encode()).hexdigest(), **fields))
    scores = [{"id": id, "traceId": id, "name": "k", "value": 1} for id in (theirs.trace_id, TRACE)]
    with Server(store, host="0.0.0.0", api_key="master") as server:
        url = f"{server.url}/api/public/scores"
        answers = [httpx.post(url, json=scores, auth=("pk", key)) for key in "prx"]
        alone = httpx.post(url, json=scores[0], auth=("pk", "p"))
    assert [answer.status_code for answer in (*answers, alone)] == [207, 403, 401, 403]
    assert "belongs to another project" in answers[0].json()["errors"][0]["message"]
    assert [one.target.trace_id for one in store.feedbacks()] == [TRACE]


@pytest.mark.process
def test_too_many_at_once_are_refused_with_the_number(http):
    answer = http.post("/api/public/scores", json=[{}] * 10_001)
    assert (answer.status_code, "10,001" in answer.text) == (413, True)


@loop_over(
    ("fields", "told"),
    [
        ({"value": "x", "dataType": "NUMERIC"}, "not a valid value of dataType NUMERIC"),
        ({"value": 2, "dataType": "BOOLEAN"}, "not a valid value of dataType BOOLEAN"),
        ({"value": 1, "dataType": "CATEGORICAL"}, "not a valid value of dataType CATEGORICAL"),
        ({"value": "", "dataType": "TEXT"}, "not a valid value of dataType TEXT"),
        ({"value": 1, "dataType": "STARS"}, "unknown dataType 'STARS'; expected one of: NUMERIC"),
        ({"value": 1, "traceId": 7}, "traceId must be a string, got 7"),
        ({"value": 1, "traceId": None, "observationId": SPAN}, "requires the traceId"),
        ({"value": 1, "timestamp": "yesterday"}, "timestamp must be an ISO 8601 time"),
    ],
)
def test_a_score_that_makes_no_sense_says_which_part(fields, told):
    with pytest.raises(ValueError, match=told):
        read_langfuse_score({"name": "k", "traceId": TRACE, **fields})


def test_peoples_scores_are_peoples():
    score = {"name": "k", "value": 1, "traceId": TRACE}
    assert read_langfuse_score({**score, "source": "ANNOTATION"}).source == "human"
    assert read_langfuse_score({**score, "queueId": "q"}).source == "human"
    assert read_langfuse_score({**score, "source": "EVAL"}).source == "model"


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(TRACE) | st.just([1])
NAMES = "id traceId sessionId observationId datasetRunId name value comment metadata dataType timestamp source queueId"


def test_an_integer_beyond_64_bits_in_a_text_field_is_text():
    huge = -(2**63) - 1
    score = {"traceId": TRACE, "name": "quality", "value": 1, "comment": huge}
    assert read_langfuse_score(score).comment == str(huge)


@pytest.mark.process
@settings(deadline=None, max_examples=100)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES.split(), plain | st.dictionaries(st.text(), plain))))
def test_whatever_a_score_says_it_is_feedback_or_a_value_error(score):
    try:
        assert isinstance(read_langfuse_score(score), Feedback)
    except ValueError:
        pass
