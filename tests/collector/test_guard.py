"""Who may do what, and what the guard does while the store does not say which keys there are."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.routing import BaseRoute

from collector.otlp import PROTOBUF, request, span
from looped_cases import loop_over
from polling import until
from spanwise.collector.api import KeyCache, create_app
from spanwise.collector.api.asgi_application import ROUTE_PERMISSIONS
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Key
from spanwise.collector.security import SCOPE_PERMISSIONS, AttemptLimiter, KeyCacheTimes, get_permissions
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SECRET = "secret"
ALWAYS = KeyCacheTimes(fresh=0, patience=60, grace=60, pause=0, apart=0)  # every request waits for a reading of its own


def sha256(secret: str = SECRET) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def key(secret: str = SECRET, **fields: object) -> Key:
    return Key(id=secret, name=secret, sha256=sha256(secret), **fields)  # type: ignore[arg-type]


class Held(SQLiteStore):
    """A store that does not say its keys while it is held, or when it is broken."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.go, self.readings, self.broken = threading.Event(), threading.Event(), 0, False
        self.go.set()

    def keys(self) -> list[Key]:
        self.readings += 1
        self.asked.set()
        assert self.go.wait(120)
        if self.broken:
            raise Unavailable("broken")
        return self._control.keys()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.asked.clear()
        self.go.clear()
        try:
            yield
        finally:
            self.go.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Held]:
    with Held(tmp_path / "spanwise.db") as made:
        made.save_key(key())
        yield made


def scopes(keys: KeyCache, secret: str = SECRET) -> tuple[str, ...] | None:
    found = asyncio.run(keys.find(sha256(secret)))
    return found and found.scopes


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def opened(keys: KeyCache) -> bool:
    with suppress(Unavailable):
        return bool(scopes(keys))
    return False


# While the store is busy


def test_a_store_that_does_not_say_its_keys_holds_up_nobody_else(store: Held) -> None:
    with (
        Server(store, host="0.0.0.0", api_key="master") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        answers: list[int] = []

        def keyed() -> None:
            answers.append(httpx.get(f"{server.url}/api/count", headers=bearer(SECRET), timeout=60).status_code)

        with store.held():
            waiting = threading.Thread(target=keyed)
            waiting.start()
            assert store.asked.wait(60)
            headers = bearer("master") | {"content-type": PROTOBUF}
            assert client.get("/healthz").status_code == 200
            assert client.post("/v1/traces", content=request(span()), headers=headers).status_code == 200
            assert answers == []
        waiting.join()
    assert answers == [200]


def test_the_first_request_waits_for_the_keys_in_a_thread(store: Held) -> None:
    with store.held():
        threading.Timer(0.05, store.go.set).start()
        assert scopes(KeyCache(store)) == ("read", "write")


def test_keys_that_never_came_open_nothing(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=0, grace=0.05))
    with store.held(), pytest.raises(Unavailable, match="the store does not answer"):
        scopes(keys)


def test_a_failing_store_is_named(store: Held) -> None:
    store.broken = True
    with pytest.raises(Unavailable, match=r"the API keys cannot be read now: the store failed with .*broken"):
        scopes(KeyCache(store))


def test_the_last_keys_hold_while_the_store_does_not_answer(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=0, patience=0.05, grace=60, pause=0, apart=0))
    assert scopes(keys)
    with store.held():
        assert scopes(keys) == ("read", "write")
        assert scopes(keys, "other") is None


@pytest.mark.process
def test_a_reading_that_takes_long_is_waited_for_once(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=0, patience=0.3, grace=60, pause=0, apart=0))
    assert scopes(keys)
    with store.held():
        scopes(keys)
        start = time.monotonic()
        for _ in range(100):
            assert scopes(keys)
        assert time.monotonic() - start < 15  # half a minute, if each of them waited


@pytest.mark.process
def test_the_last_keys_do_not_hold_for_ever(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=0.1, patience=0.05, grace=0.1, pause=0, apart=0))
    start = time.monotonic()
    assert scopes(keys)
    with store.held():
        with pytest.raises(Unavailable):
            until(lambda: scopes(keys) is None)
        assert time.monotonic() - start > 0.2
    until(lambda: opened(keys))


@pytest.mark.process
def test_an_expired_key_opens_nothing_though_the_store_does_not_answer(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=0, patience=0.01, grace=60, pause=0, apart=0))

    def opens_for_a_moment() -> bool:
        store.save_key(key("brief", expires_ns=time.time_ns() + 200_000_000))
        return bool(scopes(keys, "brief"))

    until(opens_for_a_moment)
    with store.held():
        until(lambda: scopes(keys, "brief") is None)
        assert scopes(keys)


