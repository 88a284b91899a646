"""What Spanwise's collectors hear beside spans: runs that go on for long, and what has become of all spans of a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from spanwise.tracer import attribute_names as names
from spanwise.tracer import configure, current_run, feedback, flush, shutdown, span, stats, trace
from spanwise.tracer.export import span_queue
from spanwise.tracer.process_runtime import get_runtime
from spanwise.tracer.trace_capture import capture

from .conftest import Sink, until

SPANWISE = {names.COLLECTOR_HEADER: "1"}


@pytest.fixture
def spanwise(sink: Sink) -> Sink:
    """A collector that calls itself Spanwise's."""
    sink.answer = lambda path, body: (200, SPANWISE, b"")
    return sink


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on for long after a twentieth of a second, and is looked for as often."""
    monkeypatch.setattr(span_queue, "REPORT_AGE_NS", 50_000_000)
    monkeypatch.setenv("SPANWISE_EXPORT_INTERVAL", "0.05")


def events(sink: Sink, name: str) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """The events of a name: each record, its attributes, and those of its resource."""
    found = []
    for path, _, body in list(sink.requests):
        message = ExportLogsServiceRequest.FromString(body if path == "/v1/logs" else b"")
        for resource in message.resource_logs:
            records = [record for scope in resource.scope_logs for record in scope.log_records]
            own = plain(resource.resource)
            found += [(r, plain(r), own) for r in records if r.event_name == name]
    return found


def plain(message: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in message.attributes}


def started(sink: Sink) -> list[str]:
    return [attributes[names.STARTED_NAME] for _, attributes, _ in events(sink, names.STARTED_EVENT)]


def report(sink: Sink) -> dict[str, Any]:
    """The newest report."""
    _, attributes, _ = events(sink, names.REPORT_EVENT)[-1]
    counts = {key.rpartition(".")[2]: value for key, value in attributes.items()}
    return {**counts, "dropped": json.loads(counts["dropped"])}


def test_runs_that_go_on_are_told_of_while_they_do(spanwise: Sink) -> None:
    configure(url=spanwise.url)
    with span("root", kind="agent") as root, span("long", kind="tool") as long:
        with span("short"):
            pass
        until(lambda: {"root", "long"} <= set(started(spanwise)))  # "short" as well, where the machine is slow
        assert {s.name for s in spanwise.spans()} <= {"short"}
    found = events(spanwise, names.STARTED_EVENT)
    [(record, attributes)] = [(r, a) for r, a, _ in found if a[names.STARTED_NAME] == "long"]
    assert (record.trace_id.hex(), record.span_id.hex()) == (long.trace_id, long.span_id)
    assert record.time_unix_nano == long.span._start_time  # type: ignore[attr-defined]
    assert attributes == {
        names.STARTED_NAME: "long",
        names.KIND: "TOOL",
        names.STARTED_PARENT: root.span_id,
        names.LOCAL_ROOT: root.span_id,
    }


def test_each_is_told_once_and_is_neither_a_span_nor_feedback(spanwise: Sink) -> None:
    configure(url=spanwise.url)
    with span("root"):
        until(lambda: started(spanwise))
        flush(60)
        flush(60)
    assert flush(60)
    assert started(spanwise) == ["root"]
    assert stats().delivered == 1


def test_other_collectors_hear_nothing_of_it(sink: Sink) -> None:
    configure(url=sink.url)
    with span("root"):
        until(lambda: sink.requests)  # an empty request, which shows whose collector it is
        until(lambda: not get_runtime().delivery.account.unreported)
    assert flush(60)
    assert [(path, bool(body)) for path, _, body in sink.requests] == [("/v1/traces", False), ("/v1/traces", True)]


def test_while_the_collector_is_away_nothing_of_it_goes_to_the_disk(spanwise: Sink, tmp_path: Path) -> None:
    spanwise.answer = lambda path, body: (503, {}, b"")
    configure(url=spanwise.url, spill_dir=str(tmp_path))
    with span("root"):
        time.sleep(0.06)
        assert flush(60).spilled == 0
        spanwise.answer = lambda path, body: (200, SPANWISE, b"")
        flush(60)  # does not wait for the back-off
        until(lambda: started(spanwise) == ["root"])
    assert list(tmp_path.glob("*/*.spool")) == []


def test_the_name_is_redacted(spanwise: Sink) -> None:
    import re

    configure(url=spanwise.url, redact=[re.compile("secret")])
    with span("a secret \ud800"):
        until(lambda: started(spanwise))
    assert b"secret" not in spanwise.bytes()


def test_captured_and_unsampled_traces_are_not_told_of(spanwise: Sink) -> None:
    configure(url=spanwise.url, sample_rate=0.0)
    with capture("experiment"), span("unsampled"):
        time.sleep(0.06)
    with span("unsampled"):
        time.sleep(0.06)
        get_runtime().delivery.begin()
        flush(60)
    assert not get_runtime().delivery.account.unreported
    assert spanwise.requests == []


def test_spans_that_nobody_ends_are_told_of_and_let_go(spanwise: Sink) -> None:
    configure(url=spanwise.url)
    tracer = get_runtime().provider.get_tracer("x")
    for _ in range(5):
        tracer.start_span("never ended")
    until(lambda: len(started(spanwise)) == 5)
    until(lambda: not get_runtime().delivery.account.unreported)


def test_a_joined_provider_s_runs_are_told_of_too(spanwise: Sink) -> None:
    configure(url=spanwise.url, provider=TracerProvider())
    with span("root"), span("child"):
        until(lambda: len(started(spanwise)) == 2)
    assert flush(60)
    assert report(spanwise)["started"] == 2
    [(_, _, resource)] = events(spanwise, names.REPORT_EVENT)[-1:]
    with_spans = [body for path, _, body in spanwise.requests if path == "/v1/traces" and body]
    assert resource[names.INSTANCE].encode() in with_spans[-1]


# -- what a process reports --


@trace
def leaf(x: int) -> int:
    current_run().feedback("seen", x)
    return 1 // x


def test_a_flush_tells_what_has_become_of_all_spans(spanwise: Sink) -> None:
    configure(url=spanwise.url)
    for _ in range(10):
        leaf(1)
    feedback("1" * 32, "thumb", True)
    with span("open"):
        assert flush(60)
    expected = {"started": 11, "open": 1, "delivered": 10, "spilled": 0, "pending": 0, "dropped": {}}
    assert report(spanwise) == {**expected, "pid": os.getpid()}
    [(record, _, resource)] = events(spanwise, names.REPORT_EVENT)[-1:]
    assert (record.trace_id, record.span_id, len(resource[names.INSTANCE])) == (b"", b"", 36)


def test_nothing_new_is_nothing_to_tell(spanwise: Sink) -> None:
    configure(url=spanwise.url)
    leaf(1)
    flush(60)
    said = len(events(spanwise, names.REPORT_EVENT))
    flush(60)
    assert len(events(spanwise, names.REPORT_EVENT)) == said


def test_reports_come_by_themselves_at_most_every_so_often(spanwise: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "PERIOD", 1000.0)
    configure(url=spanwise.url)
    leaf(1)
    until(lambda: events(spanwise, names.REPORT_EVENT))
    leaf(1)
    until(lambda: stats().delivered == 4)
    assert len(events(spanwise, names.REPORT_EVENT)) == 1
    get_runtime().delivery.exporter._reporter._next_report = 0.0
    until(lambda: report(spanwise)["started"] == 2)


def test_drops_are_told_by_reason(spanwise: Sink) -> None:
    spanwise.answer = lambda path, body: (400 if path == "/v1/traces" else 200, SPANWISE, b"")
    configure(url=spanwise.url)
    leaf(1)
    flush(60)
    assert report(spanwise)["dropped"] == {"http_400": 1}


def test_what_waited_on_disk_and_was_sent_adds_up(spanwise: Sink) -> None:
    spanwise.answer = lambda path, body: (503, SPANWISE, b"")
    configure(url=spanwise.url)
    for _ in range(3):
        with span("root"):
            pass
    assert flush(60).spilled == 3
    spanwise.answer = lambda path, body: (200, SPANWISE, b"")
    assert flush(60)
    told = report(spanwise)
    assert [told[key] for key in ("started", "delivered", "spilled")] == [3, 3, 0]


def test_set_ups_of_one_process_for_one_address_report_together(spanwise: Sink) -> None:
    configure(url=spanwise.url, project="a")
    leaf(1)
    assert flush(60)
    configure(url=spanwise.url, project="b")
    leaf(1)
    flush(60)
    assert [report(spanwise)[key] for key in ("started", "delivered")] == [2, 2]


def test_of_an_unsampled_trace_that_is_kept_all_spans_count(spanwise: Sink) -> None:
    configure(url=spanwise.url, sample_rate=0.0)
    with span("fine"):
        leaf(1)
    with span("fails"), pytest.raises(ZeroDivisionError):
        leaf(0)
    flush(60)
    assert [report(spanwise)[key] for key in ("started", "open", "delivered")] == [2, 0, 2]


def test_the_end_of_a_process_reports(spanwise: Sink) -> None:
    configure(url=spanwise.url)
    with span("root"):
        pass
    get_runtime().delivery.close(30)  # as at exit, but with the patience of a busy machine
    assert [report(spanwise)[key] for key in ("started", "delivered", "open")] == [1, 1, 0]


FORKED = """
import os
from spanwise.tracer import flush, span
with span("parent"):
    if os.fork() == 0:
        with span("child"):
            pass
        flush(60)
        os._exit(0)
    os.wait()
