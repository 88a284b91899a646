"""Calls of the OpenAI client, through OpenInference's instrumentation, to a real collector."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lazy_modules import LazyModule
from spanwise.collector.records import Run, Trace, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer import configure, flush, instrument, process_runtime, session, trace, uninstrument

openai = LazyModule("openai")

KEY = "sk-0123456789abcdef"
MODEL = "gpt-4o-mini-2024-07-18"
TOKENS = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}


class Model(BaseHTTPRequestHandler):
    """An endpoint that speaks OpenAI's chat completions, streamed and not."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "fail" in asked["messages"][0]["content"]:
            return self.answer(400, "application/json", b'{"error": {"message": "no"}}')
        return self.answer(200, *(self.streamed() if asked.get("stream") else self.whole()))

    def whole(self) -> tuple[str, bytes]:
        choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        return "application/json", json.dumps(self.envelope("chat.completion", [choice], TOKENS)).encode()

    def streamed(self) -> tuple[str, bytes]:
        deltas = [
            {"index": 0, "delta": {"role": "assistant", "content": t}, "finish_reason": None} for t in ("hel", "lo")
        ]
        chunks = [self.envelope("chat.completion.chunk", [delta]) for delta in deltas]
        chunks.append(self.envelope("chat.completion.chunk", [], TOKENS))
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode()

    def envelope(self, kind: str, choices: list[Any], usage: Any = None) -> dict[str, Any]:
        return {"id": "c", "object": kind, "created": 1, "model": MODEL, "choices": choices, "usage": usage}

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key=KEY, max_retries=0) as found:
        yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """The store behind a collector that our spans and those of the instrumentation go to."""
    kept, previous = SQLiteStore(tmp_path / "spanwise.db"), process_runtime.replace_runtime(None)
    instrument("openai")  # before `configure`, as an application may have it
    try:
        with Server(kept, host="127.0.0.1", port=0) as server:
            configure(url=server.url, spill_dir="off")
            yield kept
            configure(spill_dir="off")
    finally:
        uninstrument("openai")
        process_runtime.replace_runtime(previous)
        kept.close()


def ask(client: openai.OpenAI, text: str, **options: Any) -> Any:
    return client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}], **options)


@trace
def answer(client: openai.OpenAI, text: str) -> str:
    list(ask(client, text, stream=True, stream_options={"include_usage": True}))
    return str(ask(client, text).choices[0].message.content)


def kept(store: SQLiteStore) -> tuple[Trace, dict[str, list[Run]]]:
    assert flush(60)
    (summary,) = store.traces().items
    found = store.trace(summary.trace_id)
    assert found is not None
    return found, {kind: [run for run in found.runs if run.kind == kind] for kind in ("chain", "llm")}


def test_model_calls_are_children_with_tokens_model_and_price(client: openai.OpenAI, store: SQLiteStore) -> None:
    with session("s"):
        assert answer(client, "hi") == "hello"
    _, by_kind = kept(store)
    (outer,) = by_kind["chain"]
    assert [(run.parent_id, run.model, run.session_id) for run in by_kind["llm"]] == [(outer.span_id, MODEL, "s")] * 2
    assert [run.usage for run in by_kind["llm"]] == [Usage(1000, 100)] * 2
    assert [run.cost for run in by_kind["llm"]] == [pytest.approx(0.00021)] * 2
    assert (outer.usage, outer.cost) == (None, None)


def test_totals_are_summed_once_by_the_collector(client: openai.OpenAI, store: SQLiteStore) -> None:
    answer(client, "hi")
    kept(store)
    (summary,) = store.traces().items
    assert (summary.input_tokens, summary.output_tokens, summary.complete) == (2000, 200, True)
    assert summary.cost == pytest.approx(0.00042)


def test_a_call_outside_of_any_run_goes_where_configure_says(client: openai.OpenAI, store: SQLiteStore) -> None:
    ask(client, "hi")
    found, by_kind = kept(store)
    assert found.root.span_id == by_kind["llm"][0].span_id


def test_a_call_that_fails_is_an_error_of_the_model_and_of_its_caller(
    client: openai.OpenAI, store: SQLiteStore
) -> None:
    with pytest.raises(openai.BadRequestError):
        answer(client, "fail")
    _, by_kind = kept(store)
    assert [run.status for runs in by_kind.values() for run in runs] == ["error", "error"]
    assert KEY not in repr(by_kind)