def test_requests_are_answered_later_while_there_are_no_keys(store: Held) -> None:
    store.broken = True
    with (
        Server(store, host="0.0.0.0", api_key="master") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        answer = client.get("/api/count", headers=bearer(SECRET))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (answer.json()["error"], answer.json()["code"]) == ("Unavailable", 14)
        assert client.get("/healthz").status_code == 200


# How keys are read


def test_keys_are_read_once_for_many_requests(store: Held) -> None:
    async def many(keys: KeyCache) -> list[Key | None]:
        return await asyncio.gather(*(keys.find(sha256()) for _ in range(20)))

    assert [found and found.id for found in asyncio.run(many(KeyCache(store)))] == [SECRET] * 20
    assert store.readings == 1


def test_how_long_keys_hold() -> None:
    assert KeyCacheTimes() == KeyCacheTimes(
        fresh=10.0, patience=1.0, grace=20.0, pause=1.0, apart=0.05
    )  # docs/collector.md says so


def test_keys_are_remembered(store: Held) -> None:
    keys = KeyCache(store)
    for _ in range(3):
        assert scopes(keys)
    assert store.readings == 1


def test_keys_are_read_anew_before_they_are_too_old(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=200, patience=100, pause=0, apart=0))
    assert scopes(keys)
    keys._snapshot = replace(keys._snapshot, since=keys._snapshot.since - 110)  # as if they had been read that long ago
    with store.held():
        assert scopes(keys)
        assert store.asked.wait(60)
        assert not keys._reading.done.done()  # nobody waited for it


def test_a_store_that_fails_is_not_asked_for_every_request(store: Held) -> None:
    store.broken = True
    keys = KeyCache(store, KeyCacheTimes(pause=60))
    for _ in range(3):
        with pytest.raises(Unavailable):
            scopes(keys)
    assert store.readings == 1


def test_a_revoked_key_opens_nothing_once_keys_are_read_anew(store: Held) -> None:
    keys = KeyCache(store, ALWAYS)
    assert scopes(keys)
    store.delete_key(SECRET)
    assert scopes(keys) is None


def test_a_new_key_opens_in_its_first_request(store: Held) -> None:
    keys = KeyCache(store)
    assert scopes(keys)
    assert scopes(keys, "new") is None  # as after somebody tried an unknown key
    store.save_key(key("new", scopes=("read",)))
    assert scopes(keys, "new") == ("read",)


def test_unknown_keys_share_readings(store: Held) -> None:
    async def many(keys: KeyCache) -> list[Key | None]:
        return await asyncio.gather(*(keys.find(sha256(f"unknown {n}")) for n in range(100)))

    assert asyncio.run(many(KeyCache(store))) == [None] * 100
    assert store.readings <= 20


def test_a_key_of_one_project_hides_none_of_the_same_secret(store: Held) -> None:
    store.save_key(Key(id="bound", name="bound", sha256=sha256(), project="p", created_ns=0))
    assert scopes(KeyCache(store)) == ("read", "write")


def test_closing_waits_for_the_reading_under_way(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(grace=0))
    keys.close()  # nothing was asked yet
    with store.held():
        with pytest.raises(Unavailable):
            scopes(keys)
        threading.Timer(0.1, store.go.set).start()
        keys.close()
        assert store.go.is_set()


def test_closing_does_not_wait_for_ever(store: Held) -> None:
    keys = KeyCache(store, KeyCacheTimes(fresh=0.05, grace=0))
    with store.held():
        with pytest.raises(Unavailable):
            scopes(keys)
        keys.close()
        assert not store.go.is_set()


# What a key opens


