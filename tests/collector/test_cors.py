"""Pages of other origins: the ones that are named may send telemetry and feedback, and read what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from collector.making import run
from looped_cases import loop_over
from spanwise.collector.api.asgi_application import ROUTE_PERMISSIONS, CorsMiddleware, validate_origin
from spanwise.collector.errors import Refused
from spanwise.collector.records import Key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

APP = "https://app.test"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
VOTE = {"key": "thumbs_up", "score": True, "source": "human", "author": "ann"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path_factory.mktemp("cors") / "spanwise.db") as made:
        for scope in ("ingest", "feedback", "read"):
            digest = sha256(scope.encode()).hexdigest()
            made.save_key(Key(id=scope, name=scope, sha256=digest, scopes=(scope,)))
        yield made


@pytest.fixture(scope="module")
def client(store: SQLiteStore) -> Iterator[httpx.Client]:
    with (
        Server(store, host="0.0.0.0", cors=[APP, "http://localhost:3000"]) as server,
        httpx.Client(base_url=server.url, timeout=60) as made,
    ):
        yield made


def bearer(key: str, origin: str = APP) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "origin": origin}


def test_a_browser_is_told_what_the_page_may_send(client: httpx.Client) -> None:
    for path in ("/v1/traces", "/v1/logs", "/v1/metrics", "/api/feedback"):
        answer = client.options(path, headers={"origin": APP, **PREFLIGHT})
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == APP
        assert answer.headers["access-control-allow-methods"] == "POST"
        assert {"authorization", "content-type"} <= set(answer.headers["access-control-allow-headers"].split(", "))
        assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin", ["https://app.test.evil", "http://app.test", "https://APP.test", "null", "https://app.test:8443", "*"]
)
def test_no_other_origin_is(client: httpx.Client, origin: str) -> None:
    asked = client.options("/api/feedback", headers={"origin": origin, **PREFLIGHT})
    sent = client.post("/api/feedback", headers=bearer("feedback", origin), json=[])
    assert (asked.status_code, sent.status_code) == (401, 403)
    assert not any(name.startswith("access-control") for name in (*asked.headers, *sent.headers))


@pytest.mark.parametrize(
    "path", ["/api/traces", "/api/keys", "/", "/sign-in", "/metrics", "/healthz", "/api/feedback/"]
)
def test_no_other_route_is_opened(client: httpx.Client, path: str) -> None:
    for answer in (
        client.options(path, headers={"origin": APP, **PREFLIGHT}),
        client.get(path, headers=bearer("read")),
        client.post(path, headers=bearer("read"), json=[]),
    ):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_what_is_answered_may_be_read_also_a_refusal_and_never_with_credentials(client: httpx.Client) -> None:
    for key, status in (("feedback", 200), ("ingest", 403), ("wrong", 401)):
        answer = client.post("/api/feedback", headers=bearer(key), json=[])
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, APP)
        assert "access-control-allow-credentials" not in answer.headers


def test_votes_arrive(client: httpx.Client, store: SQLiteStore) -> None:
    store.append([kept := run()])
    answer = client.post(
        "/api/feedback", headers=bearer("feedback"), json=[{"target": {"trace_id": kept.trace_id}, **VOTE}]
    )
    assert answer.status_code == 200
    (row,) = store.trace(kept.trace_id).feedback
    assert (row.score, row.source, row.author, [row.id]) == (True, "human", "ann", answer.json())


@pytest.mark.parametrize(
    "said", [{"source": "code"}, {"rule": "r"}, {"evaluator": "e"}, {"judge_trace_id": "a" * 32}, {"claim": 9}]
)
def test_a_key_for_votes_speaks_for_no_judge(client: httpx.Client, said: dict[str, object]) -> None:
    row = {"target": {"trace_id": "b" * 32}, **VOTE, **said}
    answer = client.post("/api/feedback", headers=bearer("feedback"), json=[row])
    assert (answer.status_code, answer.json()["error"]) == (403, "Forbidden")


def test_a_key_for_votes_overwrites_nobody(client: httpx.Client, store: SQLiteStore) -> None:
    store.append([kept := run()])
    judged = store.feedback(kept.trace_id, "correct", 1.0)
    row = {"target": {"trace_id": kept.trace_id}, **VOTE, "id": judged.id}
    assert client.post("/api/feedback", headers=bearer("feedback"), json=[row]).json() != [judged.id]
    assert {one.key for one in store.trace(kept.trace_id).feedback} == {"correct", "thumbs_up"}


def test_a_cookie_is_no_key_there(client: httpx.Client) -> None:
    port = client.base_url.port
    sent = {"origin": APP, "cookie": f"spanwise-session-{port}=x", "sec-fetch-site": "cross-site"}
    assert client.post("/api/feedback", headers=sent, json=[]).status_code == 401


def test_a_server_of_this_machine_may_be_sent_to_by_what_is_developed_there(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store, cors=["http://localhost:3000"]) as server:
        answers = [
            httpx.post(
                f"{server.url}/api/feedback", headers={"origin": f"http://localhost:{port}"}, json=[], timeout=60
            )
            for port in (3000, 3001)
        ]
    assert [answer.status_code for answer in answers] == [200, 403]


@pytest.mark.parametrize(
    "origin", ["https://app.test", "http://localhost:3000", "http://[::1]:3000", "https://a.b:8443"]
)
def test_origins_as_browsers_say_them(origin: str) -> None:
    assert validate_origin(origin) == origin


@loop_over(
    "text",
    [
        *(
            "*",
            "null",
            "",
            "app.test",
            "https://*.test",
            "https://app.test/",
            "https://app.test/path",
            "https://APP.test",
        ),
        *(
            "https://app.test:443",
            "http://app.test:80",
            "https://u:p@app.test",
            "file:///x",
            "https://a b",
            "http://[::1",
        ),
        *("https://", "http://a:x", "https://app.test?x", "https://app.test\n"),
    ],
)
def test_what_is_no_origin_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(Refused):
        CorsMiddleware(None, [text], ROUTE_PERMISSIONS.rows)  # type: ignore[arg-type]
