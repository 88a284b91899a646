"""Which names are this machine's own, and how an address stands in a URL."""

from __future__ import annotations

import socket

import httpx
import pytest

from looped_cases import loop_over
from spanwise.collector import connect
from spanwise.collector.address_parsing import build_server_url, get_client_network, is_loopback, parse_host
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@loop_over(
    "host", ["localhost", "LocalHost", "127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@loop_over(
    "host",
    [
        *("", "127.evil.test", "127.0.0.1.nip.io", "127.1", "0.0.0.0", "::", "localhost.", "localhost.evil.test"),
        *("10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "127.0.0.1 ", "2130706433"),
    ],
)
def test_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("netloc", "name"),
    [("localhost:80", "localhost"), ("[::1]:80", "::1"), ("[::1", ""), ("", ""), ("EVIL.test", "evil.test")],
)
def test_the_name_in_a_host_header(netloc: str, name: str) -> None:
    assert parse_host(netloc) == name


@loop_over(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:5"),
        ("0.0.0.0", "http://127.0.0.1:5"),
        ("", "http://127.0.0.1:5"),
        ("::", "http://[::1]:5"),
        ("::1", "http://[::1]:5"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:5"),
        ("box.test", "http://box.test:5"),
    ],
)
def test_where_a_server_answers(host: str, url: str) -> None:
    assert build_server_url(host, 5) == url


def test_of_ipv6_a_whole_network_is_one_machine() -> None:
    assert (
        get_client_network("2001:db8::1")
        == get_client_network("2001:db8::ffff:1")
        != get_client_network("2001:db8:1::1")
    )
    assert get_client_network("10.0.0.1") != get_client_network("10.0.0.2")
    assert get_client_network("::ffff:10.0.0.1") == "::ffff:10.0.0.1"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.mark.process
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_server_on_an_ipv6_address_is_found_through_its_file(tmp_path, host):
    path = tmp_path / "spanwise.db"
    with SQLiteStore(path) as store, Server(store, host=host) as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert httpx.get(f"{server.url}/healthz").json()["store"] == store.path
        with connect(server.url) as client:
            assert client.count()["traces"] == 0
