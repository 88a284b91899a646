"""Tokens and costs of every sender, by what its input and output tokens include, at the vendors' published prices."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.dialects import RawSpan, compute_cost, read_run
from spanwise.collector.dialects.token_costs import normalize_usage
from spanwise.collector.records import Run, Usage
from spanwise.tracer.content.model_calls import build_usage_attributes

T = 1_760_000_000_000_000_000  # 2025-10-09


class Price(NamedTuple):
    """US dollars per million tokens, as published."""

    model: str
    provider: str
    input: float
    cached: float | None
    written: float | None
    output: float


PUBLISHED = [
    Price("gpt-4o", "openai", 2.50, 1.25, None, 10.00),  # https://developers.openai.com/api/docs/pricing
    Price("o3", "openai", 2.00, 0.50, None, 8.00),  # the same
    Price("claude-sonnet-4-20250514", "anthropic", 3.00, 0.30, 3.75, 15.00),  # https://www.anthropic.com/pricing#api
    Price("gemini-2.5-flash", "google", 0.30, 0.03, None, 2.50),  # https://ai.google.dev/gemini-api/docs/pricing
    Price("amazon.nova-pro-v1:0", "aws", 0.80, 0.20, None, 3.20),  # https://aws.amazon.com/bedrock/pricing/
    Price("grok-4", "x-ai", 3.00, 0.75, None, 15.00),  # https://docs.x.ai/docs/models
    Price("mistral-large-latest", "mistral", 2.00, None, None, 6.00),  # https://mistral.ai/pricing/api
    Price("command-a-03-2025", "cohere", 2.50, None, None, 10.00),  # https://cohere.com/pricing
    Price("llama-3.3-70b-versatile", "groq", 0.59, None, None, 0.79),  # https://console.groq.com/docs/models
]
GPT, CLAUDE, GEMINI = PUBLISHED[0], PUBLISHED[2], PUBLISHED[3]


class Call(NamedTuple):
    """What a call used; None: the vendor does not report it."""

    plain: int
    cached: int | None = None
    written: int | None = None
    text: int = 100
    reasoning: int | None = None

    @property
    def input(self) -> int:
        return self.plain + (self.cached or 0) + (self.written or 0)

    @property
    def output(self) -> int:
        return self.text + (self.reasoning or 0)

    def dollars(self, price: Price) -> float:
        parts = ((self.plain, price.input), (self.cached or 0, price.cached), (self.written or 0, price.written))
        return sum(n * each for n, each in (*parts, (self.output, price.output)) if each is not None) / 1e6


CALLS = {
    "absent": Call(1000),
    "zero": Call(1000, 0, 0, 100, 0),
    "present": Call(2000, 1000, 200, 400, 150),
    "larger than the rest": Call(5, 1000, 200, 100, 900),
    "all from the cache": Call(0, 1000, 0, 100, 0),
}


def without_none(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def span(attributes: dict[str, Any], scope: str = "") -> RawSpan:
    return RawSpan("1" * 32, "2" * 16, "chat", start_ns=T, attributes=without_none(attributes), scope=scope)


def genai(price: Price, call: Call, cached: str, written: str, reasoning: str, **more: Any) -> dict[str, Any]:
    named = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": price.provider,
        "gen_ai.request.model": price.model,
    }
    tokens = {"input_tokens": call.input, "output_tokens": call.output}
    tokens |= {cached: call.cached, written: call.written, reasoning: call.reasoning, **more}
    return {**named, **{f"gen_ai.usage.{name}": value for name, value in tokens.items()}}


def openinference(price: Price, call: Call, input: int, output: int, total: int | None = None) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "llm.model_name": price.model,
        "llm.provider": price.provider,
        "llm.token_count.prompt": input,
        "llm.token_count.completion": output,
        "llm.token_count.total": total,
        "llm.token_count.prompt_details.cache_read": call.cached,
        "llm.token_count.prompt_details.cache_write": call.written,
        "llm.token_count.completion_details.reasoning": call.reasoning,
    }


def vercel(price: Price, call: Call, provider: str, input: int, output: int, **more: Any) -> dict[str, Any]:
    named = {"ai.operationId": "ai.generateText.doGenerate", "ai.model.id": price.model, "ai.model.provider": provider}
    return {
        **named,
        "gen_ai.system": price.provider,
        "ai.usage.inputTokens": input,
        "ai.usage.outputTokens": output,
        **more,
    }


def mlflow(price: Price, api: str, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "mlflow.spanType": '"CHAT_MODEL"',
        "mlflow.llm.model": json.dumps(price.model),
        "mlflow.message.format": json.dumps(api),
        "mlflow.chat.tokenUsage": json.dumps(without_none(usage)),
    }


def anthropic(call: Call) -> dict[str, Any]:
    """Usage as Anthropic's API has it: its input tokens leave out the cache."""
    usage = {"cache_read_input_tokens": call.cached, "cache_creation_input_tokens": call.written}
    return without_none({"input_tokens": call.plain, "output_tokens": call.output, **usage})


