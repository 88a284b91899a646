"""What real senders have sent is read as messages and blocks, not as JSON."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.dialects import sent
from fixtures.dialects.capture import replay
from spanwise.collector import content
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.process
FILES = sorted(
    f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}"
    for path in Path(sent.FIXTURES).glob("*/*.jsonl.gz")
    if path.parent.name != "langfuse_scores"
)


@contextmanager
def stored(file: str) -> Iterator[SQLiteStore]:
    """A store that has taken in the requests of a file; Langfuse's have answers with a body."""
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store, Server(store) as server:
        statuses = {status for status, _ in replay(sent.FIXTURES / f"{file}.jsonl.gz", server.url)}
        assert statuses <= {200, 202, 207, 404}
        yield store


WITHOUT_CONTENT = {"haystack/plain", "plain/fastapi"}


@pytest.mark.parametrize("file", FILES)
def test_every_model_call_is_a_conversation_with_readable_blocks(file):
    seen = set()
    with stored(file) as store:
        for trace in sent.traces(store):
            for run in sent.runs(trace, "llm", "agent"):
                for value in (run.inputs, run.outputs):
                    read = content.read_content(value)
                    seen |= {block.kind for message in read.messages for block in message.blocks}
                    assert (
                        isinstance(value, str | float | bool | None) or read.messages or read.fields or read.blocks
                    ), (
                        run.name,
                        value,
                    )
                    unread = [block for message in read.messages for block in message.blocks if block.kind == "json"]
                    assert all(block.value == {"days": 3} for block in unread), (run.name, unread)
    assert seen or file in WITHOUT_CONTENT | {
        "pydantic_evals/offline",
        "pydantic_evals/online",
        "openinference/annotations",
    }


AGENTS = (
    "haystack/content",
    "langsmith/langchain",
    "logfire_sdk/agents",
    "logfire_sdk/responses",
    "mlflow/genai",
    "openai_agents/agents",
    "openinference/langgraph",
    "openinference/llama_index",
    "pydantic_ai/version1",
    "pydantic_ai/version2",
    "pydantic_ai/version3",
    "pydantic_ai/version5",
    "traceloop/rag",
    "vercel/ai5",
    "vercel/ai6",
    "vercel/ai7",
)


@pytest.mark.parametrize("file", AGENTS)
def test_the_tool_call_of_every_agent_is_joined_to_its_result(file):
    with stored(file) as store:
        calls = [
            block
            for trace in sent.traces(store)
            for run in trace.runs
            for value in (run.inputs, run.outputs)
            for message in content.join_tool_results(content.read_content(value).messages)
            for block in message.blocks
            if block.kind == "tool_call"
        ]
    assert {call.name for call in calls} <= {"track", "find"}
    answered = [call for call in calls if call.result]
    assert answered
    assert all(isinstance(call.value, dict) for call in calls)


ANSWER = "Parcels arrive within three days [1]."


@pytest.mark.parametrize("file", [file for file in FILES if file not in WITHOUT_CONTENT])
def test_lists_show_what_was_asked_and_answered(file):
    with stored(file) as store:
        previews = [text for trace in store.each() for text in (trace.inputs, trace.outputs)]
    assert not [text for text in previews if text.startswith(("{", "[")) and ("role" in text or "messages" in text)]
