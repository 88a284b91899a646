"""Several collectors on one ClickHouse and one PostgreSQL database, each a process of its own."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import NamedTuple

import httpx
import psutil
import pytest

from collector import full_store
from collector.clickhouse_server import ClickHouseServer
from collector.conftest import (  # noqa: F401  fixtures
    clickhouse_server,
    postgres,
)
from collector.making import child, run
from collector.postgres_server import PostgresServer
from collector.test_store_copy import exported
from integration.serving import Process, environment
from polling import until
from spanwise.collector import connect
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import StoreError
from spanwise.collector.records import Feedback, Key, Retention, iterate_pages
from spanwise.collector.stores import Store, open_backends
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.process
KEY = "the key of a test"
BROWSER = {"accept": "text/html", "host": "traces.test"}  # both collectors are behind one name


class Cluster(NamedTuple):
    traces: str
    control: str
    one: Process
    other: Process


def serve(traces: str, control: str, *options: str, port: int | None = None) -> Process:
    return Process(traces, port, ["--control", control, "--no-grpc", *options])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cluster(clickhouse_server: ClickHouseServer, postgres: PostgresServer) -> Iterator[Cluster]:  # noqa: F811
    """Two collectors that require keys."""
    with clickhouse_server.database() as traces:
        control = postgres.create_database()
        with closing(connect(traces, control=control)) as store:
            digest = sha256(KEY.encode()).hexdigest()
            store.save_key(Key(id="k", name="of a test", sha256=digest, scopes=("read", "write", "admin")))
        with serve(traces, control, "--require-key") as one, serve(traces, control, "--require-key") as other:
            yield Cluster(traces, control, one, other)


def at(collector: Process, key: str | None = KEY) -> HTTPStore:
    return HTTPStore(collector.url, key)


def test_spans_of_one_trace_may_reach_different_collectors(cluster: Cluster) -> None:
    root = run("root")
    children = [child(root, f"step {number}") for number in range(20)]
    with at(cluster.one) as one, at(cluster.other) as other:
        for number, span in enumerate(children):
            (one, other)[number % 2].append([span])
        other.append([root])
        for store in (one, other):
            [summary] = store.traces(trace_ids=(root.trace_id,))
            assert (summary.span_count, summary.name) == (21, "root")
            assert len(store.trace(root.trace_id).runs) == 21
            until(lambda store=store: store.trace(root.trace_id).complete, 30)  # type: ignore[misc]


def test_collectors_that_write_one_trace_at_once_lose_nothing(cluster: Cluster) -> None:
    root = run("root")
    spans = [child(root, f"step {number}") for number in range(60)]

    def send(collector: Process, mine: list[object]) -> None:
        with at(collector) as store:
            for span in mine:
                store.append([span])  # type: ignore[list-item]

    threads = [
        threading.Thread(target=send, args=(collector, [root, *spans[start::2]]))
        for start, collector in enumerate((cluster.one, cluster.other))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with at(cluster.one) as store:
        assert [each.span_count for each in store.traces(trace_ids=(root.trace_id,))] == [61]


def test_control_records_of_one_collector_are_those_of_the_other(cluster: Cluster) -> None:
    with at(cluster.one) as one, at(cluster.other) as other:
        lease = one.acquire("feed", "worker of one", 60)
        assert lease is not None
        assert other.acquire("feed", "worker of the other", 60) is None
        one.append([traced := run()])
        other.feedback(traced.trace_id, "helpful", True, author="ann")
        assert [each.key for each in one.trace(traced.trace_id).feedback] == ["helpful"]


def test_neither_command_line_nor_output_contains_a_password(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DB_PASSWORD", "geh@im")
    url = cluster.traces.replace("default@", "default:${TEST_DB_PASSWORD}@")
    with serve(url, cluster.control) as collector:
        command = Path(f"/proc/{collector.process.pid}/cmdline").read_bytes()
        pages = [httpx.get(f"{collector.url}{path}").text for path in ("/", "/metrics", "/healthz", "/readyz")]
        told = collector.stop()
    for text in (command.decode(), told, *pages):
        assert "geh@im" not in text
        assert "geh%40im" not in text
    assert "keeps clickhouse://default@127.0.0.1" in told


def test_a_password_that_is_typed_is_not_in_the_command_line(cluster: Cluster) -> None:
    with serve(cluster.traces.replace("default@", "default:geh%40im@"), cluster.control) as collector:
        command = Path(f"/proc/{collector.process.pid}/cmdline").read_bytes().decode()
        told = collector.stop()
    assert "geh" not in command + told
    assert "clickhouse://default:${SPANWISE_PASSWORD_" in command


def test_a_file_of_control_records_is_used_through_the_collector_that_has_it(
    clickhouse_server: ClickHouseServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = str(tmp_path / "control.db")
    with clickhouse_server.database() as traces:
        with serve(traces, file) as collector:
            with closing(connect(traces, control=file)) as store:
                assert store.where == collector.url
                store.append([traced := run()])
                assert store.why(traced.trace_id) == []
            with pytest.raises(StoreError, match=r"control\.db"):
                open_backends(traces, file)
            collector.stop()
        with closing(connect(traces, control=file)) as store:
            assert [each.trace_id for each in store.traces()] == [traced.trace_id]


def test_a_key_of_one_collector_opens_the_other_until_it_is_revoked(cluster: Cluster) -> None:
    secret = "another"
    with at(cluster.one) as one, at(cluster.other, secret) as other:
        with pytest.raises(StoreError, match="key is unknown"):
            other.traces()
        with closing(connect(cluster.traces, control=cluster.control)) as store:
            store.save_key(Key(id="l", name="l", sha256=sha256(secret.encode()).hexdigest(), scopes=("read",)))
        assert other.traces() == one.traces()
        with closing(connect(cluster.traces, control=cluster.control)) as store:
            store.delete_key("l")

        def is_refused() -> bool:
            try:
                other.traces()
            except StoreError:
                return True
            return False

        until(is_refused, 30)


def token_in(page: str) -> str:
    return re.findall(r'name="token" value="([0-9a-f]{80})"', page)[0]


def test_a_browser_may_change_collectors_with_every_request(cluster: Cluster) -> None:
    with at(cluster.one) as store:
        store.append([traced := run()])
    with httpx.Client(headers=BROWSER, timeout=60) as browser:
        page = browser.get(f"{cluster.one.url}/sign-in").text
        form = {"key": KEY, "next": "/", "token": token_in(page)}
        answer = browser.post(f"{cluster.other.url}/sign-in", data=form)
        assert answer.status_code == 303
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        address = f"/traces/{traced.trace_id}"
        for collector in (cluster.one, cluster.other):
            assert browser.get(f"{collector.url}{address}", headers=cookie).status_code == 200
        page = browser.get(f"{cluster.one.url}{address}", headers=cookie).text
        posted = browser.post(
            f"{cluster.other.url}{address}/feedback",
            data={"key": "helpful", "value": "1", "token": token_in(page)},
            headers={**cookie, "origin": "http://traces.test", "sec-fetch-site": "same-origin"},
        )
        assert posted.status_code == 303, html.unescape(posted.text)
        page = browser.get(f"{cluster.other.url}/", headers=cookie).text
        out = browser.post(f"{cluster.one.url}/sign-out", data={"token": token_in(page)}, headers=cookie)
        assert "Max-Age=0" in out.headers["set-cookie"]
    with at(cluster.other) as store:
        assert [each.key for each in store.trace(traced.trace_id).feedback] == ["helpful"]


def test_a_reader_of_one_collector_sees_what_the_other_receives(cluster: Cluster) -> None:
    seen: list[str] = []

    def watch() -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx.stream("GET", f"{cluster.other.url}/live", headers=headers, timeout=60) as events:
            for line in events.iter_lines():
                seen.append(line)
                if line.startswith("data:"):
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    until(lambda: bool(seen), 30)
    with at(cluster.one) as store:
        store.append([run()])
    thread.join(60)
    assert seen[-1] == "data: 1"


def test_retention_rules_are_stored_for_all(cluster: Cluster) -> None:
    with at(cluster.one) as one, at(cluster.other) as other:
        one.append([old := run(start_ns=1_000_000_000)])
        other.set_retention(Retention(max_age_ns=10**18))
        assert one.retention() == [Retention(max_age_ns=10**18)]
        assert one.prune(one.retention()[0]) == 1
        assert other.traces(trace_ids=(old.trace_id,)).items == ()


# ClickHouse is away


SENDER = """
import sys, time
from spanwise.tracer import configure, flush, shutdown, span
configure(url=sys.argv[1], export_interval=0.1)
for number in range(30):
    with span(f"sent {number}"):
        pass
    time.sleep(0.1)
