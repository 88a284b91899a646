"""Who comes in, and what they are told: wrong keys, keys of one project, names of others, health without a key."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from google.rpc.status_pb2 import Status

from collector.making import run
from collector.otlp import PROTOBUF, attribute, rejected, request, span
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import Forbidden, NotFound, Refused
from spanwise.collector.filters import Filter
from spanwise.collector.operations import PROJECT_SCOPES, ProjectScopedStore
from spanwise.collector.records import (
    Amendment,
    Example,
    Experiment,
    Feedback,
    Key,
    OpenRun,
    ProcessReport,
    Rule,
    Target,
)
from spanwise.collector.security import ATTEMPT_BURST, MAX_TRACKED_ADDRESSES, AttemptLimiter
from spanwise.collector.server import Server
from spanwise.collector.stores import ControlStore, TraceStore
from spanwise.collector.stores.sqlite import SQLiteStore

MASTER = "master"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def locked(store: SQLiteStore) -> Iterator[Server]:
    for secret, fields in (("p", {"project": "p"}), ("reader", {"scopes": ("read",)})):
        sha = hashlib.sha256(secret.encode()).hexdigest()
        store.save_key(Key(id=secret, name=secret, sha256=sha, **fields))  # type: ignore[arg-type]
    with Server(store, host="0.0.0.0", api_key=MASTER) as server:
        yield server


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


# A server on loopback


@pytest.fixture
def unlocked(store: SQLiteStore) -> Iterator[Server]:
    for secret, fields in (("p", {"project": "p"}), ("reader", {"scopes": ("read",)})):
        sha = hashlib.sha256(secret.encode()).hexdigest()
        store.save_key(Key(id=secret, name=secret, sha256=sha, **fields))  # type: ignore[arg-type]
    with Server(store) as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"authorization": "Bearer none"}, 200),  # of clients that demand a key
        ({"authorization": "Bearer nonsense"}, 401),
        ({"x-api-key": "nonsense"}, 401),
        ({"api_key": "nonsense"}, 401),
        ({"authorization": "Bearer reader"}, 403),
        ({"authorization": "Bearer p"}, 403),  # deletion in bulk needs admin
    ],
)
def test_a_key_that_is_sent_is_checked_on_loopback(unlocked, store, headers, status):
    store.append([run()])
    answer = httpx.delete(f"{unlocked.url}/api/traces?project=default", headers=headers, timeout=60)
    assert answer.status_code == status
    assert len(store.traces().items) == (0 if status == 200 else 1)


def test_a_key_of_one_project_sees_that_project_on_loopback(unlocked, store):
    store.append([run(project="p"), run(project="q")])
    found = httpx.get(f"{unlocked.url}/api/values/project", headers=bearer("p"), timeout=60)
    assert found.json() == ["p"]


@pytest.mark.parametrize("given", [{"require_key": True}, {"api_key": MASTER}])
def test_keys_can_be_required_on_loopback(store, given, monkeypatch):
    monkeypatch.setenv("SPANWISE_API_KEY", MASTER)
    with Server(store, **given) as server:
        for path in ("/api/traces", "/v1/traces"):
            assert httpx.get(f"{server.url}{path}", timeout=60).status_code == 401
        assert httpx.get(f"{server.url}/api/traces", headers=bearer(MASTER), timeout=60).status_code == 200


def test_keys_that_are_required_must_exist(store, monkeypatch):
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    with pytest.raises(Refused, match="because --require-key is set; set SPANWISE_API_KEY"):
        Server(store, require_key=True)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_another_sites_page_reads_nothing_on_loopback(store, method):
    with Server(store) as server:
        for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200), ("same-site", 200)):
            answer = httpx.request(method, f"{server.url}/", headers={"sec-fetch-site": site}, timeout=60)
            assert answer.status_code == status


@pytest.mark.parametrize("hosts", [[], ["127.0.0.1", "evil.test"], ["127.0.0.1", "127.0.0.1"]])
def test_a_request_has_one_host(store, hosts):
    with Server(store) as server, socket.create_connection(("127.0.0.1", server.port)) as sender:
        lines = ["GET /api/traces HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
        sender.sendall("\r\n".join(lines).encode())
        assert sender.makefile("rb").readline().split()[1] == b"400"


# Names


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Real-IP"])
@pytest.mark.parametrize(("sender", "status"), [("203.0.113.7", 403), ("127.0.0.1, 2001:db8::1", 403), ("::1", 200)])
def test_a_proxy_on_this_machine_lets_nobody_in_from_elsewhere(store, name, sender, status):
    with Server(store) as server:
        assert httpx.get(f"{server.url}/api/traces", headers={name: sender}).status_code == status


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([("x-forwarded-for", "203.0.113.7"), ("x-forwarded-for", "127.0.0.1")], 403),
        ([("x-real-ip", "203.0.113.7"), ("x-real-ip", "127.0.0.1")], 403),
        ([("forwarded", "for=127.0.0.1;proto=http, for=203.0.113.7")], 403),
        ([("forwarded", 'For="[2001:db8::1]:4711"')], 403),
        ([("forwarded", "for=_hidden")], 403),
        ([("forwarded", 'for="[::1]:4711";by=127.0.0.1, for=127.0.0.1')], 200),
        ([("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "::1")], 200),
    ],
)
def test_of_several_proxies_none_is_overlooked(store, lines, status):
    with Server(store) as server:
        assert httpx.get(f"{server.url}/api/traces", headers=lines).status_code == status


def test_no_such_header_opens_a_server_that_asks_for_keys(locked):
    said = {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "host": "localhost"}
    assert httpx.get(f"{locked.url}/api/traces", headers=said).status_code == 401


@pytest.mark.parametrize(
    "host", ["127.evil.test", "127.0.0.1.nip.io", "127.evil.test:4318", "[::1", "evil.test", "localhost."]
)
def test_a_name_that_only_looks_like_this_machine_reads_and_deletes_nothing(store, host):
    store.append([kept := run()])
    with Server(store) as server, httpx.Client(base_url=server.url, headers={"host": host}) as client:
        assert client.get("/api/traces").status_code == 403
        assert client.delete(f"/api/traces/{kept.trace_id}").status_code == 403
        assert "store" not in client.get("/healthz").json()
    assert store.count()["traces"] == 1


@pytest.mark.parametrize("origin", ["http://[::1", "http://127.evil.test", "null"])
def test_an_origin_of_others_writes_nothing(store, origin):
    with Server(store) as server:
        answers = [
            httpx.post(f"{server.url}{path}", content=b"[]", headers={"origin": origin})
            for path in ("/api/feedback", f"/traces/{'a' * 32}/feedback")
        ]
    assert [answer.status_code for answer in answers] == [403, 403]


# Health


def test_health_names_file_and_process_only_to_those_who_may_know(locked):
    def told(secret: str | None) -> set[str]:
        return set(httpx.get(f"{locked.url}/healthz", headers=bearer(secret) if secret else {}).json())

    assert told(None) == told("wrong") == {"status", "service"}
    assert told(MASTER) == {"status", "service", "pid", "store"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_may_ask_for_the_head(store, path):
    with Server(store) as server:
        answer = httpx.head(server.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


# Wrong keys


@pytest.mark.process
def test_wrong_keys_are_limited_and_right_ones_go_on(locked, caplog):
    with httpx.Client(base_url=locked.url) as client:
        assert client.get("/api/count", headers=bearer(MASTER)).status_code == 200
        with caplog.at_level(logging.WARNING, "spanwise.collector"):
            answers = [
                client.get("/api/count", headers=bearer(f"secret-{number}")) for number in range(ATTEMPT_BURST + 30)
            ]
        assert {answer.status_code for answer in answers[:ATTEMPT_BURST]} == {401}
        last = answers[-1]
        assert (last.status_code, last.headers["retry-after"]) == (429, "1")
        assert client.get("/api/count", headers=bearer(MASTER)).status_code == 200
    assert "request(s) with invalid API keys from 127.0.0.1" in caplog.text
    assert "secret-" not in caplog.text


@pytest.mark.process
def test_a_right_key_that_was_never_seen_is_not_tried_beside_many_wrong_ones(locked):
    """Else the limit would not keep anybody from guessing."""
    with httpx.Client(base_url=locked.url) as client:
        for number in range(ATTEMPT_BURST + 30):
            client.get("/api/count", headers=bearer(f"secret-{number}"))
        statuses = [client.get("/api/count", headers=bearer(f"more-{number}")).status_code for number in range(5)]
    assert 429 in statuses


def test_tries_come_back_with_time():
    now = [0.0]
    tries = AttemptLimiter(lambda: now[0])
    for _ in range(ATTEMPT_BURST):
        assert tries.wait("a", b"k") == 0
        tries.record_failure("a")
    assert tries.wait("a", b"k") == 1
    assert tries.wait("b", b"k") == 0
    now[0] = 1.0
    assert tries.wait("a", b"k") == 0


@pytest.mark.process
def test_tries_are_remembered_of_so_many_addresses():
    tries = AttemptLimiter()
    for number in range(MAX_TRACKED_ADDRESSES + 10):
        tries.record_failure(str(number))
        tries.record_success(str(number), b"k")
    assert len(tries._attempts) == len(tries._successes) == MAX_TRACKED_ADDRESSES


def test_one_line_tells_of_many_wrong_keys(caplog):
    now = [0.0]
    tries = AttemptLimiter(lambda: now[0])
    with caplog.at_level(logging.WARNING, "spanwise.collector"):
        for _ in range(50):
            tries.record_failure("10.0.0.1")
        now[0] = 61.0
        tries.record_failure("10.0.0.1")
    assert [record.getMessage() for record in caplog.records] == [
        "1 request(s) with invalid API keys from 10.0.0.1",
        "50 request(s) with invalid API keys from 10.0.0.1",
    ]


@pytest.mark.parametrize(
    ("headers", "status", "code"), [({}, 401, 16), (bearer("wrong"), 401, 16), (bearer("reader"), 403, 7)]
)
def test_a_sender_of_protobuf_is_refused_in_protobuf(locked, headers, status, code):
    answer = httpx.post(f"{locked.url}/v1/traces", content=b"", headers={**headers, "content-type": PROTOBUF})
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROTOBUF)
    assert Status.FromString(answer.content).code == code


# Scopes


def test_a_reader_may_ask_for_many_traces(locked, store):
    store.append([kept := run()])
    with HTTPStore(locked.url, "reader") as client:
        assert [trace.trace_id for trace in client.many([kept.trace_id])] == [kept.trace_id]
        with pytest.raises(Forbidden, match="lacks the scope 'admin'"):
            client.keys()


# A key of one project


@pytest.fixture
def mine(locked: Server) -> Iterator[HTTPStore]:
    with HTTPStore(locked.url, "p") as client:
        yield client


@pytest.fixture
def theirs(store: SQLiteStore) -> str:
    """The trace of another project, with feedback."""
    store.append([kept := run(project="q", session_id="s")])
    store.add_feedback([Feedback(target=Target(trace_id=kept.trace_id), key="k", score=1.0)])
    for id in ("e", "e" * 32):
        store.save_experiment(Experiment(id=id, name=id, dataset="d", project="q"))
    return kept.trace_id


def test_what_is_written_with_the_key_is_its_projects(mine, store):
    mine.append([said := run(project="p"), unsaid := run()])
    mine.feedback(said.trace_id, "k", 1.0)
    assert {trace.project for trace in store.traces()} == {"p"}
    assert {trace.trace_id for trace in mine.traces()} == {said.trace_id, unsaid.trace_id}
    assert mine.trace(said.trace_id).feedback[0].key == "k"


def test_what_is_anothers_is_not_there(mine, theirs):
    assert not mine.traces().items
    assert not mine.traces(trace_ids=(theirs,)).items
    assert not mine.sessions().items
    assert mine.many([theirs]) == []
    assert mine.aggregate()[0].traces == 0 if mine.aggregate() else True
    assert (mine.values("project"), mine.values("session"), mine.values("tag")) == (["p"], [], [])
    assert mine.experiments() == []
    assert mine.changes().heads == ()
    assert not mine.feedbacks().items
    for ask in (lambda: mine.trace(theirs), lambda: mine.experiment("e"), lambda: mine.scores("e")):
        with pytest.raises(NotFound):
            ask()


def test_what_is_anothers_is_not_changed(mine, theirs, store):
    attempts = [
        lambda: mine.append([run(trace_id=theirs, project="p")]),
        lambda: mine.append([run(project="q")]),
        lambda: mine.add_feedback([Feedback(target=Target(session_id="s", project="q"), key="k", score=0.0)]),
        lambda: mine.traces(project="q"),
        lambda: mine.add_running([OpenRun(trace_id=theirs, span_id="1" * 16, name="n")]),
        lambda: mine.add_reports([ProcessReport(instance="i", reported_ns=1, project="q")]),
        lambda: mine.save_experiment(Experiment(id="e", name="mine", dataset="d")),
        lambda: mine.rules(project="q"),
        lambda: mine.save_rule(Rule(name="r", version="1", evaluators=(), project="q")),
        lambda: mine.delete_dataset("d"),
        lambda: mine.count(),
        lambda: mine.keys(),
        lambda: mine.vacuum(),
    ]
    for attempt in attempts:
        with pytest.raises(Forbidden):
            attempt()
    assert store.trace(theirs).feedback[0].score == 1.0
    assert store.experiment("e").project == "q"


@pytest.mark.parametrize(
    "ask",
    [
        lambda mine, trace, _: mine.trace(trace),
        lambda mine, trace, _: mine.run(trace),
        lambda mine, trace, _: mine.tree(trace),
        lambda mine, trace, _: mine.many([trace]),
        lambda mine, trace, _: mine.explain(trace, Filter()),
        lambda mine, trace, _: mine.feedbacks(target=Target(trace_id=trace)),
        lambda mine, trace, _: mine.amend(trace, "1" * 16, {"inputs": "x"}),
        lambda mine, trace, _: mine.feedback(trace, "k", 0.0).id,
        lambda mine, trace, _: mine.add_feedback([Feedback(target=Target(trace_id=trace), key="k", score=0.0)]),
        lambda mine, trace, _: mine.append([], [Feedback(target=Target(trace_id=trace), key="k", score=0.0)]),
        lambda mine, _, one: mine.experiment(one),
        lambda mine, _, one: mine.scores(one),
        lambda mine, _, one: mine.feedbacks(target=Target(experiment_id=one)),
        lambda mine, _, one: mine.add_feedback([Feedback(target=Target(experiment_id=one), key="k", score=0.0)]),
    ],
)
def test_what_is_anothers_is_answered_as_what_is_not_there(mine, theirs, store, ask):
    def answer(trace_id: str, experiment: str) -> str:
        try:
            found = repr(ask(mine, trace_id, experiment))
        except Exception as error:
            found = repr(error)
        return found if len(found) == 34 else found.replace(trace_id, "ID").replace(experiment, "ID")

    unknown = "a" * 32
    there, absent = answer(theirs, "e" * 32), answer(unknown, "f" * 32)
    assert there == absent or len(there) == len(absent) == 34  # ids of feedback
    assert [row.score for row in store.trace(theirs).feedback] == [1.0]


def test_what_is_said_of_anothers_run_before_it_comes_is_not_in_it(mine, store):
    coming = run(project="q", attributes={"gen_ai.response.id": "r"})
    mine.amend(coming.trace_id, coming.span_id, {"outputs": "mine"})
    mine.add_amendments([Amendment("", "", {"outputs": "mine"}, response_id="r")])
    store.append([coming])
    assert store.trace(coming.trace_id).root == coming
    assert mine.add_amendments([Amendment("", "", {"outputs": "mine"}, response_id="r")]) == [False]
    with pytest.raises(Forbidden):
        mine.add_amendments([Amendment(coming.trace_id, coming.span_id, {}, project="q")])
    assert store.trace(coming.trace_id).root == coming


def test_feedback_of_another_project_is_not_written_over_by_its_id(mine, theirs, store):
    mine.append([own := run()])
    [row] = store.feedbacks(trace_ids=(theirs,))
    mine.add_feedback([Feedback(id=row.id, target=Target(trace_id=own.trace_id), key="k", score=0.0)])
    assert store.trace(theirs).feedback == (row,)
    assert store.trace(own.trace_id).feedback[0].score == 0.0


def test_an_id_of_the_senders_own_overwrites_itself(mine, store):
    mine.append([own := run()])
    for score in (0.0, 1.0):
        mine.add_feedback([Feedback(id="vote", target=Target(trace_id=own.trace_id), key="k", score=score)])
    assert [row.score for row in store.feedbacks()] == [1.0]


def test_no_run_is_put_into_an_experiment_of_another_project(mine, locked, theirs, store):
    with pytest.raises(Forbidden, match="experiment 'e'"):
        mine.append([run(experiment_id="e")])
    sent = request(span(attributes=[attribute("spanwise.experiment.id", "e")]))
    answer = httpx.post(f"{locked.url}/v1/traces", content=sent, headers={**bearer("p"), "content-type": PROTOBUF})
    assert rejected(answer.content)[0] == 1
    assert not store.traces(experiment="e").items


def test_an_experiment_of_the_project_is_filled_and_shown(mine, locked, store):
    store.save_examples("d", [Example(id="x", inputs={})])
    mine.save_experiment(Experiment(id="own", name="own", dataset="d"))
    mine.append([kept := run(experiment_id="own", example_id="x")])
    mine.add_feedback([Feedback(target=Target(experiment_id="own"), key="k", score=1.0)])
    for path in ("/experiments", "/experiments/own", f"/traces/{kept.trace_id}"):
        assert httpx.get(f"{locked.url}{path}", headers=bearer("p")).status_code == 200


def test_otlp_is_held_to_the_project_span_by_span(locked, store, theirs):
    other = span(trace_id=bytes.fromhex(theirs))
    mine = [span(), span()]
    answer = httpx.post(
        f"{locked.url}/v1/traces", content=request(other, *mine), headers={**bearer("p"), "content-type": PROTOBUF}
    )
    count, told = rejected(answer.content)
    assert (answer.status_code, count) == (200, 1)
    assert "limited to project 'p'" in told
    assert store.trace(mine[0].trace_id.hex()).root.project == "p"
    assert len(store.trace(theirs).runs) == 1


def test_pages_show_the_project_and_nothing_else(locked, mine, theirs):
    mine.append([run(name="seen-by-all")])
    page = httpx.get(f"{locked.url}/traces", headers=bearer("p"))
    assert page.status_code == 200
    assert "seen-by-all" in page.text
    assert httpx.get(f"{locked.url}/traces/{theirs}", headers=bearer("p")).status_code == 404
    for path in ("/datasets", "/metrics", "/api/keys"):
        assert httpx.get(f"{locked.url}{path}", headers=bearer("p")).status_code == 403


def test_a_verb_that_nobody_has_thought_of_is_forbidden(store):
    view = ProjectScopedStore(store, "p")
    methods = {name for name in vars(ProjectScopedStore) if not name.startswith("_")}
    thought = methods | {name for name, scope in PROJECT_SCOPES.items() if scope in ("filter", "argument", "trace")}
    verbs = {name for kind in (TraceStore, ControlStore) for name in vars(kind) if not name.startswith("_")}
    assert verbs - PROJECT_SCOPES.keys() == {"close", "each", "feedback", "to_pandas", "where"}
    for name in verbs - thought - {"close", "where"}:
        with pytest.raises(Forbidden):
            getattr(view, name)
    assert {"datasets", "keys", "prune", "delete_feedback", "leases"} <= verbs - thought
    # the table and the class agree on which operations are methods
    assert {name for name, scope in PROJECT_SCOPES.items() if scope == "method"} == methods & PROJECT_SCOPES.keys()
    with pytest.raises(AttributeError):
        view.nothing  # noqa: B018


def test_a_condition_on_names_is_no_argument_of_the_view(store):
    store.append([run("mine", project="p"), run("other", project="p"), run("mine", project="q")])
    view = ProjectScopedStore(store, "p")
    assert [trace.name for trace in view.traces(name="mine")] == ["mine"]
    assert [trace.name for trace in view.each(name="mine")] == ["mine"]
    assert view.settings(name="no rule") == []


def test_a_file_of_rules_may_be_of_several_projects(store):
    with pytest.raises(Forbidden, match="several"):
        ProjectScopedStore(store, "p").save_rule(Rule(name="r", version="1", evaluators=()), owner="rules.py")


# What is said later, and of others


@pytest.mark.process
@pytest.mark.parametrize(
    "fields",
    [
        {"cost": -1e300},
        {"usage": {"input_tokens": -5}},
        {"usage": {"details": {"cached": -5}}},
        {"session_id": "x" * 2_001},
        {"tags": ["t"] * 101},
    ],
)
def test_what_no_run_may_bring_is_not_amended_either(store, fields):
    store.append([kept := run()])
    with Server(store) as server:
        answer = httpx.patch(f"{server.url}/api/runs/{kept.trace_id}/{kept.span_id}", json=fields)
    assert (answer.status_code, store.trace(kept.trace_id).runs[0]) == (400, kept)


@pytest.mark.parametrize("field", ["key", "label", "author", "id"])
def test_feedback_whose_name_nobody_could_read_is_refused(store, field):
    store.append([kept := run()])
    said = {"target": {"trace_id": kept.trace_id}, "key": "k", "label": "l", field: "x" * 2_001}
    with Server(store) as server:
        assert httpx.post(f"{server.url}/api/feedback", json=[said]).status_code == 400
    assert not store.feedbacks().items


def test_a_key_of_a_project_that_names_no_condition_deletes_nothing(store):
    store.append([run(project="p")])
    view = ProjectScopedStore(store, "p")
    with pytest.raises(Refused, match="at least one condition"):
        view.delete()
    assert view.delete(project="p") == 1
