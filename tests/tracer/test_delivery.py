"""Delivery: nothing is lost silently, whatever the collector answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from spanwise.tracer import (
    FlushResult,
    configure,
    flush,
    internal_errors,
    process_runtime,
    shutdown,
    span,
    stats,
    trace,
)
from spanwise.tracer.configuration import Settings, resolve_valid_settings
from spanwise.tracer.export import Batch, disk_spool, split_into_batches
from spanwise.tracer.export.delivery_lifecycle import Delivery
from spanwise.tracer.export.disk_spool import Spool
from spanwise.tracer.export.otlp_http_client import RequestOutcome
from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.export.span_queue import SpanQueue
from spanwise.tracer.otel.live_span import get_local_trace
from spanwise.tracer.testing import capture_spans

from .conftest import Sink, somewhere, spooled, until


@trace
def work(n: int = 0) -> int:
    return n


def with_queue(delivery: Delivery, queue: SpanQueue) -> None:
    delivery.queue = delivery.exporter.queue = queue


def answers(*statuses: int, headers: dict[str, str] | None = None) -> Callable[[str, bytes], Any]:
    left = list(statuses)
    return lambda path, body: (left.pop(0) if left else 200, headers or {}, b"")


@pytest.mark.usefixtures("only_when_asked")
def test_flush_is_true_only_when_the_collector_has_acknowledged(sink: Sink) -> None:
    configure(url=sink.url)
    work()
    result = flush(60)
    assert (bool(result), result.delivered, len(sink.spans())) == (True, 1, 1)


@pytest.mark.usefixtures("only_when_asked")
def test_a_permanent_refusal_is_counted_and_not_repeated(sink: Sink) -> None:
    sink.answer = answers(400)
    configure(url=sink.url)
    work()
    result = flush(60)
    assert (bool(result), result.dropped, stats().dropped) == (False, 1, {"http_400": 1})
    assert flush(60)
    assert sink.requests == []


@pytest.mark.process
def test_a_retryable_refusal_waits_on_disk_and_arrives_later(sink: Sink) -> None:
    sink.answer = lambda path, body: (503, {}, b"")
    configure(url=sink.url)
    work()
    assert flush(60).spilled == 1
    sink.answer = lambda path, body: (200, {}, b"")
    until(lambda: stats().delivered == 1)
    assert len(sink.spans()) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_what_a_wrong_key_keeps_out_waits_for_the_right_one(
    sink: Sink, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    sink.answer = lambda path, body: (status, {}, b"")
    configure(url=sink.url, api_key="wrong")
    work()
    assert flush(60).spilled == 1
    assert "refuses the API key" in caplog.text
    sink.answer = lambda path, body: (200, {}, b"")
    configure(url=sink.url, api_key="right")
    work()
    assert flush(60)
    until(lambda: len(sink.spans()) == 2)
    assert stats().dropped == {}


@pytest.mark.usefixtures("only_when_asked")
def test_a_refused_key_without_a_disk_is_counted_at_the_end(sink: Sink) -> None:
    sink.answer = lambda path, body: (401, {}, b"")
    configure(url=sink.url, spill_dir="off")
    work()
    assert flush(60) == FlushResult(pending=1)
    shutdown()
    assert stats().dropped == {"http_401": 1}


@pytest.mark.process
def test_retry_after_is_honoured(sink: Sink) -> None:
    times: list[float] = []

    def answer(path: str, body: bytes) -> Any:
        times.append(time.monotonic())
        return (429, {"Retry-After": "1"}, b"") if len(times) == 1 else (200, {}, b"")

    sink.answer = answer
    configure(url=sink.url)
    work()
    until(lambda: sink.spans())
    assert times[1] - times[0] > 0.95


@pytest.mark.usefixtures("only_when_asked")
def test_partial_success_is_counted(sink: Sink) -> None:
    partial = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=1))
    sink.answer = lambda path, body: (200, {}, partial.SerializeToString())
    configure(url=sink.url)
    work()
    work()
    result = flush(60)
    assert (result.delivered, stats().dropped) == (1, {"rejected": 1})


def test_a_batch_that_is_too_large_is_split_so_that_small_spans_survive(sink: Sink) -> None:
    sink.answer = lambda path, body: (413 if len(body) > 20_000 else 200, {}, b"")
    configure(url=sink.url)
    for _ in range(9):
        work()
    with span("big", inputs="x" * 50_000):
        pass
    flush(60)
    assert [s.name for s in sink.spans()] == ["work"] * 9
    assert stats().dropped == {"too_large": 1}


@pytest.mark.process
def test_what_one_process_leaves_the_next_one_sends(sink: Sink, tmp_path: Path) -> None:
    folder = str(tmp_path / "shared")
    configure(url=sink.url, spill_dir=folder)
    url, answer = sink.url, sink.answer
    sink.answer = lambda path, body: (503, {}, b"")
    script = "from spanwise.tracer import trace\n@trace\ndef earlier(): pass\nearlier()"
    env = {**os.environ, "SPANWISE_URL": url, "SPANWISE_SPILL_DIR": folder}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    sink.answer = answer
    work()
    until(lambda: len(sink.spans()) == 2)
    assert {s.name for s in sink.spans()} == {"earlier", "work"}
    until(lambda: not list(Path(folder).glob("*/*.spool")))  # it is acknowledged first and removed then


def test_the_disk_is_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    runtime = process_runtime.Runtime(Settings(url="http://127.0.0.1:9"))
    runtime.delivery.exporter.spool = Spool(tmp_path, max_bytes=40_000)
    process_runtime.replace_runtime(runtime)
    for i in range(5):
        with span(f"s{i}", inputs="x" * 15_000):
            pass
        flush(60)
    assert runtime.delivery.dropped() == {"disk_full": 3}
    assert len(list(tmp_path.glob("*.spool"))) == 2


def test_no_collector_and_no_disk_is_counted_at_the_end() -> None:
    configure(url="http://127.0.0.1:9", spill_dir="off")
    work()
    assert flush(60) == FlushResult(pending=1)
    shutdown()
    assert (stats().dropped, stats().queued) == ({"collector_away": 1}, 0)


@pytest.mark.process
def test_a_full_queue_drops_leaves_before_parents_and_says_how_many() -> None:
    runtime = process_runtime.Runtime(Settings(spill_dir=None))
    runtime.delivery.queue = SpanQueue(max_bytes=3 * 1_800)
    runtime.spans.sink = runtime.delivery.queue.put  # type: ignore[assignment]
    runtime.delivery._thread = threading.current_thread()  # nobody takes anything out
    process_runtime.replace_runtime(runtime)
    with span("root"), span("inner"):
        for _ in range(5):
            work()
    items = runtime.delivery.queue.take()
    assert [item.name for item in items] == ["root", "inner", "work"]  # type: ignore[union-attr]
    assert runtime.delivery.queue.dropped == {"queue_full": 4}
    root = runtime.delivery.finisher.span(items[0])  # type: ignore[arg-type]
    assert root is not None
    assert dict(root.attributes or {})["spanwise.spans.dropped"] == 4
    runtime.delivery.queue.settle(len(items))
    runtime.delivery._thread = None


def test_the_queue_is_bounded_in_bytes() -> None:
    runtime = process_runtime.Runtime(Settings(spill_dir=None))
    runtime.delivery.queue = SpanQueue(max_bytes=50_000)
    runtime.spans.sink = runtime.delivery.queue.put  # type: ignore[assignment]
    runtime.delivery._thread = threading.current_thread()  # nobody takes anything out
    process_runtime.replace_runtime(runtime)
    for _ in range(10):
        with span("s", inputs="x" * 20_000):
            pass
    assert runtime.delivery.queue.dropped == {"queue_full": 8}
    runtime.delivery._thread = None


def test_a_span_that_cannot_be_encoded_does_not_take_its_batch_along(sink: Sink) -> None:
    configure(url=sink.url)
    work()
    with span("text \ud800") as run:
        run.span.set_attribute("x", "\udfff")
    assert flush(60)
    assert sorted(s.name for s in sink.spans()) == ["text ?", "work"]


def test_the_api_key_travels_as_a_bearer_token(sink: Sink) -> None:
    configure(url=sink.url, api_key="k1")
    work()
    assert flush(60)
    assert sink.requests[0][1]["Authorization"] == "Bearer k1"


@pytest.mark.parametrize(
    ("before", "key", "sent"),
    [("", "k1", "Bearer k1"), ("", None, None), ("ann:b@", None, f"Basic {b64encode(b'ann:b').decode()}")],
)
def test_what_a_netrc_says_of_the_host_is_not_ours_to_send(
    before: str, key: str | None, sent: str | None, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login bob password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    configure(url=sink.url.replace("//", f"//{before}"), api_key=key)
    work()
    assert flush(60)
    assert sink.requests[0][1].get("Authorization") == sent


def test_feedback_travels_as_a_log_event(sink: Sink) -> None:
    configure(url=sink.url)
    with span("s") as run:
        run.feedback("stars", 4.5, source="human", author="ann", metadata={"a": 1})
        run.feedback("tone", "friendly")
    assert flush(60)
    first, second = ({a.key: a.value for a in log.attributes} for log in sink.logs())
    assert first["gen_ai.evaluation.score.value"].double_value == 4.5
    assert first["spanwise.feedback.author"].string_value == "ann"
    assert second["gen_ai.evaluation.score.label"].string_value == "friendly"


SCRIPT = """
import os, signal, sys, time
from spanwise.tracer import trace
@trace
def work(n): return n
for i in range(1000): work(i)
{ending}
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "ending",
    ["pass", "sys.exit(3)", "raise ValueError", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(100)"],
    ids=["end", "exit", "exception", "sigterm"],
)
def test_a_process_that_ends_delivers_what_it_has(sink: Sink, tmp_path: Path, ending: str) -> None:
    env = {**os.environ, "SPANWISE_URL": sink.url}
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(ending=ending)], env=env, stderr=subprocess.DEVNULL)
    assert len(somewhere(sink, tmp_path / "spill")) == 1000
    assert done.returncode == {"pass": 0, "sys.exit(3)": 3, "raise ValueError": 1}.get(ending, -signal.SIGTERM)