flush(5)
shutdown()
"""


@pytest.fixture
def own_server() -> Iterator[ClickHouseServer]:
    """A ClickHouse server that this test may kill."""
    server = ClickHouseServer()
    if not server.can_be_killed:
        pytest.skip("a real server is not killed")
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.long
def test_while_clickhouse_is_away_senders_are_told_so_and_nothing_is_lost(
    own_server: ClickHouseServer,
    postgres: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(own_server.database())
        collector = stack.enter_context(serve(url, postgres.create_database()))
        acknowledged = [run(f"kept {number}") for number in range(20)]
        with at(collector, None) as store:
            for each in acknowledged:
                store.append([each])
        own_server.kill()
        until(lambda: httpx.get(f"{collector.url}/readyz").status_code == 503, 30)
        assert "why" in httpx.get(f"{collector.url}/readyz").json()
        assert httpx.get(f"{collector.url}/healthz").status_code == 200
        refused = httpx.post(f"{collector.url}/v1/traces", json=OTLP, timeout=90)
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
        env = {**environment(), "SPANWISE_SPILL_DIR": str(tmp_path / "spool")}
        sender = subprocess.Popen([sys.executable, "-c", SENDER, collector.url], env=env)
        assert sender.wait(120) == 0
        own_server.start()
        until(lambda: httpx.get(f"{collector.url}/readyz").status_code == 200, 60)
        subprocess.run(
            [sys.executable, "-c", "from spanwise.cli import main; main()", "spool", "send"],
            env=env,
            check=False,
            timeout=120,
        )
        with at(collector, None) as store:
            until(lambda: store.count()["traces"] >= 50, 60)
            names = {trace.name for trace in store.each()}
        assert {each.name for each in acknowledged} <= names
        assert {f"sent {number}" for number in range(30)} <= names


OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "ab" * 16,
                            "spanId": "cd" * 8,
                            "name": "refused",
                            "startTimeUnixNano": "1750000000000000000",
                            "endTimeUnixNano": "1750000001000000000",
                        }
                    ]
                }
            ]
        }
    ]
}


# Monitors

RULES = """
import time
from spanwise.evaluators import evaluator, monitor