def openai(call: Call) -> dict[str, Any]:
    inner = {
        "prompt_tokens_details": {"cached_tokens": call.cached},
        "completion_tokens_details": {"reasoning_tokens": call.reasoning},
    }
    return {"prompt_tokens": call.input, "completion_tokens": call.output, "total_tokens": call.input + call.output, **inner}  # fmt: skip


def haystack(price: Price, usage: dict[str, Any]) -> dict[str, Any]:
    output = {"replies": [{"meta": {"model": price.model, "usage": usage}}]}
    return {"haystack.component.type": "OpenAIChatGenerator", "haystack.component.output": json.dumps(output)}


def langsmith(price: Price, call: Call) -> dict[str, Any]:
    details = {"cache_read": call.cached, "cache_creation": call.written}
    usage = {
        "input_tokens": call.input,
        "output_tokens": call.output,
        "total_tokens": call.input + call.output,
        "input_token_details": without_none(details),
        "output_token_details": without_none({"reasoning": call.reasoning}),
    }
    return {
        "langsmith.span.kind": "llm",
        "gen_ai.request.model": price.model,
        "langsmith.metadata.usage_metadata": json.dumps(usage),
    }


def langfuse(price: Price, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "langfuse.observation.type": "generation",
        "langfuse.observation.model.name": price.model,
        "langfuse.observation.usage_details": json.dumps(without_none(usage)),
    }


def tracer(price: Price, usage: dict[str, Any]) -> dict[str, Any]:
    more = {name: value for name, value in usage.items() if name not in ("input_tokens", "output_tokens")}
    told = build_usage_attributes(usage.get("input_tokens"), usage.get("output_tokens"), more)
    return {"openinference.span.kind": "LLM", "gen_ai.request.model": price.model, **told}


def in_repr(price: Price, call: Call) -> dict[str, Any]:
    reply = f"ChatMessage(_role='assistant', _content=['say 'usage': x'], _meta={{'model': 'm', 'usage': {openai(call)!r}}})"
    told = openinference(price, call, call.input, call.output)
    told = {name: value for name, value in told.items() if "details" not in name}
    return {**told, "output.value": json.dumps({"replies": [reply]}), "output.mime_type": "application/json"}


