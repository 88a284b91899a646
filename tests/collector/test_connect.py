"""Where things go, and who holds a file."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from inspect import getattr_static
from pathlib import Path

import pytest
import trustme

from collector.making import run
from spanwise.collector import aio, connect, describe
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import NotFound, Refused, Unavailable
from spanwise.collector.filters import Filter, filter_from_items, filter_to_items
from spanwise.collector.server import Server
from spanwise.collector.stores import FeedbackSource, LocalStore
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer.http_connections import CERTIFICATE_VARIABLES


def test_a_path_is_a_file(tmp_path: Path) -> None:
    store = connect(tmp_path / "spanwise.db")
    store.append([run()])
    assert describe(store) == str(tmp_path / "spanwise.db")
    store.close()
    store.close()


def test_one_process_may_open_a_file_several_times(tmp_path: Path) -> None:
    first, second = connect(tmp_path / "a.db"), connect(tmp_path / "a.db")
    first.append([run("x")])
    first.close()
    assert [one.name for one in second.traces()] == ["x"]
    with pytest.raises(Refused, match="is closed"):
        first.traces()
    second.close()
    SQLiteStore(tmp_path / "a.db").close()  # the last one out has let go


def test_a_file_that_is_served_is_reached_through_its_server(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as kept, Server(kept) as server:
        kept.append([run("x")])
        store = connect(tmp_path / "a.db")
        assert isinstance(store, HTTPStore)
        assert (store.url, [one.name for one in store.traces()]) == (server.url, ["x"])
        store.close()


def test_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_URL", "http://127.0.0.1:9")
    store = connect()
    assert describe(store) == "http://127.0.0.1:9"
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9 does not answer"):
        store.traces()
    store.close()


def test_an_unknown_kind_of_address_is_refused() -> None:
    with pytest.raises(Refused, match="'ftp://x'"):
        connect("ftp://x")


def test_the_verbs_as_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio(connect(tmp_path / "a.db")) as store:
            await store.append([one := run("x")])
            assert (await store.trace(one.trace_id)).root == one
            with pytest.raises(NotFound):
                await store.trace("f" * 32)

    asyncio.run(main())


def test_the_servers_errors_are_the_stores(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as kept, Server(kept) as server:
        store = HTTPStore(server.url)
        with pytest.raises(NotFound, match="f" * 32):
            store.trace("f" * 32)
        with pytest.raises(Refused, match="shoe"):
            store.values("shoe")
        store.close()
        with pytest.raises(Refused, match="is closed"):
            store.count()


@pytest.mark.process
def test_many_trace_ids_fit_into_one_question(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as kept, Server(kept) as server, HTTPStore(server.url) as store:
        kept.append(runs := [run() for _ in range(3)])
        ids = [one.trace_id for one in runs] + [f"{n:032x}" for n in range(1500)]
        assert len(store.traces(trace_ids=ids, limit=10).items) == 3
        assert len(store.many(ids)) == 3


@pytest.mark.parametrize(
    "filter",
    [
        Filter(),
        Filter(name="a=b&c", since_ns=5, complete=False),
        Filter(latency_ms=("<=", 1.5), cost=("!=", 0.1)),
        Filter(tags=("a", "b"), metadata={"k": "v:w"}, feedback=(("a", ">=", 0.5), ("tone", "=", "polite"))),
    ],
)
def test_a_filter_goes_through_a_query_string_and_back(filter: Filter) -> None:
    assert filter_from_items(filter_to_items(filter)) == filter


def test_a_file_that_nobody_serves_says_how_to_share_it(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with SQLiteStore(path), pytest.raises(Refused, match=r"which does not serve it; wait .* `spanwise serve --store"):
        SQLiteStore(path)


def test_what_this_process_holds_can_be_served_and_what_it_reaches_cannot(tmp_path: Path) -> None:
    store, away = connect(tmp_path / "a.db"), HTTPStore("http://127.0.0.1:9")
    assert isinstance(store, LocalStore)
    assert not isinstance(away, LocalStore)
    assert (store.where, away.where) == (str(tmp_path / "a.db"), "http://127.0.0.1:9")
    store.append_async([run()]).result(60)
    assert store.health()["writable"]
    store.close()


@pytest.mark.parametrize("protocol", [LocalStore, FeedbackSource])
def test_what_a_server_asks_of_a_file_is_found_as_python_3_12_looks_for_it(tmp_path: Path, protocol: type) -> None:
    asked = [name for name in vars(protocol) if not name.startswith("_")]
    with connect(tmp_path / "a.db") as store:
        assert [name for name in asked if getattr_static(store, name, None) is None] == []
        assert isinstance(store, protocol)


@pytest.mark.parametrize("url", ["http://localhost:abc", "http://[::1", "http://", "http://a b"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="invalid URL of the store"):
        connect(url)


@pytest.mark.parametrize("variable", CERTIFICATE_VARIABLES)
def test_a_private_authority_is_trusted(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in CERTIFICATE_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "ca.pem"))
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted = threading.Thread(target=lambda: context.wrap_socket(listener.accept()[0], server_side=True).close())
        accepted.start()
        with pytest.raises(Unavailable) as raised:
            connect(f"https://localhost:{listener.getsockname()[1]}").traces(limit=1)
        accepted.join(10)
    assert "CERTIFICATE" not in str(raised.value)


def test_an_unusable_file_of_authorities_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/ca.pem")
    with pytest.raises(Refused, match=r"/no/such/ca\.pem"):
        connect("https://localhost:1")
