"""The tests' ClickHouse server answers clickhouse-connect as a real server does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.clickhouse_server import ClickHouseServer


def connect(url: str) -> Client:
    address = urlsplit(url)
    return clickhouse_connect.get_client(
        host=address.hostname,
        port=address.port or 8123,
        username=address.username,
        password=address.password or "",
        database=address.path.strip("/"),
        autogenerate_session_id=False,
    )


@pytest.fixture
def client(clickhouse_url: str) -> Iterator[Client]:
    with connect(clickhouse_url) as client:
        client.command("CREATE TABLE texts (n UInt64, text String) ENGINE = MergeTree ORDER BY n")
        yield client


def test_inserted_rows_are_found_by_parameters(client: Client) -> None:
    odd = "it's \\ 50 %\n\t\0 {x:String} 語"
    client.insert("texts", [[1, odd], [2, "plain"]], column_names=["n", "text"])
    sql = "SELECT n FROM texts WHERE text = {text:String} AND has({several:Array(String)}, text)"
    assert client.query(sql, parameters={"text": odd, "several": ["a", odd]}).result_rows == [(1,)]


def test_long_parameters_are_sent_as_a_form(client: Client) -> None:
    client.insert("texts", [[1, "x" * 100]], column_names=["n", "text"])
    several = [f"{n:0100}" for n in range(2_000)] + ["x" * 100]
    sql = "SELECT n FROM texts WHERE has({several:Array(String)}, text)"
    assert client.query(sql, parameters={"several": several}).result_rows == [(1,)]


def test_settings_hold_for_one_request(client: Client) -> None:
    sql = "SELECT getSetting('max_block_size')"
    before = client.query(sql).result_rows
    assert client.query(sql, settings={"max_block_size": 17}).result_rows == [(17,)]
    assert client.query(sql).result_rows == before


def test_errors_carry_the_code_of_the_engine(client: Client) -> None:
    with pytest.raises(DatabaseError, match="code: 62"):
        client.query("SELEC 1")
    with pytest.raises(DatabaseError, match="code: 60"):
        client.query("SELECT * FROM missing")
    assert client.query("SELECT 1").result_rows == [(1,)]


def test_requests_run_at_the_same_time(clickhouse_url: str) -> None:
    with connect(clickhouse_url) as first, connect(clickhouse_url) as second, ThreadPoolExecutor(2) as threads:
        first.command("CREATE TABLE texts (n UInt64) ENGINE = MergeTree ORDER BY n")
        waiting = threads.submit(first.query, "SELECT sleep(0.8)")
        second.insert("texts", [[1]], column_names=["n"])
        assert second.query("SELECT n FROM texts").result_rows == [(1,)]
        assert not waiting.done()


@pytest.mark.process
def test_a_killed_server_keeps_what_it_acknowledged() -> None:
    server = ClickHouseServer()
    try:
        if not server.can_be_killed:
            pytest.skip("a real server is not killed")
        server.execute("CREATE TABLE default.texts (n UInt64) ENGINE = MergeTree ORDER BY n")
        server.execute("INSERT INTO default.texts VALUES (1), (2)")
        server.kill()
        server.start()
        assert server.execute("SELECT sum(n) FROM default.texts") == "3\n"
    finally:
        server.stop()