@evaluator
def chosen(outputs):
    time.sleep(0.005)
    return len(str(outputs)) / 100

monitor("r", evaluators=[chosen], sample_rate=1.0, concurrency=8)
"""


@contextmanager
def monitoring(file: Path, *options: str) -> Iterator[psutil.Process]:
    command = [sys.executable, "-c", "from spanwise.cli import main; main()", "monitor", str(file), *options]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def workers(monitor: psutil.Process) -> list[psutil.Process]:
    def is_worker(process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return "monitors.worker" in " ".join(process.cmdline())
        return False

    return [process for process in monitor.children() if is_worker(process)]


@pytest.mark.slow
@pytest.mark.long
def test_four_workers_of_two_monitors_lose_and_double_nothing_though_two_are_killed(
    clickhouse_server: ClickHouseServer,  # noqa: F811
    postgres: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    count, random = 2_000, Random(1)
    file = tmp_path / "rules.py"
    file.write_text(RULES)
    with ExitStack() as stack:
        traces, control = stack.enter_context(clickhouse_server.database()), postgres.create_database()
        one, other = (stack.enter_context(serve(traces, control)) for _ in range(2))
        store = stack.enter_context(closing(connect(traces, control=control)))
        # one monitor works through a collector, the other one on the databases
        through = stack.enter_context(monitoring(file, "--workers", "2", "--store", other.url))
        direct = stack.enter_context(monitoring(file, "--workers", "2", "--store", traces, "--control", control))
        until(lambda: all(len(workers(monitor)) == 2 for monitor in (through, direct)), 60)
        until(lambda: any(rule.name == "r" for rule in store.rules()), 60)
        with HTTPStore(one.url, None) as collector:
            for start in range(0, count, 250):
                collector.append([run(outputs="x" * (number % 90)) for number in range(start, start + 250)])
        for monitor in (through, direct):
            scored = store.status()[0].counts.get("scored", 0)
            until(lambda scored=scored: store.status()[0].counts.get("scored", 0) > scored, 120)  # type: ignore[misc]
            random.choice(workers(monitor)).kill()
        until(lambda: store.status()[0].counts.get("scored", 0) >= count, 400)
        [status] = store.status()
        counts = {verdict: number for verdict, number in status.counts.items() if number}
        assert (counts, status.behind) == ({"scored": count}, 0)
        scores = [each for page in pages(store) for each in page]
        assert len(scores) == len({each.target.trace_id for each in scores}) == count
        assert {one.verdict for one in iterate_pages(partial(store.decisions, limit=1000))} == {"scored"}


def pages(store: Store) -> Iterator[Sequence[Feedback]]:
    cursor = None
    while True:
        page = store.feedbacks(key="chosen", limit=1000, cursor=cursor)
        yield page.items
        if (cursor := page.next) is None:
            return


# A copy that is killed

COPYING = """
import os, signal, sys
from spanwise.collector.import_export import copy_store, find_state_file, open_source, open_target, store_copy
store_copy.TRACES_PER_STEP = store_copy.FEEDBACK_PER_STEP = 5
source, target, control, at, left = *sys.argv[1:5], int(sys.argv[5])
def report(what, count):
    global left
    left -= what == at
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
with open_source(source, None) as opened, open_target(target, control) as empty:
    copy_store(opened, empty, find_state_file(source, target), report)
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_copy_to_the_databases_that_was_killed_is_continued_by_the_command(
    clickhouse_server: ClickHouseServer,  # noqa: F811
    postgres: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    source, back = tmp_path / "spanwise.db", tmp_path / "back.db"
    with SQLiteStore(source) as store:
        full_store.fill(store)
    with clickhouse_server.database() as traces:
        control = postgres.create_database()
        for at, steps in (("traces", "3"), ("feedback", "2"), ("decisions", "1"), ("compared traces", "1")):
            command = [sys.executable, "-c", COPYING, str(source), traces, control, at, steps]
            assert subprocess.run(command, env=environment(), check=False, timeout=120).returncode == -9
        for places in ((str(source), traces), (traces, str(back))):
            command = [sys.executable, "-c", "from spanwise.cli import main; main()", "db", "copy", *places]
            said = subprocess.run(
                [*command, "--control", control], env=environment(), capture_output=True, text=True, timeout=120
            )
            assert said.returncode == 0, said.stderr
            assert "copied and compared: 37 traces" in said.stderr
    assert exported(back) == exported(source)
