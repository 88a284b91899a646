"""Clients of models that somebody has instrumented: judges are traced as judgements, and nothing else is."""

from __future__ import annotations

import asyncio

import pytest
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from evaluators.judge_server import Reply, serving
from spanwise.collector import aio, connect
from spanwise.collector.server import Server
from spanwise.evaluators import evaluate, get_evaluator, score
from spanwise.evaluators.judges import Judge
from spanwise.evaluators.models import Embedder
from spanwise.tracer import instrument, trace, uninstrument
from spanwise.tracer.testing import capture_spans

ID = "relevance_to_query"
YES = '{"rationale": "It is.", "rating": "yes"}'
ROWS = [{"inputs": {"question": f"Why {n}?"}} for n in range(3)]


@pytest.fixture
def server():
    with serving(lambda request: YES) as server:
        yield server


@pytest.fixture
def judge(server):
    return get_evaluator(ID, judge=Judge(model="m", base_url=server.url, api_key="key", cache=False))


@pytest.fixture
def ours():
    """Our own instrumentations of the model's client and of HTTP, with spans in memory."""
    with capture_spans() as spans:
        instrument("openai", "httpx")
        try:
            yield spans
        finally:
            uninstrument("openai", "httpx")


@pytest.fixture
def theirs():
    """Somebody else's instrumentation, with a provider of their own."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    yield exporter
    OpenAIInstrumentor().uninstrument()
    provider.shutdown()


def answer(question):
    return "Because."


def asked(server, content):
    """An application's own call of the same model."""
    from openai import OpenAI

    with OpenAI(base_url=server.url, api_key="key", max_retries=0) as client:
        said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
    return said.choices[0].message.content


def test_what_we_instrument_sees_the_applications_calls_and_no_judges(server, judge, ours, store):
    @trace
    def app(question):
        asked(server, question)
        score(judge, inputs=question, outputs="Because.")
        return "Because."

    app("Why?")
    app_spans = [span for span in ours.spans if span.context.trace_id == ours.one("app").context.trace_id]
    assert "app" in {span.name for span in app_spans}
    assert ID not in {span.name for span in app_spans}
    own = [span for span in ours.spans if span.context.trace_id != ours.one("app").context.trace_id]
    assert [span.name for span in own] == [ID, ID]
    calls = [span for span in app_spans if (span.attributes or {}).get("llm.model_name") or "Completion" in span.name]
    assert len(calls) == 1


def test_what_others_instrument_sees_no_judge(server, judge, theirs, store):
    with capture_spans():
        asked(server, "Why?")
        evaluate(ROWS, answer, [judge], store=store, progress=False)
    assert len(theirs.get_finished_spans()) == 1
    assert len(server.requests) == 4


@pytest.mark.process
def test_judging_all_that_is_there_again_and_again_comes_to_an_end(server, judge, ours, store):
    evaluate(ROWS, answer, [judge], store=store, progress=False)
    for _ in range(3):
        everything = [*store.traces(limit=100), *store.traces(kind="evaluator", limit=100)]
        evaluate(everything, None, [judge], store=store, attach=True, progress=False)
    assert len(server.requests) == 3 + 3 * 3
    assert len(store.traces(limit=100)) == 3
    assert all(one.span_count == 2 for one in store.traces(kind="evaluator", limit=100))
    assert ours.names() == []


@pytest.mark.process
def test_our_own_requests_to_a_store_and_to_models_are_not_traced(server, judge, ours, store):
    with Server(store) as collector, serving(embeddings) as embedder:
        with connect(collector.url) as client:
            evaluate(ROWS, answer, [judge], store=client, progress=False)
            assert len(client.traces(limit=10)) == 3
            asyncio.run(aio(client).traces(limit=10))
        Embedder("m", base_url=embedder.url, cache=False).embed(["a"])
        evaluate(ROWS, answer, [judge], store=collector.url, progress=False)
    assert len(server.requests) == 6
    assert ours.names() == []


def embeddings(request):
    data = [{"object": "embedding", "index": n, "embedding": [1.0, 2.0]} for n in range(len(request.body["input"]))]
    return Reply(body={"object": "list", "data": data})
