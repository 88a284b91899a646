"""`spanwise traces`, run as people run them, over a server and on a file."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from collector.making import child, run
from integration.serving import COMMAND, environment
from spanwise.cli.app import app, report_errors
from spanwise.collector import filters
from spanwise.collector.client import HTTPStore
from spanwise.collector.records import Document, Feedback, OpenRun, Target, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

ROOT = run("answer", trace_id="a" * 32, inputs={"question": "why [bold]?"}, outputs="because", project="p")
SEARCH = child(ROOT, kind="retriever", documents=(Document("some text", "doc-1", 0.5),))
CALL = child(ROOT, "chat", kind="llm", model="m-1", usage=Usage(10, 2), cost=0.001, status="error", error="Timeout: no")


def spanwise(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], catch_exceptions=False)


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as told, report_errors():
        app([*arguments])
    return str(told.value)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([ROOT, SEARCH, CALL, run("other", project="q")])
        store.add_feedback(
            [Feedback(target=Target(trace_id="a" * 32, span_id=SEARCH.span_id), key="recall", score=0.25)]
        )
        with Server(store) as server:
            yield server.url


def test_list(url: str) -> None:
    found = spanwise("traces", "list", "--store", url, "--json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in found] == ["other", "answer"]
    result = spanwise("traces", "list", "--store", url)
    assert (result.exit_code, url in result.stderr) == (0, True)
    assert "answer" in result.stdout


@pytest.mark.process
@pytest.mark.parametrize("condition", ["name=answer", "feedback=recall<0.5", "latency_ms>=1", "any_name=search"])
def test_list_with_conditions(url: str, condition: str) -> None:
    found = spanwise("traces", "list", "--store", url, "--json", "-w", condition, "-w", "project=p").stdout.splitlines()
    assert [json.loads(line)["trace_id"] for line in found] == ["a" * 32]


def test_show(url: str) -> None:
    shown = spanwise("traces", "show", "a" * 32, "--store", url).stdout
    for part in ("answer", "why [bold]?", "because", "doc-1 0.500", "some text", "m-1", "10 → 2 tokens", "Timeout: no"):
        assert part in shown
    assert "★ recall = 0.25" in shown
    found = json.loads(spanwise("traces", "show", "a" * 32, "--store", url, "--json").stdout)
    assert {one["name"] for one in found["runs"]} == {"answer", "search", "chat"}


def begin(url: str, **fields: Any) -> OpenRun:
    """A run that has started, as the collector at `url` has heard of it."""
    given = {"trace_id": "b" * 32, "span_id": "c" * 16, "name": "slow", "start_ns": time.time_ns() - 10**9}
    begun = OpenRun(**{**given, **fields})
    with HTTPStore(url) as store:
        store.add_running([begun])
    return begun


def test_show_of_a_trace_of_which_nothing_has_ended(url: str) -> None:
    begin(url)
    shown = spanwise("traces", "show", "bbb", "--store", url).stdout
    assert ("no run of it has ended yet" in shown, "slow is running since" in shown) == (True, True)
    [found] = map(json.loads, spanwise("traces", "show", "b" * 32, "--store", url, "--json").stdout.splitlines())
    assert (found["running"], found["name"], found["span_id"]) == (True, "slow", "c" * 16)
    assert "there is no trace" in refusal("traces", "show", "d" * 32, "--store", url)


def test_list_says_what_is_running_and_what_was_dropped(url: str) -> None:
    begin(url, trace_id=ROOT.trace_id)
    counts = {
        "spanwise.local_root": "e" * 16,
        "spanwise.spans.started": 5,
        "spanwise.spans.open": 0,
        "spanwise.spans.dropped": 4,
    }
    with HTTPStore(url) as store:
        store.append([run("leaky", span_id="e" * 16, attributes=counts)])
    listed = spanwise("traces", "list", "--store", url).stdout
    assert ("3, 1 running" in listed, "1, 4 dropped" in listed) == (True, True)


def test_show_stands_circles_of_parents(tmp_path: Path) -> None:
    first = replace(ROOT, parent_id=SEARCH.span_id)
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([first, replace(SEARCH, parent_id=first.span_id)])
    shown = spanwise("traces", "show", "a" * 32, "--store", str(tmp_path / "a.db")).stdout
    assert ("answer" in shown, "search" in shown) == (True, True)


def test_delete(url: str) -> None:
    assert "name the traces" in refusal("traces", "delete", "--store", url, "--yes")
    assert spanwise("traces", "delete", "--store", url, "-w", "project=q", "--yes").exit_code == 0
    assert spanwise("traces", "delete", "a" * 32, "--store", url, "--yes").exit_code == 0
    assert spanwise("traces", "list", "--store", url, "--json").stdout == ""


def test_faults_of_the_user_cost_one_line(url: str) -> None:
    assert "invalid condition" in refusal("traces", "list", "--store", url, "-w", "name")
    assert "did you mean 'name'" in refusal("traces", "list", "--store", url, "-w", "nmae=x")
    assert "f" * 32 in refusal("traces", "show", "f" * 32, "--store", url)
    assert "invalid time 'yesterday'" in refusal("traces", "list", "--store", url, "--since", "yesterday")


def test_the_beginning_of_an_id_will_do(url: str) -> None:
    assert (
        spanwise("traces", "show", "aaaa", "--store", url).stdout
        == spanwise("traces", "show", "a" * 32, "--store", url).stdout
    )
    assert "there is no trace 'bbbb'" in refusal("traces", "show", "bbbb", "--store", url)
    assert "matches the ids of 2 traces" in refusal("traces", "show", "", "--store", url)


def test_ids_are_whole_where_no_terminal_ends(url: str) -> None:
    assert "a" * 32 in spanwise("traces", "list", "--store", url).stdout


def test_a_mistyped_path_is_no_empty_store(tmp_path: Path) -> None:
    assert refusal("traces", "list", "--store", str(tmp_path / "asay.db")).endswith("; name another with --store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_nothing_here_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanwise.collector.store_connection.DEFAULT_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    assert "no file 'spanwise.db' here and no server on port 4318; name one with --store" in refusal("traces", "list")


def test_a_port_that_cannot_be(tmp_path: Path) -> None:
    result = spanwise("serve", "--port", "99999", "--store", str(tmp_path / "a.db"))
    assert result.exit_code == 2
    assert "--port" in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--no-grpc", "--grpc-port", "4317"], "--grpc-port 4317 and --no-grpc contradict each other"),
        (["--port", "4319", "--grpc-port", "4319"], "--port and --grpc-port are both 4319"),
        (
            ["--port", "0", "--feedback-to", "ftp://a.test"],
            "--feedback-to: 'ftp://a.test' is not the URL of an OTLP endpoint",
        ),
    ],
)
def test_options_of_a_server_that_contradict_each_other(tmp_path: Path, options: list[str], told: str) -> None:
    assert told in refusal("serve", "--store", str(tmp_path / "a.db"), *options)


@pytest.mark.process
def test_tail_shows_what_is_under_way_once_and_then_its_trace(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        begun = begin(server.url)
        ended = run("slow", trace_id=begun.trace_id, span_id=begun.span_id, start_ns=begun.start_ns)
        store.append([child(ended, "first to end")])
        command = [*COMMAND, "traces", "tail", "--every", "0.1", "--store", server.url]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as tail:
            limit = threading.Timer(120, tail.kill)  # rather than wait for ever
            limit.start()
            assert tail.stdout is not None
            first = tail.stdout.readline()
            store.append([ended])
            second = tail.stdout.readline()
            store.append([run("other", start_ns=time.time_ns())])
            third = tail.stdout.readline()
            limit.cancel()
            tail.kill()
    assert ("running" in first, "slow" in first, begun.trace_id in first) == (True, True, True)
    assert ("slow" in second, "  ok  " in second, begun.trace_id in second) == (True, True, True)
    assert "other" in third


@pytest.mark.process
def test_tail_shows_every_new_trace_of_a_burst(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        store.append([run("old", start_ns=time.time_ns() - n) for n in range(1, 1101)])
        command = [*COMMAND, "traces", "tail", "--every", "0.1", "--json", "--store", server.url]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as tail:
            limit = threading.Timer(120, tail.kill)  # rather than wait for ever
            limit.start()
            shown = threading.Thread(target=tail.stdout.readline)  # type: ignore[union-attr]
            shown.start()
            while shown.is_alive() and tail.poll() is None:  # until it follows
                store.append([run("first", start_ns=time.time_ns())])
                shown.join(0.2)
            store.append([run("burst", start_ns=time.time_ns()) for _ in range(1500)])
            names = (json.loads(line)["name"] for line in tail.stdout or ())
            told = [next(name for name in names if name != "first") for _ in range(1500)]
            limit.cancel()
            tail.kill()
    assert set(told) == {"burst"}


def test_a_list_steers_no_terminal(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([run("a\x1b[2Jb", trace_id="b" * 32)])
    assert r"a\x1b[2Jb" in spanwise("traces", "list", "--store", str(tmp_path / "a.db")).stdout


def test_traces_are_listed_in_another_order(url: str) -> None:
    for sort, names in {
        "-cost": ["answer", "other"],
        "errors": ["answer", "other"],
        "-start": ["other", "answer"],
    }.items():
        found = spanwise("traces", "list", "--store", url, "--json", f"--sort={sort}").stdout.splitlines()
        assert [json.loads(line)["name"] for line in found] == names
    assert "cannot sort by 'nothing'; expected one of: start, latency_ms" in refusal(
        "traces", "list", "--store", url, "--sort", "nothing"
    )


def test_a_sorted_list_says_which_traces_it_sorted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MAX_SORTED", 1)
    shown = spanwise("traces", "list", "--store", url, "--sort=cost").output
    assert "sorted: the newest 1 matching traces; add --since" in " ".join(shown.split())


def test_datasets_and_experiments_are_listed_in_another_order(url: str) -> None:
    for group in ("datasets", "experiments"):
        assert spanwise(group, "list", "--store", url, "--sort=-examples").exit_code == 0
        assert "cannot sort by 'cost'" in refusal(group, "list", "--store", url, "--sort=cost")


def test_a_list_has_columns_for_labels_only_if_a_trace_has_them(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    labels: dict[str, Any] = {"agent_name": "plan\x1b[2Jner", "finish_reasons": ("stop",)}
    call = run("call", prompt_name="greet", prompt_version="v2", time_to_first_token_ms=120.0, **labels)
    with SQLiteStore(path) as store:
        store.append([run("plain")])
    assert "prompt" not in spanwise("traces", "list", "--store", path).stdout
    with SQLiteStore(path) as store:
        store.append([call])
    table = spanwise("traces", "list", "--store", path).stdout
    for words in ("prompt", "greet@v2", r"plan\x1b[2Jner", "finish reason", "stop", "first token", "120 ms"):
        assert words in table
    found = spanwise("traces", "list", "--store", path, "--json", "--where", "prompt=greet", "--where", "agent=x")
    assert found.stdout == ""
    found = spanwise("traces", "list", "--store", path, "--json", "--where", "time_to_first_token_ms>=100")
    assert json.loads(found.stdout)["prompts"] == {"greet": ["v2"]}
    shown = spanwise("traces", "show", call.trace_id, "--store", path).stdout
    for words in ("prompt: greet@v2", "agent: plan", "first token: 120 ms", "finish reason: stop"):
        assert words in shown


def test_aggregate_compares_the_versions_of_a_prompt(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with SQLiteStore(path) as store:
        for version, score in (("v1", 0.0), ("v1", 0.5), ("v2", 1.0)):
            call = run("call", prompt_name="greet", prompt_version=version, cost=0.5)
            store.append([call], [Feedback(target=Target(trace_id=call.trace_id), key="good", score=score)])
    shown = spanwise("traces", "aggregate", "--by", "prompt_version", "--where", "prompt=greet", "--store", path).stdout
    for words in ("prompt_version", "greet@v1", "greet@v2", "good=0.25 (n 2)", "good=1 (n 1)"):
        assert words in shown
    found = spanwise("traces", "aggregate", "--by", "prompt", "--every", "1h", "--json", "--store", path).stdout
    assert [(json.loads(line)["group"], json.loads(line)["traces"]) for line in found.splitlines()] == [("greet", 3)]
    assert "cannot group by 'nothing'" in refusal("traces", "aggregate", "--by", "nothing", "--store", path)
