"""What a store holds as lines of a file, and back: equal, whatever it is, and whatever is between the lines."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.conformance_traces import FULL
from collector.making import child, run
from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.import_export import export_lines, import_file, write_file
from spanwise.collector.records import (
    Document,
    Event,
    Example,
    Experiment,
    Feedback,
    Link,
    QueueItem,
    Retention,
    Rule,
    Run,
    Target,
    Usage,
)
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite import SQLiteStore

DEEP: Any = "leaf"
for _ in range(40):
    DEEP = [DEEP]
ODD: dict[str, dict[str, Any]] = {
    "plain": {},
    "a call of a model": {
        "kind": "llm",
        "model": "gpt-5",
        "usage": Usage(3, 4, {"cache_read.input_tokens": 2}),
        "cost": 0.1,
    },
    "no cost of a model that has a price": {"kind": "llm", "model": "gpt-4o", "usage": Usage(3, 4), "cost": None},
    "documents": {"kind": "retriever", "documents": (Document("c", "i", 0.5, {"m": 1}), Document(""))},
    "documents in outputs": {"kind": "retriever", "outputs": [{"content": "a"}], "documents": (Document("a"),)},
    "outputs that only look like documents": {"kind": "retriever", "outputs": [{"content": "a"}]},
    "texts that are JSON": {"inputs": "[1]", "outputs": "null", "metadata": {"a": "{}"}},
    "empty texts": {"inputs": "", "outputs": "", "session_id": None, "tags": ("",)},
    "a kind of its own": {"kind": "dance"},
    "names that conventions take": {"attributes": {"input.value": "x", "session.id": "s", "gen_ai.request.model": "m"}},
    "our own mark": {"attributes": {"spanwise.exact": "{}", "spanwise.sent.start_ns": -5}},
    "an envelope": {"attributes": {"otel.span.kind": "client", "otel.scope.name": "lib", "otel.scope.version": "1"}},
    "a wrong clock": {"start_ns": 2**63 - 1, "end_ns": 2**63 - 1},
    "deep": {"attributes": {"deep": DEEP}},
    "a project that no resource names": {"project": "p", "environment": "prod", "resource": {"service.name": "s"}},
    "an error": {
        "status": "error",
        "error": "ValueError: no",
        "events": (Event("exception", 1, {"exception.type": "E"}),),
    },
    "links of nowhere": {"links": (Link("zz", "", {}),)},
    "many types": {"attributes": {"i": 2**62, "f": 1e300, "n": None, "l": [], "o": {}, "b": False}},
    "bidi and NUL": {"name": "\u202e\x00", "inputs": {"\x1b": "\u2028"}},
}
RUNS = [replace(FULL, trace_id="f" * 32), *(run(**{"name": name, **fields}) for name, fields in ODD.items())]
ON = Target(trace_id=RUNS[0].trace_id)
FEEDBACK = [
    Feedback(target=ON, key="k", score=0.5, comment="c", author="ann", source="human"),
    Feedback(target=ON, key="b", score=True, evaluator="e", version="1"),
    Feedback(target=ON, key="l", label="polite", metadata={"a": [1, {"b": None}]}),
    Feedback(target=ON, key="e", outcome="error", error="boom\nbang"),
    Feedback(target=ON, key="s", outcome="skip", comment="no context", label=None),
    Feedback(target=Target(trace_id="f" * 32, span_id=FULL.span_id, document=0), key="d", score=1),
    Feedback(target=ON, key="r", score=0.0, rule="rule", claim=7, judge_trace_id="e" * 32, source="model"),
    Feedback(target=Target(session_id="s"), key="k", score=1.0),
    Feedback(target=Target(experiment_id="e"), key="k", label="done"),
    Feedback(target=Target(trace_id="9" * 32), key="waits", score=1.0),
    Feedback(target=ON, key="ahead", score=1.0, created_ns=2**62),
]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[SQLiteStore]:
    (tmp_path / "full").mkdir()
    with SQLiteStore(tmp_path / "full" / "a.db") as made:
        made.append(RUNS)
        made.append([child(RUNS[1], trace_id=RUNS[1].trace_id), run("judging", trace_id="e" * 32, kind="evaluator")])
        made.add_feedback(FEEDBACK)
        yield made


def lines(store: Store, format: str, filter: Filter | None = None) -> io.BytesIO:
    return io.BytesIO(b"".join(line + b"\n" for line, _ in export_lines(store, format, filter)))


def runs_of(store: Store) -> dict[tuple[str, str], Run]:
    traces = store.many([trace.trace_id for kind in (None, "evaluator") for trace in store.each(kind=kind)])
    return {(run.trace_id, run.span_id): run for trace in traces for run in trace.runs}


def feedback_of(store: Store) -> dict[str, Feedback]:
    return {one.id: one for one in store.feedbacks()}


@pytest.mark.parametrize("format", ["otlp", "jsonl"])
def test_runs_and_feedback_come_back_equal(store: SQLiteStore, full: SQLiteStore, format: str, request: Any) -> None:
    taken = import_file(store, lines(full, format))
    assert (taken.bad, taken.reasons) == (0, [])
    wanted, found = runs_of(full), runs_of(store)
    over_http = "http" in request.node.name
    clocks = {(one.trace_id, one.span_id) for one in RUNS if one.name == "a wrong clock"} if over_http else set()
    assert {place: found[place] for place in wanted.keys() - clocks} == {
        place: wanted[place] for place in wanted.keys() - clocks
    }
    assert found.keys() == wanted.keys()
    given, kept = feedback_of(full), feedback_of(store)
    ahead = {one.id for one in FEEDBACK if one.key == "ahead"} if over_http else set()
    assert {id: kept[id] for id in given.keys() - ahead} == {id: given[id] for id in given.keys() - ahead}
    assert kept.keys() == given.keys()


@pytest.mark.parametrize("format", ["otlp", "jsonl"])
def test_doing_it_again_changes_nothing(store: Store, full: SQLiteStore, format: str) -> None:
    import_file(store, lines(full, format))
    before, count = list(lines(store, format)), store.count()
    assert import_file(store, lines(full, format)).bad == 0
    assert (list(lines(store, format)), store.count()) == (before, count)


def test_every_other_record_comes_back_equal(store: Store, full: SQLiteStore) -> None:
    full.save_examples("d", [Example(inputs=1, id="1"), Example(inputs=2, id="2")], description="first")
    full.save_examples("d", [Example(inputs=3, id="3"), Example(inputs=1, reference_outputs="x", id="1")], remove=["2"])
    full.save_experiment(Experiment(id="e", name="n", dataset="d", dataset_version=1))
    full.save_rule(Rule(name="r", version="1", evaluators=({"key": "k"},), filter={"name": "answer"}))
    full.set_retention(Retention(project="p", max_age_ns=10**18))
    full.enqueue([QueueItem(queue="q", target=ON, id="i")])
    for _ in range(2):
        assert import_file(store, lines(full, "jsonl")).bad == 0
    for version in (1, 2):
        assert store.examples("d", version) == full.examples("d", version)
    assert [one.version for one in store.versions("d")] == [2, 1]
    assert store.experiments() == full.experiments()
    assert [(one.name, one.version, one.filter) for one in store.rules()] == [("r", "1", {"name": "answer"})]
    assert (store.retention(), store.queue("q")) == (full.retention(), full.queue("q"))


def test_only_what_passes_is_written(full: SQLiteStore) -> None:
    held = Counter[str]()
    for _, counts in export_lines(full, "jsonl", Filter(name="plain")):
        held += counts
    assert held == {"run": 2}


def as_protobuf(line: bytes) -> bytes:
    """The line with its ids in base64, which is what protobuf's own JSON has, and OTLP's has in hex."""

    def ids(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named = ("traceId", "spanId", "parentSpanId")
        return {key: base64.b64encode(bytes.fromhex(value)).decode() if key in named else value for key, value in pairs}

    return json.dumps(json.loads(line, object_pairs_hook=ids)).encode()


def test_opentelemetrys_own_classes_read_each_line(full: SQLiteStore) -> None:
    full.delete(name="links of nowhere")
    spans, records = [], []
    for line in lines(full, "otlp"):
        kind: Any = ExportTraceServiceRequest if b"resourceSpans" in line else ExportLogsServiceRequest
        read = json_format.Parse(as_protobuf(line), kind())
        if kind is ExportTraceServiceRequest:
            spans += [span for group in read.resource_spans for part in group.scope_spans for span in part.spans]
        else:
            records += [one for group in read.resource_logs for part in group.scope_logs for one in part.log_records]
    assert {(span.trace_id.hex(), span.span_id.hex()) for span in spans} == runs_of(full).keys()
    [one] = [span for span in spans if span.name == "a call of a model"]
    assert {pair.key: pair.value for pair in one.attributes}["gen_ai.usage.input_tokens"].int_value == 3
    assert {record.event_name for record in records} == {"gen_ai.evaluation.result"}


def test_a_server_takes_the_same_lines_as_a_sender_would_send_them(full: SQLiteStore, store: Store) -> None:
    """Without the help of `import`: what the names say is what is kept."""
    [line, *_] = [line for line, _ in export_lines(full, "otlp", Filter(name="a call of a model"))]
    foreign = line.replace(b"spanwise.exact", b"foreign.exact")
    import_file(store, io.BytesIO(foreign))
    [kept] = runs_of(store).values()
    assert (kept.model, kept.usage, kept.cost, kept.kind) == (
        "gpt-5",
        Usage(3, 4, {"cache_read.input_tokens": 2}),
        0.1,
        "llm",
    )


def test_what_is_no_id_of_opentelemetrys_is_told(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([run(trace_id="not hex"), run()])
        [(_, held)] = list(export_lines(store, "otlp"))
        assert held == {"run": 1, "left out": 1}
        assert sum(counts["run"] for _, counts in export_lines(store, "jsonl")) == 2


BAD = [
    b"not json",
    b"[1]",
    b'{"other": 1}',
    b'{"record": "ghost", "value": {}}',
    b'{"record": "run", "value": {"trace_id": 1}}',
    b'{"record": 1}',
    b'{"record": "run"}',
    b'{"record": "feedback", "value": {"target": {}, "key": "k"}}',
    b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz", "spanId": ""}]}]}]}',
    b'{"resourceSpans": 5}',
    b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"eventName": "gen_ai.evaluation.result"}]}]}]}',
    b"\xff\xfe",
    b"[" * 100_000,
]


def test_bad_lines_are_counted_and_told_and_lose_no_others(store: Store, full: SQLiteStore) -> None:
    good = list(lines(full, "jsonl"))
    mixed = b"\n".join(
        line for pair in zip(BAD * len(good), good, strict=False) for line in (pair[0], pair[1].rstrip())
    )
    taken = import_file(store, io.BytesIO(mixed + b"\n\n"))
    assert taken.bad == len(good)
    assert taken.reasons[0].startswith("line 1: ")
    assert (runs_of(store).keys(), len(taken.reasons)) == (runs_of(full).keys(), 20)


def test_what_is_not_ours_to_keep_is_left_out_and_told(store: Store) -> None:
    plain = b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a line of a log"}}]}]}]}\n'
    taken = import_file(store, io.BytesIO(plain + b'{"resourceMetrics": []}\n{"record": "decision", "value": {}}\n'))
    assert (taken.left_out, taken.bad) == ({"log record": 1, "metrics": 1, "decision": 1}, 0)


class Tired:
    """A store that is away at first, and refuses one run."""

    def __init__(self, store: Store) -> None:
        self.store, self.away = store, 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def append(self, runs: Any) -> None:
        self.away -= 1
        if self.away >= 0:
            raise Unavailable("busy", retry_after=0.01)
        if any(run.name == "poison" for run in runs):
            raise Refused("poison is refused")
        self.store.append(runs)


def test_a_refused_run_takes_no_other_with_it_and_a_busy_store_is_asked_again(store: Store, tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "from.db") as full:
        full.append([*(run(f"n{place}") for place in range(20)), run("poison")])
        taken = import_file(Tired(store), lines(full, "jsonl"))  # type: ignore[arg-type]
    assert (taken.kept["run"], taken.bad, len(runs_of(store))) == (20, 1, 20)
    assert "poison is refused" in taken.reasons[0]


def test_a_file_has_its_name_once_it_is_whole(full: SQLiteStore, tmp_path: Path) -> None:
    def breaking() -> Iterator[tuple[bytes, Counter[str]]]:
        yield from list(export_lines(full, "otlp"))[:1]
        raise Unavailable("the server is away")

    with pytest.raises(Unavailable):
        write_file(breaking(), tmp_path / "out.jsonl")
    assert list(tmp_path.glob("out*")) == []
    assert write_file(export_lines(full, "otlp"), tmp_path / "out.jsonl")["run"] == len(RUNS) + 2
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused, match="already"):
        write_file(export_lines(full, "otlp"), tmp_path / "out.jsonl")


def test_a_line_that_is_too_long_is_one_bad_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanwise.collector.import_export.record_files.MAX_LINE_BYTES", 1000)
    good = record_encoding.encode({"record": "run", "value": run("good")})
    taken = import_file(store, io.BytesIO(b"x" * 5000 + b"\n" + good + b"\n" + b"y" * 1001))
    assert (taken.bad, taken.kept) == (2, {"run": 1})