def flat(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from flat(inner.routes)


def test_every_route_says_what_it_needs(store: Held) -> None:
    told = {(method, path) for method, path, _ in ROUTE_PERMISSIONS.rows}
    routes = list(flat(create_app(store).routes))
    asked = {(method, route.path) for route in routes for method in route.methods or ("POST",)}  # type: ignore[attr-defined]
    assert {(method, path) for method, path in asked if method != "HEAD"} == told
    assert all(ROUTE_PERMISSIONS.needed(*one) == needs for *one, needs in ROUTE_PERMISSIONS.rows)  # none hides another
    assert {needs for _, _, needs in ROUTE_PERMISSIONS.rows} == {"open", "read", "write", "ingest", "feedback", "admin"}


@loop_over(
    ("method", "path", "needed"),
    [
        ("GET", "/api/traces", "read"),
        ("HEAD", "/", "read"),
        ("GET", "/datasets/team/parcels", "read"),
        ("DELETE", "/api/traces/" + "a" * 32, "write"),
        ("POST", "/api/traces/many", "read"),
        ("POST", "/traces/" + "a" * 32 + "/feedback", "write"),
        ("POST", "/v1/traces", "ingest"),
        ("POST", "/v1/logs", "ingest"),
        ("GET", "/v1/traces", "read"),
        ("POST", "/v1/traces/more", "write"),
        ("GET", "/api/keys", "admin"),
        ("DELETE", "/api/traces", "admin"),
        ("POST", "/api/prune", "admin"),
        ("POST", "/v1/logs/", "ingest"),
        ("POST", "/v1/metrics", "ingest"),
        ("POST", "/api/keys", "admin"),
        ("DELETE", "/api/keys/k", "admin"),
        ("POST", "/api/vacuum", "admin"),
        ("POST", "/api/rules", "write"),
        ("PATCH", "/api/rules/r", "write"),
        ("GET", "/healthz", "open"),
        ("GET", "/readyz", "open"),
        ("GET", "/metrics", "read"),
        ("GET", "/nothing", "read"),
        ("OPTIONS", "/api/traces", "read"),
        ("PUT", "/api/traces", "write"),
    ],
)
def test_what_a_request_needs(method: str, path: str, needed: str) -> None:
    assert ROUTE_PERMISSIONS.needed(method, path) == needed


@pytest.mark.parametrize(
    ("scope", "opens"),
    [
        ("read", {"read"}),
        ("write", {"write", "ingest"}),
        ("ingest", {"ingest"}),
        ("admin", {"admin"}),
        ("odd", set()),
    ],
)
def test_what_a_scope_opens(scope: str, opens: set[str]) -> None:
    assert get_permissions((scope,)) - {"feedback"} == opens


def test_of_several_scopes_each_opens() -> None:
    assert get_permissions(("ingest", "read")) == {"ingest", "read"}
    assert get_permissions(()) == set()


def test_keys_open_what_their_scopes_say(store: Held) -> None:
    for scope in ("read", "write", "ingest", "admin"):
        store.save_key(key(scope, scopes=(scope,)))
    asked = (
        ("GET", "/api/count"),
        ("POST", "/api/feedback"),
        ("POST", "/v1/traces"),
        ("GET", "/"),
        ("POST", "/api/vacuum"),
    )
    with (
        Server(store, host="0.0.0.0", api_key="master") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):

        def statuses(scope: str) -> list[int]:
            headers = bearer(scope) | {"content-type": "application/json"}
            content = b"[]"
            return [client.request(*one, headers=headers, content=content).status_code for one in asked]

        assert statuses("read") == [200, 403, 403, 200, 403]
        assert statuses("write") == [403, 200, 400, 403, 403]
        assert statuses("ingest") == [403, 403, 400, 403, 403]
        assert statuses("admin") == [403, 403, 403, 403, 200]
        refused = client.post("/api/vacuum", headers=bearer("read")).json()
        told = "the API key lacks the scope 'admin'"
        assert (refused["message"], refused["code"]) == (told, 7)


class Patient(AttemptLimiter):
    """Takes any number of wrong keys."""

    def wait(self, address: str, key: bytes) -> float:
        return 0.0


@pytest.mark.process
def test_everywhere_a_wrong_key_is_401_and_one_without_the_scope_403(store: Held) -> None:
    for needed in ("read", "write", "ingest", "feedback", "admin"):
        others = tuple(scope for scope in SCOPE_PERMISSIONS if needed not in SCOPE_PERMISSIONS[scope])
        store.save_key(key(f"all but {needed}", scopes=others))
    with (
        Server(store, host="0.0.0.0", api_key="master") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        server.authenticator.attempts = Patient()
        for method, path, needed in ROUTE_PERMISSIONS.rows:
            if needed == "open":
                continue
            expected = {"none": 401, "wrong": 401, f"all but {needed}": 403}
            address = re.sub(r"{[^}]*}", "x", path)
            answers = {
                one: client.request(method, address, headers={} if one == "none" else bearer(one)).status_code
                for one in expected
            }
            assert (method, path, answers) == (method, path, expected)


def test_the_variables_key_opens_everything_and_no_other_does(store: Held) -> None:
    with (
        Server(store, host="0.0.0.0", api_key="master") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert client.post("/api/vacuum", headers=bearer("master")).status_code == 200
        assert client.post("/api/vacuum", headers=bearer("masters")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Basic !"},
        {"authorization": "Basic /w=="},
        {"authorization": b"Basic \xe9"},
        {"authorization": "Digest master"},
        {"authorization": "Bearer"},
    ],
)
def test_what_is_no_key_is_refused(store: Held, headers: dict[str, str | bytes]) -> None:
    with Server(store, host="0.0.0.0", api_key="master") as server:
        answer = httpx.get(f"{server.url}/api/count", headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (401, 16)
    assert answer.headers["www-authenticate"].startswith("Basic")


def test_a_server_without_a_key_of_its_own_asks_the_store(store: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    with Server(store, host="0.0.0.0") as server:
        assert httpx.get(f"{server.url}/api/count", headers=bearer(SECRET), timeout=60).status_code == 200
    store.delete_key(SECRET)
    with pytest.raises(Refused, match="set SPANWISE_API_KEY"):
        Server(store, host="0.0.0.0")