@pytest.mark.process
def test_an_application_that_handles_sigterm_keeps_its_handler(sink: Sink, tmp_path: Path) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\nos.kill(os.getpid(), signal.SIGTERM)"
    env = {**os.environ, "SPANWISE_URL": sink.url}
    assert subprocess.run([sys.executable, "-c", SCRIPT.format(ending=own)], env=env).returncode == 7
    assert len(somewhere(sink, tmp_path / "spill")) == 1000


@pytest.mark.process
def test_a_collector_that_hangs_does_not_hold_up_the_end_of_the_process(sink: Sink, tmp_path: Path) -> None:
    sink.answer = lambda path, body: time.sleep(300) or (200, {}, b"")  # type: ignore[func-returns-value]
    env = {**os.environ, "SPANWISE_URL": sink.url, "SPANWISE_SPILL_DIR": str(tmp_path / "kept")}
    subprocess.run([sys.executable, "-c", SCRIPT.format(ending="pass")], env=env, check=True, timeout=240)
    assert sum(count for _, _, count in spooled(tmp_path / "kept")) >= 1000


def _spans(body: bytes) -> list[Any]:
    message = ExportTraceServiceRequest.FromString(body)
    return [s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]


def test_reconfiguring_delivers_first_and_loses_nothing(sink: Sink) -> None:
    configure(url=sink.url)
    with span("open across"):
        work()
        configure(url=sink.url, project="other")
        work()
    assert flush(60)
    until(lambda: len(sink.spans()) == 3)