LATEST = ("cache_read.input_tokens", "cache_write.input_tokens", "reasoning.output_tokens")
EARLIER = ("cache_read.input_tokens", "cache_creation.input_tokens", "reasoning.output_tokens")
FLAT = ("cache_read_input_tokens", "cache_creation_input_tokens", "reasoning_tokens")
BEDROCK, GOOGLE = "opentelemetry.instrumentation.bedrock", "opentelemetry.instrumentation.google_generativeai"
# Sender → price, its attributes for a call, and its scope; of what it leaves out the call has none
SENDERS: dict[str, tuple[Price, Any, str]] = {
    "GenAI, latest": (CLAUDE, lambda p, c: genai(p, c, *LATEST), "x"),
    "GenAI, earlier": (CLAUDE, lambda p, c: genai(p, c, *EARLIER), "x"),
    "OpenLLMetry, Anthropic": (CLAUDE, lambda p, c: genai(p, c, *FLAT), "opentelemetry.instrumentation.anthropic"),
    "OpenLLMetry, Bedrock": (CLAUDE, lambda p, c: genai(p, c, *FLAT, input_tokens=c.plain), BEDROCK),
    "OpenLLMetry, Gemini": (GEMINI, lambda p, c: genai(p, c, "cache_read_input_tokens", "-", "--", output_tokens=c.text, total_tokens=c.input + c.output), GOOGLE),
    "OpenLIT, Anthropic": (CLAUDE, lambda p, c: genai(p, c, *EARLIER, input_tokens=c.plain), "openlit.instrumentation.anthropic"),
    "OpenLIT, Gemini": (GEMINI, lambda p, c: {**genai(p, c, *FLAT, output_tokens=c.text), "gen_ai.provider.name": "gemini"}, "openlit.otel.tracing"),
    "OpenInference": (CLAUDE, lambda p, c: openinference(p, c, c.input, c.output), ""),
    "OpenInference, with a total": (CLAUDE, lambda p, c: openinference(p, c, c.input, c.output, c.input + c.output), ""),
    "OpenInference, parts apart": (CLAUDE, lambda p, c: openinference(p, c, c.plain, c.text, c.input + c.output), ""),
    "OpenInference, reasoning apart": (GEMINI, lambda p, c: openinference(p, c, c.input, c.text, c.input + c.output), ""),
    "OpenInference, Haystack": (GPT, in_repr, "openinference.instrumentation.haystack"),
    "Haystack, OpenAI": (GPT, lambda p, c: haystack(p, openai(c)), ""),
    "Haystack, Anthropic": (CLAUDE, lambda p, c: haystack(p, {**anthropic(c), "prompt_tokens": c.input, "input_tokens": None, "output_tokens": None, "completion_tokens": c.output}), ""),
    "AI SDK 5, OpenAI": (GPT, lambda p, c: vercel(p, c, "openai.chat", c.input, c.output, **{"ai.usage.cachedInputTokens": c.cached, "ai.usage.reasoningTokens": c.reasoning}), ""),
    "AI SDK 5, Anthropic": (CLAUDE, lambda p, c: vercel(p, c, "anthropic.messages", c.plain, c.output, **{"ai.usage.cachedInputTokens": c.cached, "ai.usage.totalTokens": c.plain + c.output}), ""),
    "AI SDK 5, Gemini": (GEMINI, lambda p, c: vercel(p, c, "google.generative-ai", c.input, c.text, **{"ai.usage.cachedInputTokens": c.cached, "ai.usage.reasoningTokens": c.reasoning, "ai.usage.totalTokens": c.input + c.output}), ""),
    "AI SDK 6": (CLAUDE, lambda p, c: vercel(p, c, "anthropic.messages", c.input, c.output, **{"ai.usage.inputTokenDetails.cacheReadTokens": c.cached or 0, "ai.usage.inputTokenDetails.cacheWriteTokens": c.written, "ai.usage.cachedInputTokens": c.cached, "ai.usage.reasoningTokens": c.reasoning}), ""),
    "MLflow, OpenAI": (GPT, lambda p, c: mlflow(p, "openai", {"input_tokens": c.input, "output_tokens": c.output, "total_tokens": c.input + c.output, "cache_read_input_tokens": c.cached}), "mlflow.x"),
    "MLflow, Anthropic": (CLAUDE, lambda p, c: mlflow(p, "anthropic", {**anthropic(c), "total_tokens": c.plain + c.output}), "mlflow.x"),
    "MLflow, Gemini": (GEMINI, lambda p, c: mlflow(p, "gemini", {"input_tokens": c.input, "output_tokens": c.text, "total_tokens": c.input + c.output, "cache_read_input_tokens": c.cached}), "mlflow.x"),
    "LangSmith": (CLAUDE, langsmith, ""),
    "Langfuse": (CLAUDE, lambda p, c: langfuse(p, {"input": c.plain, "output": c.text, "input_cached_tokens": c.cached, "input_cache_creation": c.written, "output_reasoning_tokens": c.reasoning, "total": c.input + c.output}), ""),
    "Langfuse, Anthropic's names": (CLAUDE, lambda p, c: langfuse(p, {"input": c.plain, "output": c.output, "cache_read_input_tokens": c.cached, "cache_creation_input_tokens": c.written}), ""),
    "Langfuse, OpenAI's names": (GPT, lambda p, c: langfuse(p, openai(c)), ""),
    "set_usage of OpenAI's": (GPT, lambda p, c: tracer(p, openai(c)), "spanwise"),
    "set_usage of Anthropic's": (CLAUDE, lambda p, c: tracer(p, anthropic(c)), "spanwise"),
    "set_usage of Gemini's": (GEMINI, lambda p, c: tracer(p, without_none({"prompt_token_count": c.input, "candidates_token_count": c.text, "thoughts_token_count": c.reasoning, "cached_content_token_count": c.cached, "total_token_count": c.input + c.output})), "spanwise"),
    "set_usage": (CLAUDE, lambda p, c: tracer(p, without_none({"input_tokens": c.input, "output_tokens": c.output, "cache_read": c.cached, "cache_creation": c.written})), "spanwise"),
}  # fmt: skip
NO_WRITES = {name for name in SENDERS if SENDERS[name][0].written is None} | {"AI SDK 5, Anthropic"}