flush(60)
"""


@pytest.mark.process
def test_forked_children_report_themselves(spanwise: Sink, tmp_path: Path) -> None:
    run(FORKED, spanwise, tmp_path)
    told = {r[names.INSTANCE]: a for _, a, r in events(spanwise, names.REPORT_EVENT)}
    assert [a[names.REPORT_STARTED] for a in told.values()] == [1, 1]
    assert len({a[names.REPORT_PID] for a in told.values()}) == 2


@pytest.mark.process
@pytest.mark.parametrize("way", ["variable", "argument"])
def test_the_users_own_name_of_a_process_stays(spanwise: Sink, tmp_path: Path, way: str) -> None:
    own = f'"{names.INSTANCE}": "pod-7"' if way == "argument" else ""
    script = f"import os\nfrom spanwise.tracer import configure\nconfigure(resource={{{own}}})\n{FORKED}"
    run(script, spanwise, tmp_path, OTEL_RESOURCE_ATTRIBUTES=f"{names.INSTANCE}=pod-7" if way == "variable" else "")
    assert {r[names.INSTANCE] for _, _, r in events(spanwise, names.REPORT_EVENT)} == {"pod-7"}


def run(script: str, sink: Sink, tmp_path: Path, **more: str) -> None:
    environment = {**os.environ, "SPANWISE_URL": sink.url, "SPANWISE_SPILL_DIR": str(tmp_path), **more}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=240)


@pytest.mark.process
def test_a_report_that_nobody_answers_holds_nothing_up(spanwise: Sink) -> None:
    hang = threading.Event()

    def answer(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if path == "/v1/logs":
            hang.wait(60)
        return 200, SPANWISE, b""

    spanwise.answer = answer
    configure(url=spanwise.url)
    with span("root"):
        pass
    shutdown()
    assert not hang.is_set()
    assert stats().dropped == {}
    hang.set()
    assert span_queue.PERIOD == 10