def test_a_late_span_carries_the_counts_of_then(sink: Sink) -> None:
    configure(url=sink.url)
    go_on = threading.Event()

    @trace
    def late() -> None:
        go_on.wait(60)

    with span("root") as root:
        thread = threading.Thread(target=late)
        thread.start()
        local = get_local_trace(int(root.trace_id, 16))
        until(lambda: local is not None and local.open == 2)
    go_on.set()
    thread.join()
    assert flush(60)
    counts = {s.name: {a.key: a.value.int_value for a in s.attributes} for s in sink.spans()}
    assert (counts["root"]["spanwise.spans.started"], counts["root"]["spanwise.spans.open"]) == (2, 1)
    assert (counts["late"]["spanwise.spans.started"], counts["late"].get("spanwise.spans.open", 0)) == (2, 0)


@pytest.mark.process
def test_what_ends_after_the_exit_handlers_goes_to_disk(tmp_path: Path) -> None:
    script = """
import atexit
from spanwise.tracer import trace
@trace
def work(): pass
atexit.register(work)
work()
"""
    env = {**os.environ, "SPANWISE_URL": "http://127.0.0.1:9", "SPANWISE_SPILL_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    assert sum(count for _, _, count in spooled(tmp_path)) == 2


def test_drops_are_said_once(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    sink.answer = lambda path, body: (400, {}, b"")
    configure(url=sink.url)
    for _ in range(2):
        work()
        flush(60)
    assert [r.message for r in caplog.records if "http_400" in r.message] == [
        f"spanwise: spans or feedback are dropped: http_400 ({sink.url}) (logged once; see spanwise.tracer.stats())"
    ]


@pytest.mark.parametrize(
    ("bad", "capture"),
    [
        ({"SPANWISE_SAMPLE_RATE": "abc"}, "full"),
        ({"SPANWISE_REDACT": "/(/"}, "metadata"),
        ({"SPANWISE_CAPTURE": "nun"}, "metadata"),
    ],
)
def test_one_bad_variable_costs_no_other(bad: dict[str, str], capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {
        "SPANWISE_URL": "http://127.0.0.1:9",
        "SPANWISE_REDACT": "password",
        "SPANWISE_PROJECT": "p",
        "SPANWISE_SPILL_DIR": "s",
    }
    for name, value in {**good, **bad}.items():
        monkeypatch.setenv(name, value)
    kept = resolve_valid_settings()
    assert (kept.url, kept.project, kept.spill_dir) == ("http://127.0.0.1:9", "p", Path("s"))
    assert kept.redact == (() if "SPANWISE_REDACT" in bad else ("password",))
    assert kept.capture == capture


def test_one_bad_variable_leaves_the_rest_of_the_set_up() -> None:
    code = "import signal, spanwise.tracer as t; t.current_run(); t.stats(); print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    environment = {**os.environ, "SPANWISE_SAMPLE_RATE": "abc", "SPANWISE_SPILL_DIR": "off"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("flushed", "is_all"),
    [
        (FlushResult(3), True),
        (FlushResult(3, 1), False),
        (FlushResult(3, 0, 1), False),
        (FlushResult(3, 0, 0, 1), False),
    ],
)
def test_a_flush_is_true_if_nothing_is_left_or_lost(flushed: FlushResult, is_all: bool) -> None:
    assert bool(flushed) is is_all


def test_what_a_flush_achieved_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        FlushResult().delivered = 1  # type: ignore[misc]


@pytest.mark.process
def test_a_full_batch_wakes_the_delivery() -> None:
    configure(url="http://127.0.0.1:9")
    delivery = process_runtime.get_runtime().delivery
    delivery._thread = threading.current_thread()  # nobody takes anything out
    for _ in range(511):
        work()
    assert delivery._wake.empty()
    work()
    assert not delivery._wake.empty()
    assert len(delivery.queue.take()) == 512
    delivery.queue.settle(512)
    delivery._thread = None


def test_a_batch_is_bounded_in_spans_and_bytes() -> None:
    with capture_spans() as spans:
        for _ in range(514):
            work()
    assert [len(batch.items) for batch in split_into_batches(spans.ended)] == [512, 2]
    for item, weight in zip(spans.ended, (3 << 20, 1 << 20, 1, 5 << 20, 1), strict=False):
        item.weight = weight  # type: ignore[attr-defined]
    assert [len(batch.items) for batch in split_into_batches(spans.ended[:5])] == [2, 1, 1, 1]


@pytest.mark.usefixtures("only_when_asked")
def test_a_flush_that_runs_out_of_time_says_what_is_pending(sink: Sink) -> None:
    go_on = threading.Event()
    sink.answer = lambda path, body: (go_on.wait(60) and (200, {}, b"")) or (503, {}, b"")
    configure(url=sink.url)
    work()
    work()
    result = flush(0.05)
    go_on.set()
    assert (result.delivered, result.pending) == (0, 2)
    assert flush(60).pending == 0
    until(lambda: len(sink.spans()) == 2)


@pytest.mark.usefixtures("only_when_asked")
def test_a_flush_does_not_wait_for_the_back_off(sink: Sink) -> None:
    sink.answer = answers(503, headers={"Retry-After": "300"})
    configure(url=sink.url)
    work()
    assert flush(60).spilled == 1
    assert flush(60).delivered == 1


def test_the_pause_doubles_up_to_a_minute_until_something_is_acknowledged() -> None:
    exporter = Delivery(Settings(spill_dir=None)).exporter

    def pauses(seconds: float, after: float = 0.0) -> bool:
        before = time.monotonic()
        exporter._back_off(RequestOutcome("later", after=after))
        return before + 0.7 * seconds <= exporter._not_before <= time.monotonic() + seconds

    assert all(pauses(seconds) for seconds in (0.5, 1, 2, 4, 8, 16, 32, 60, 60))
    exporter._count_acknowledged(Batch("/v1/traces", []), RequestOutcome("ok"))
    assert pauses(0.5)
    assert pauses(100, after=100.0)


@pytest.mark.parametrize("status", [400, 413])
@pytest.mark.usefixtures("only_when_asked")
def test_feedback_that_is_refused_is_counted(sink: Sink, status: int) -> None:
    sink.answer = lambda path, body: (status if path == "/v1/logs" else 200, {}, b"")
    configure(url=sink.url)
    with span("s") as run:
        run.feedback("a", 1)
        run.feedback("b", 2)
    result = flush(60)
    assert (result.delivered, result.dropped, stats().dropped) == (1, 2, {f"http_{status}": 2})


@pytest.mark.usefixtures("only_when_asked")
def test_feedback_waits_on_disk_like_spans(sink: Sink, tmp_path: Path) -> None:
    sink.answer = lambda path, body: (503, {}, b"")
    configure(url=sink.url, spill_dir=str(tmp_path))
    with span("s") as run:
        run.feedback("a", 1)
    assert flush(60).spilled == 2
    assert [path for path, _, _ in spooled(tmp_path)] == ["/v1/traces", "/v1/logs"]
    sink.answer = lambda path, body: (200, {}, b"")
    assert flush(60).delivered == 2
    assert (len(sink.spans()), len(sink.logs())) == (1, 1)


@pytest.mark.usefixtures("only_when_asked")
def test_what_is_refused_when_it_comes_from_the_disk_is_counted(sink: Sink, tmp_path: Path) -> None:
    sink.answer = answers(503, 400)
    configure(url=sink.url, spill_dir=str(tmp_path))
    work()
    assert flush(60).spilled == 1
    assert flush(60).dropped == 1
    assert (stats().dropped, spooled(tmp_path)) == ({"http_400": 1}, [])


@pytest.mark.usefixtures("only_when_asked")
def test_rejected_feedback_is_counted(sink: Sink) -> None:
    partial = ExportLogsServiceResponse(partial_success=ExportLogsPartialSuccess(rejected_log_records=5))
    sink.answer = lambda path, body: (200, {}, partial.SerializeToString() if path == "/v1/logs" else b"")
    configure(url=sink.url)
    with span("s") as run:
        run.feedback("a", 1)
    assert (flush(60).delivered, stats().dropped) == (1, {"rejected": 1})


@pytest.mark.usefixtures("only_when_asked")
def test_a_span_that_cannot_be_finished_is_counted_and_costs_no_other(sink: Sink) -> None:
    class Name:
        def __str__(self) -> str:
            raise RuntimeError

    internal_errors.strict = False
    configure(url=sink.url)
    work()
    with span("s") as run:
        run.set_name(Name())  # type: ignore[arg-type]
    assert (flush(60).dropped, stats().dropped) == (1, {"not_finished": 1})
    assert [s.name for s in sink.spans()] == ["work"]


def test_what_is_queued_is_counted() -> None:
    configure(url="http://127.0.0.1:9")
    delivery = process_runtime.get_runtime().delivery
    delivery._thread = threading.current_thread()  # nobody takes anything out
    work()
    work()
    assert (stats().queued, delivery.idle()) == (2, False)
    assert flush(0.01).pending == 2
    delivery._thread = None


@pytest.mark.process
def test_a_set_up_that_is_replaced_waits_for_its_collector(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Delivery.close, "__defaults__", (60.0,))  # else a busy machine has it wait in vain
    sink.answer = lambda path, body: time.sleep(0.3) or (200, {}, b"")  # type: ignore[func-returns-value]
    configure(url=sink.url, spill_dir=str(tmp_path))
    work()
    configure(url=sink.url, spill_dir=str(tmp_path))
    assert (len(sink.spans()), spooled(tmp_path)) == (1, [])


@pytest.mark.process
def test_what_a_hanging_collector_does_not_take_in_time_goes_to_the_disk(sink: Sink, tmp_path: Path) -> None:
    go_on = threading.Event()
    sink.answer = lambda path, body: (go_on.wait(60) and (503, {}, b"")) or (503, {}, b"")
    configure(url=sink.url, spill_dir=str(tmp_path))
    work()
    process_runtime.get_runtime().delivery.close(1.0)  # before there is an answer
    assert not go_on.is_set()
    assert [len(_spans(body)) for _, body, _ in spooled(tmp_path)] == [1]
    go_on.set()
    assert (stats().spilled, stats().queued) == (1, 0)


@pytest.mark.process
def test_a_retry_after_that_is_a_date_is_honoured(sink: Sink) -> None:
    times: list[float] = []

    def answer(path: str, body: bytes) -> Any:
        times.append(time.time())
        return (503, {"Retry-After": formatdate(times[0] + 2, usegmt=True)}, b"") if len(times) == 1 else (200, {}, b"")

    sink.answer = answer
    configure(url=sink.url)
    work()
    until(lambda: sink.spans())
    assert times[1] >= int(times[0] + 2)


def test_a_shutdown_delivers_may_be_repeated_and_lasts_until_the_next_configure(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Delivery.close, "__defaults__", (60.0,))  # else a busy machine has it wait in vain
    configure(url=sink.url)
    work()
    shutdown()
    shutdown()
    assert len(sink.spans()) == 1
    work()
    shutdown()
    assert (len(sink.spans()), stats().dropped) == (1, {"closed": 1})
    configure(url=sink.url)
    work()
    shutdown()
    assert (len(sink.spans()), stats().dropped) == (2, {})


@pytest.mark.process
def test_what_earlier_processes_left_is_sent_without_anything_traced(sink: Sink, tmp_path: Path) -> None:
    settings = Settings(url=sink.url, spill_dir=tmp_path)
    folder = disk_spool.get_spool_folder(settings)
    for count, pick_up in enumerate((lambda: configure(url=sink.url, spill_dir=str(tmp_path)), lambda: flush(60)), 1):
        earlier = Spool(folder)
        earlier.append("/v1/traces", b"", 1)
        earlier.close_segment()
        pick_up()
        until(lambda wanted=count: len(sink.requests) == wanted)


@pytest.mark.process
def test_a_flush_is_not_true_while_spans_of_this_process_lie_on_disk(tmp_path: Path) -> None:
    configure(url="http://127.0.0.1:9", spill_dir=str(tmp_path))
    work()
    until(lambda: stats().spilled)
    assert flush(60) == FlushResult(spilled=1)
    assert not flush(60)


def test_what_the_queue_does_not_hold_goes_to_the_disk_and_from_there_to_the_collector(sink: Sink) -> None:
    configure(url=sink.url)
    delivery = process_runtime.get_runtime().delivery
    with_queue(delivery, SpanQueue(high_bytes=100_000))
    delivery._thread = threading.current_thread()  # nobody takes anything out
    for _ in range(1_000):
        work()
    assert stats().spilled + stats().queued == 1_000
    assert stats().spilled > 900
    delivery._thread = None
    assert flush(60)
    assert len(sink.spans()) == 1_000


@pytest.mark.process
def test_many_threads_take_from_the_queue_without_losing_count(tmp_path: Path) -> None:
    configure(url="http://127.0.0.1:9", spill_dir=str(tmp_path))
    with_queue(process_runtime.get_runtime().delivery, SpanQueue(high_bytes=20_000))
    threads = [threading.Thread(target=lambda: [work() for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flush(60).spilled == 4_000
    assert sum(count for _, _, count in spooled(tmp_path)) == 4_000
    assert stats().dropped == {}


def test_feedback_that_cannot_be_written_is_counted_where_the_queue_is_too_long(tmp_path: Path) -> None:
    internal_errors.strict = False
    delivery = Delivery(Settings(url="http://127.0.0.1:9", spill_dir=tmp_path))
    with_queue(delivery, SpanQueue(high_bytes=1))
    delivery._thread = threading.current_thread()  # nobody takes anything out
    delivery.put(FeedbackEvent(1 << 200, 0, 0, {}))  # no protocol has room for that id
    assert (len(delivery.queue), delivery.dropped()) == (0, {"delivery_failed": 1})


def test_the_interval_between_exports_is_a_setting(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_EXPORT_INTERVAL", "1000")
    configure(url=sink.url)
    work()
    assert process_runtime.get_runtime().settings.export_interval == 1000.0
    assert flush(60).delivered == 1  # does not wait for the interval
    configure(url=sink.url, export_interval=0.01)  # takes precedence over the variable
    work()
    until(lambda: len(sink.spans()) == 2)


@pytest.mark.parametrize("seconds", [0, -1.0, 3601, float("nan")])
def test_an_invalid_interval_between_exports_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="export_interval must be a number of seconds > 0 and <= 3600, got"):
        configure(url="http://127.0.0.1:9", export_interval=seconds)