@loop_over("call", CALLS)
@loop_over("sender", SENDERS)
def test_a_call_costs_what_the_vendor_publishes(sender: str, call: str) -> None:
    price, attributes, scope = SENDERS[sender]
    used = CALLS[call]._replace(written=None) if sender in NO_WRITES else CALLS[call]
    found = read_run(span(attributes(price, used), scope))
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (used.input, used.output)
    assert found.cost == pytest.approx(used.dollars(price))


@loop_over("price", PUBLISHED, ids=lambda price: price.model)
def test_published_prices(price: Price) -> None:
    used = Call(2000, price.cached and 1000, price.written and 200)  # type: ignore[arg-type]
    assert read_run(span(genai(price, used, *LATEST))).cost == pytest.approx(used.dollars(price))


COUNTS = st.one_of(st.none(), st.integers(0, 10**6), st.sampled_from([2**53 - 1]))


@pytest.mark.process
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SENDERS)), st.dictionaries(st.integers(0, 12), COUNTS))
def test_no_counts_make_a_part_larger_than_the_tokens_that_include_it(
    sender: str, counts: dict[int, int | None]
) -> None:
    price, attributes, scope = SENDERS[sender]
    told = without_none(attributes(price, CALLS["present"]))
    numbers = [name for name in told if type(told[name]) is int]
    found: Run = read_run(
        span({**told, **{name: counts[at] for at, name in enumerate(numbers) if at in counts}}, scope)
    )
    if (usage := found.usage) is not None:
        sides = {"input": usage.input_tokens, "output": usage.output_tokens}
        assert all(tokens <= sides[side] for name, tokens in usage.details.items() for side in sides if side in name)
        assert found.cost is None or found.cost >= 0


@loop_over(
    ("given_", "expected"),
    [
        ((10, 5, {"cache_read.input_tokens": 10}), (10, 5)),
        ((10, 5, {"cache_read.input_tokens": 11}), (21, 5)),
        ((10, 5, {"cache_read.input_tokens": 8, "cache_creation.input_tokens": 8}), (26, 5)),
        ((10, 5, {"reasoning.output_tokens": 6}), (10, 11)),
        ((10, 5, {"audio.input_tokens": 12, "audio.output_tokens": 7}), (22, 12)),
        ((10, 5, {"cache_read.input_tokens": 2**53 - 1}), (2**53 - 1, 5)),
    ],
)
def test_a_part_that_is_larger_than_the_whole_is_counted_apart(given_: Any, expected: tuple[int, int]) -> None:
    found = normalize_usage(*given_)
    assert (found.input_tokens, found.output_tokens) == expected


