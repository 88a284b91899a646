"""Deletions and changes of keys are written down: who, what, when, from where, in the log and in the store."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from collector.making import run
from spanwise.collector.client import HTTPStore
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import Forbidden, Unavailable
from spanwise.collector.records import AuditEvent, Experiment, Feedback, Key, Retention, Rule, Target, iterate_pages
from spanwise.collector.server import Server
from spanwise.collector.stores.control import control_operations
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


def key(secret: str, **fields: object) -> Key:
    return Key(id=f"id-{secret}", name=f"{secret}'s", sha256=sha256(secret.encode()).hexdigest(), **fields)  # type: ignore[arg-type]


def said(store: SQLiteStore) -> list[tuple[str, int]]:
    return [(event.action, event.count) for event in store.audit()]


def test_each_deletion_and_each_change_of_a_key_is_kept_newest_first(store: SQLiteStore) -> None:
    store.append([run(), first := run()], [Feedback(target=Target(session_id="s"), key="k", score=1.0, id="f" * 32)])
    store.save_key(key("a"))
    store.save_experiment(Experiment(id="e", name="n", dataset="d"))
    store.save_examples("d", [])
    store.save_rule(Rule(name="r", version="1", evaluators=()))
    store.set_retention(Retention(max_age_ns=10**18))
    store.delete_rule("r")
    store.delete_dataset("d")
    store.delete_experiment("e")
    store.delete_feedback(["f" * 32])
    store.delete(trace_ids=[first.trace_id])
    store.delete_key("id-a")
    assert said(store) == [
        *(("delete_key", 1), ("delete", 1), ("delete_feedback", 1), ("delete_experiment", 1), ("delete_dataset", 1)),
        *(("delete_rule", 1), ("set_retention", 1), ("save_key", 1)),
    ]


def test_what_found_nothing_to_delete_is_no_event(store: SQLiteStore) -> None:
    store.delete(name="nobody")
    store.delete_key("none")
    store.delete_feedback(["f" * 32])
    assert said(store) == []


def test_it_says_who_what_when_and_from_where(store: SQLiteStore) -> None:
    store.save_key(key("boss", scopes=("write",)))
    store.append([kept := run()])
    before = time.time_ns()
    with Server(store, host="0.0.0.0") as server:
        answer = httpx.delete(f"{server.url}/api/traces/{kept.trace_id}", headers={"x-api-key": "boss"}, timeout=60)
        assert answer.status_code == 200
    event = store.audit().items[0]
    assert (event.action, event.key, event.name, event.address) == ("delete", "id-boss", "boss's", "127.0.0.1")
    assert json.loads(event.about)["filter"] == {"trace_ids": [kept.trace_id]}
    assert before <= event.at_ns <= time.time_ns()


def test_pausing_a_rule_is_written_down_with_the_actor_and_pacing_is_not(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save_key(key("boss", scopes=("write",)))
    store.save_rule(Rule(name="r", version="1", evaluators=()))
    with Server(store, host="0.0.0.0") as server, caplog.at_level(logging.INFO, "spanwise.audit"):
        headers = {"x-api-key": "boss"}
        body = {"enabled": False, "settings": {"paced": 0.5}}
        assert httpx.patch(f"{server.url}/api/rules/r", json=body, headers=headers, timeout=60).status_code == 200
        assert httpx.patch(f"{server.url}/api/rules/r", json={"metadata": {}}, headers=headers, timeout=60).is_success
    [event] = [event for event in store.audit() if event.action == "change_rule"]
    assert (event.key, event.name, event.address) == ("id-boss", "boss's", "127.0.0.1")
    assert json.loads(event.about) == {"name": "r", "project": "default", "enabled": False}
    assert '"audit": "change_rule"' in caplog.text
    [rule] = store.rules()
    assert rule.paused_by == "boss's (127.0.0.1)"
    [status] = store.status()
    assert re.fullmatch(
        r"paused by boss's \(127\.0\.0\.1\) since \d{4}-\d\d-\d\d \d\d:\d\d UTC",
        rule_report.standing(status, time.time_ns())[0],
    )
    store.append([kept := run()])
    [why] = store.why(kept.trace_id)
    assert why.reason.startswith("filtered: the rule is paused by boss's (127.0.0.1) since ")


def test_without_a_server_it_is_the_user_of_the_process(store: SQLiteStore) -> None:
    store.save_key(key("a", scopes=("ingest",), project="p"))
    (event,) = store.audit()
    assert (event.key, event.address.startswith("process ")) == ("", True)
    assert event.name
    assert json.loads(event.about)["key"] == {
        "id": "id-a",
        "name": "a's",
        "scopes": ["ingest"],
        "project": "p",
        "expires_ns": None,
    }


def test_retention_is_named_as_what_it_is(store: SQLiteStore) -> None:
    store.append([run()])
    store.set_retention(Retention(max_bytes=0))
    store.run_hourly_jobs()
    assert next((event.action, event.name) for event in store.audit()) == ("prune", "retention")
    store.save_key(key("a"))
    assert store.audit().items[0].name != "retention"


def test_a_revoked_key_is_named(store: SQLiteStore) -> None:
    store.save_key(key("a"))
    store.delete_key("id-a")
    assert json.loads(store.audit().items[0].about) == {"id": "id-a", "name": "a's"}


def test_what_ended_halfway_is_written_down(tmp_path: Path) -> None:
    class Failing(SQLiteStore):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            removing = self._traces.delete_traces

            def remove(gone):  # type: ignore[no-untyped-def]
                removing([next(iter(gone))])
                raise Unavailable("the disk is gone")

            self._traces.delete_traces = remove  # type: ignore[method-assign]

    with Failing(tmp_path / "failing.db") as failing:
        failing.append([run()])
        with pytest.raises(Unavailable):
            failing.delete(status="ok")
        assert said(failing) == [("delete", 1)]


class Forgetful(SQLiteStore):
    """Keeps nothing of what was done."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._control.record_audit_event = self._fail  # type: ignore[method-assign]

    def _fail(self, event: AuditEvent) -> None:
        raise Unavailable("the disk is full")


