"""Trace pages over what real senders have sent read as in their own product: question, answer, documents, tools, errors."""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from collector.dialects import sent
from fixtures.dialects.capture import replay
from spanwise.collector.api import create_app
from spanwise.collector.records import Run, Trace
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.process
ANSWER = "Parcels arrive within three days [1]."
BOTH = ("1 d1 0.9 cited", "2 d2 0.4")
# file → number of the trace, words at its top in their order
TOPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "haystack/content": (0, ("Question When does my parcel arrive?", ANSWER, "1 d1 0.0164 cited")),
    "laminar/rag": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "langfuse/old": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "langfuse/rag": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "langsmith/old": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "langsmith/rag": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "langsmith/langchain": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "logfire_sdk/agents": (0, ("Question When do parcels arrive?", ANSWER)),
    "logfire_sdk/responses": (0, ("Question When do parcels arrive?", ANSWER)),
    "mlflow/genai": (0, ("Question Where is my parcel?", ANSWER)),
    "mlflow/native": (0, ("Question Where is my parcel?", ANSWER, "1 d1 0.9 cited")),
    "openai_agents/agents": (0, ("Question When do parcels arrive?", ANSWER)),
    "openai_v2/both": (0, ("Question parcels", ANSWER, *BOTH)),
    "openinference/haystack": (0, ("Question When does my parcel arrive?", ANSWER, "1 d1 0.0164 cited")),
    "openinference/langchain": (0, ("Question When does my parcel arrive?", ANSWER, "1 d0 0.9 cited")),
    "openinference/langgraph": (0, ("Question When does my parcel arrive?", ANSWER)),
    "openinference/langgraph_agent": (0, ("Question Where is parcel P1", "Your parcel P1 is in Ghent", "sent Monday")),
    "openinference/llama_index": (1, ("Question When does my parcel arrive?", ANSWER, "1 d0 0.876 cited")),
    "openinference/llama_index_agent": (0, ("Question from a model call Where is parcel P1", "Your parcel P1 is in")),
    "pydantic_ai/version1": (0, ("Question When do parcels arrive?", ANSWER)),
    "pydantic_ai/version5": (0, ("Question When do parcels arrive?", ANSWER)),
    "pydantic_evals/offline": (0, ("Question Where is my parcel?", ANSWER)),
    "traceloop/old": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "traceloop/rag": (0, ("Question Where is my parcel?", ANSWER, *BOTH)),
    "vercel/ai4": (1, ("Question When does my parcel arrive?", ANSWER)),
    "vercel/ai7": (1, ("Question When does my parcel arrive?", ANSWER)),
}
# file → number of the failing trace, its error
FAILURES = {
    "haystack/content": (4, "began in llm haystack.core.errors.PipelineRuntimeError: The following component failed"),
    "laminar/rag": (1, "ValueError: no such parcel"),
    "langfuse/rag": (1, "no such parcel"),
    "langsmith/rag": (1, "Error ValueError('no such parcel')"),
    "mlflow/native": (1, "ValueError: no such parcel"),
    "openinference/langgraph_agent": (
        1,
        "began in ChatOpenAI langchain_openai.chat_models.base.OpenAIInvalidRequestError",
    ),
    "openinference/llama_index_agent": (1, "began in OpenAILike.achat openai.BadRequestError: Error code: 400"),
    "pydantic_ai/version5": (2, "began in chat broken pydantic_ai.exceptions.ModelRequestRejectedError"),
    "traceloop/rag": (1, "ValueError: no such parcel"),
    "vercel/ai4": (4, "began in ai.toolCall AI_ToolExecutionError: Error executing tool track: no such parcel"),
    "vercel/ai7": (9, "began in chat broken AI_APICallError: no such model"),
}


def words(text: str) -> str:
    """The visible words of a part of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def top(page: str) -> str:
    begin = page.index('class="overview-top')
    return words(page[begin : page.index("</section>", begin)])


def read(file: str, number: int, show: Callable[[TestClient, Trace], str]) -> str:
    """What `show` returns of a trace of a file, by its number in the order of time."""
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store:
        with Server(store) as server:
            replay(sent.FIXTURES / f"{file}.jsonl.gz", server.url)
        with TestClient(create_app(store)) as client:
            return show(client, sent.traces(store)[number])


def read_top(client: TestClient, trace: Trace) -> str:
    return top(client.get(f"/traces/{trace.trace_id}").text)


@pytest.mark.parametrize("file", TOPS)
def test_question_answer_and_documents_of_every_sender(file):
    number, expected = TOPS[file]
    text = re.sub("derived from the (first|last) child run ", "", read(file, number, read_top))
    places = [text.find(part) for part in expected]
    assert -1 not in places, text
    assert places == sorted(places)


@pytest.mark.parametrize("file", FAILURES)
def test_the_error_of_every_sender(file):
    number, expected = FAILURES[file]
    assert expected in read(file, number, read_top)


def test_a_question_that_is_derived_says_so():
    text = read("openai_v2/both", 0, read_top)
    assert "Question derived from the first child run parcels" in text
    assert "Answer derived from the last child run" in text


def test_a_streamed_answer_of_llama_index_comes_from_its_model_call():
    assert "Answer from a model call" in (text := read("openinference/llama_index", 2, read_top))
    assert ANSWER in text
    assert "generator object" not in text


def last_model_call(client: TestClient, trace: Trace) -> str:
    """The page's part about the last model call that has a result of a tool."""
    calls: list[Run] = [run for run in trace.runs if run.kind == "llm" and run.status != "error"]
    return client.get(f"/traces/{trace.trace_id}?run={calls[-1].span_id}", headers={"Spanwise-Part": "run"}).text


TOOLS = {
    "haystack/content": (3, "track", "parcel is in Ghent"),
    "langsmith/langchain": (0, "track", "on its way"),
    "logfire_sdk/agents": (0, "find", "parcel: three days"),
    "openai_agents/agents": (0, "find", "parcel: three days"),
    "openinference/langgraph": (0, "track", "parcel is in Ghent"),
    "openinference/langgraph_agent": (0, "refund", "order P1 is too old"),
    "openinference/llama_index": (4, "track", "parcel is in Ghent"),
    "openinference/llama_index_agent": (0, "refund", "order P1 is too old"),
    "pydantic_ai/version5": (0, "find", "parcel: three days"),
    "vercel/ai5": (1, "track", "Ghent"),
    "vercel/ai7": (1, "track", "Ghent"),
}


@pytest.mark.parametrize("file", TOOLS)
def test_a_tool_call_of_every_agent_has_its_result_and_leads_to_its_run(file):
    number, name, result = TOOLS[file]
    page = read(file, number, last_model_call)
    calls = [words(">" + call) for call in re.split('<div class="call(?=[" ])', page)[1:]]
    (shown,) = [call for call in calls if f" tool {name} Open its run" in call]
    assert result in shown


@pytest.mark.parametrize(
    ("file", "number", "error"),
    [
        ("vercel/ai6", 4, "no such parcel"),  # the result says so
        ("vercel/ai7", 4, "Error: no such parcel"),  # the run of the tool says so
        ("openinference/llama_index_agent", 0, "order P1 is too old"),
    ],
)
def test_a_tool_that_failed_is_marked_in_the_conversation(file, number, error):
    page = read(file, number, last_model_call)
    assert re.search(f'call-result failing"><span class="role">error</span>.*?{error}', page, re.DOTALL)
