"""Libraries that are instrumented by hooks of our own, and token counts that no server reports."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import tiktoken
from tiktoken.registry import ENCODINGS

from lazy_modules import LazyModule
from spanwise.collector.dialects import read_sdk_span
from spanwise.tracer import instrument, trace, uninstrument
from spanwise.tracer.content import model_calls
from spanwise.tracer.testing import Spans
from spanwise.tracer.testing import traced as traced

openai = LazyModule("openai")


@pytest.fixture
def instrumented(request: pytest.FixtureRequest, traced: Spans) -> Iterator[str]:
    instrument(request.param)
    yield request.param
    uninstrument(request.param)


@pytest.mark.parametrize("instrumented", ["pydantic_ai", "Pydantic-AI"], indirect=True)
def test_pydantic_ai_agents_have_spans(instrumented: str, traced: Spans) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    agent = Agent(TestModel(custom_output_text="sunny"), name="forecast")

    @trace
    async def ask() -> str:
        return (await agent.run("weather?")).output

    assert asyncio.run(ask()) == "sunny"
    kinds = {read_sdk_span(span).kind for span in traced.spans}
    assert {"agent", "llm"} <= kinds


def server() -> Any:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    made = MCPServer("shop")

    @made.tool()
    def weather(city: str) -> dict[str, str]:
        return {"sky": f"sunny in {city}"}

    @made.tool()
    def broken() -> str:
        raise ToolError("no sensor")

    return made


def call(name: str, arguments: dict[str, Any]) -> None:
    from mcp import Client

    async def main() -> None:
        async with Client(server()) as client:
            await client.call_tool(name, arguments)

    asyncio.run(main())


@pytest.mark.parametrize("instrumented", ["mcp"], indirect=True)
def test_a_call_of_an_mcp_tool_has_a_span(instrumented: str, traced: Spans) -> None:
    call("weather", {"city": "Paris"})
    run = read_sdk_span(traced.one("weather"))
    assert (run.kind, run.inputs, run.outputs, run.status) == (
        "tool",
        {"city": "Paris"},
        {"sky": "sunny in Paris"},
        "ok",
    )


@pytest.mark.parametrize("instrumented", ["mcp"], indirect=True)
def test_an_error_that_an_mcp_tool_reports_is_the_status(instrumented: str, traced: Spans) -> None:
    call("broken", {})
    run = read_sdk_span(traced.one("broken"))
    assert run.status == "error"
    assert "no sensor" in str(run.error)


def test_mcp_is_left_as_it_was(traced: Spans) -> None:
    instrument("mcp")
    instrument("mcp")
    uninstrument("mcp")
    call("weather", {"city": "Paris"})
    assert "weather" not in traced.names()


class Streaming(BaseHTTPRequestHandler):
    """A chat endpoint that streams two chunks without usage."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for text in ("sun", "ny"):
            delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", "choices": [delta]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args: Any) -> None:
        pass


def stream_a_reply() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Streaming) as endpoint:
        threading.Thread(target=endpoint.serve_forever, args=(0.02,), daemon=True).start()
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{endpoint.server_address[1]}/v1", api_key="k")
        messages: Any = [{"role": "user", "content": "weather?"}]
        for _ in client.chat.completions.create(model="gpt-4o", messages=messages, stream=True):
            pass
        client.close()
        endpoint.shutdown()


@pytest.fixture
def no_vocabulary(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "is_enabled", False)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("o200k_base", "cl100k_base"):
        monkeypatch.delitem(ENCODINGS, name, raising=False)


@pytest.fixture
def bytewise_vocabulary(no_vocabulary: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding of one token a byte, in place of the real vocabulary, which has to be downloaded."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("o200k_base", pat_str=r"[\s\S]", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setitem(ENCODINGS, "o200k_base", encoding)


@pytest.mark.usefixtures("bytewise_vocabulary")
@pytest.mark.parametrize("instrumented", ["openai"], indirect=True)
def test_a_stream_without_usage_has_estimated_counts(instrumented: str, traced: Spans) -> None:
    stream_a_reply()
    [run] = [read_sdk_span(span) for span in traced.spans]
    assert run.usage is not None
    assert run.usage.output_tokens == len("sunny")
    assert run.usage.input_tokens == len("weather?") + 7
    assert run.attributes["spanwise.usage.estimated"] is True


@pytest.mark.usefixtures("no_vocabulary")
@pytest.mark.parametrize("instrumented", ["openai"], indirect=True)
def test_without_a_vocabulary_there_are_no_counts_and_nothing_is_downloaded(instrumented: str, traced: Spans) -> None:
    stream_a_reply()
    [run] = [read_sdk_span(span) for span in traced.spans]
    assert (run.usage, "spanwise.usage.estimated" in run.attributes) == (None, False)
    assert "o200k_base" not in ENCODINGS


@pytest.mark.usefixtures("bytewise_vocabulary")
@pytest.mark.parametrize(
    "attributes",
    [
        {"llm.token_count.prompt": 3},
        {"llm.model_name": "claude-sonnet-4-5"},
        {"openinference.span.kind": "CHAIN"},
        {"output.value": "x" * 500_000},
    ],
)
def test_calls_that_are_reported_foreign_or_too_long_are_not_estimated(attributes: dict[str, Any]) -> None:
    given = {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4o", "input.value": "a", "output.value": "b"}
    given |= attributes
    before = dict(given)
    model_calls.add_usage_estimate(given)
    assert given == before