def test_what_was_done_stays_done_where_it_cannot_be_written_down(tmp_path: Path, caplog) -> None:  # type: ignore[no-untyped-def]
    with Forgetful(tmp_path / "a.db") as store, caplog.at_level(logging.INFO):
        store.save_key(key("a"))
        assert store.delete_key("id-a")
    assert [record.name for record in caplog.records] == ["spanwise.audit", "spanwise.collector"] * 2
    assert "the audit event is only in the log, because it could not be stored: the disk is full" in caplog.text


def test_the_log_has_one_line_of_json_whatever_stands_in_it(store: SQLiteStore, caplog) -> None:  # type: ignore[no-untyped-def]
    name = 'x\n{"audit": "delete_key"}\r\x1b[2J\u2028\u202e\x85 quote " end'
    with caplog.at_level(logging.INFO, "spanwise.audit"):
        store.save_key(replace(key("a"), name=name))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "spanwise.audit"]
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["audit"] == "save_key"
    assert json.loads(json.loads(line)["about"])["key"]["name"] == name
    assert sha256(b"a").hexdigest() not in line


def test_long_ones_are_cut(store: SQLiteStore) -> None:
    store.save_key(replace(key("a"), name="n" * 100_000))
    (event,) = store.audit()
    assert len(event.about) == 1000


def test_no_number_of_deletions_covers_up_a_key(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(control_operations.MAX_EVENTS, False, 150)
    monkeypatch.setitem(control_operations.MAX_EVENTS, True, 5)
    store.save_key(key("a"))
    for number in range(499):
        store.record_audit_event(AuditEvent(action="delete", about=str(number)))
    kept = list(iterate_pages(store.audit))
    assert (len(kept), kept[-1].action) == (151, "save_key")
    assert [event.about for event in kept[:2]] == ["498", "497"]


def test_it_is_read_page_by_page_also_after_a_restart(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        for name in "abc":
            store.save_key(key(name))
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server, HTTPStore(server.url) as client:
        first = client.audit(limit=2)
        rest = client.audit(limit=2, cursor=first.next)
        names = [json.loads(event.about)["key"]["name"] for event in (*first, *rest)]
    assert (names, rest.next) == (["c's", "b's", "a's"], None)


@pytest.mark.process
def test_only_a_key_that_administers_all_projects_reads_it(store: SQLiteStore) -> None:
    for name, fields in (("w", {}), ("p", {"scopes": ("admin",), "project": "p"}), ("admin", {"scopes": ("admin",)})):
        store.save_key(key(name, **fields))
    with Server(store, host="0.0.0.0") as server:
        for name in ("w", "p"):
            with HTTPStore(server.url, name) as client, pytest.raises(Forbidden):
                client.audit()
        with HTTPStore(server.url, "admin") as client:
            assert len(client.audit()) == 3