@loop_over(
    ("total", "expected"),
    [(15, (10, 5)), (18, (13, 5)), (17, (10, 7)), (20, (13, 7)), (16, (10, 5)), (10, (10, 5)), (None, (10, 5))],
)
def test_a_total_says_what_the_counts_leave_out(total: int | None, expected: tuple[int, int]) -> None:
    found = normalize_usage(10, 5, {"cache_read.input_tokens": 3, "reasoning.output_tokens": 2}, total=total)
    assert (found.input_tokens, found.output_tokens) == expected


REPORTED = ["llm.cost.total", "gen_ai.usage.cost", "gen_ai.usage.total_cost", "operation.cost", "spanwise.cost"]


@loop_over("scope", ["", "gateway", "pydantic-ai", "logfire.openai"])
@loop_over("name", REPORTED)
def test_a_reported_cost_goes_before_what_is_computed(name: str, scope: str) -> None:
    told = genai(GPT._replace(model="ours-7b"), Call(10), *LATEST)
    assert read_run(span({**told, name: 0.25}, scope)).cost == 0.25
    assert read_run(span({**told, "gen_ai.request.model": "gpt-4o", name: 0.0}, scope)).cost == 0.0
    for none in (-1, "dear", float("nan"), None):
        assert read_run(span({**told, name: none}, scope)).cost is None


def test_a_reported_cost_may_be_in_two_parts() -> None:
    told = genai(GPT, Call(10), *LATEST)
    assert read_run(
        span({**told, "gen_ai.usage.input_cost": 0.1, "gen_ai.usage.output_cost": 0.2})
    ).cost == pytest.approx(0.3)
    assert read_run(span({**told, "gen_ai.usage.input_cost": 0.1})).cost == pytest.approx(Call(10).dollars(GPT))


@loop_over("name", [*REPORTED[:4], "llm.cost.prompt"])
@loop_over("operation", ["invoke_agent", "invoke_workflow", "fetch_response"])
def test_spans_that_repeat_the_costs_of_others_have_none(operation: str, name: str) -> None:
    told = {**genai(GPT, Call(10), *LATEST), "gen_ai.operation.name": operation, name: 0.25, "llm.cost.completion": 1.0}
    found = read_run(span(told))
    assert (found.cost, found.usage) == (None, None)


def test_a_response_that_is_fetched_is_not_counted_again() -> None:
    found = read_run(span({**genai(CLAUDE, Call(10), *LATEST), "gen_ai.operation.name": "fetch_response"}))
    assert (found.kind, found.usage, found.cost) == ("chain", None, None)


@loop_over(
    ("address", "priced"),
    [
        ("api.openai.com", True),
        ("mine.openai.azure.com", True),
        ("localhost", False),
        ("10.0.0.7", False),
        ("api.openai.com.example.org", False),
        (None, True),
        (7, True),
    ],
)
def test_a_price_applies_to_endpoints_that_are_known(address: Any, priced: bool) -> None:
    found = read_run(span({**genai(GPT, Call(10), *LATEST), "server.address": address}))
    assert found.cost == (pytest.approx(Call(10).dollars(GPT)) if priced else None)
    assert (
        read_run(span({**genai(GPT, Call(10), *LATEST), "server.address": address, "gen_ai.usage.cost": 2.0})).cost
        == 2.0
    )


def test_cost_of_counts_that_make_no_sense() -> None:
    assert compute_cost("gpt-4o", Usage(10, 5, {"cache_read.input_tokens": 50}), {}, T) == pytest.approx(75e-6)
