"""What model calls have cost, at the prices of genai-prices."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from genai_prices import Usage, calc_price
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.dialects import RawSpan, export_prices, read_run

T = 1_760_000_000_000_000_000  # 2025-10-09


def span(**attributes: Any) -> RawSpan:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return RawSpan(trace_id="1" * 32, span_id="2" * 16, name="chat", attributes=named, start_ns=T)


def genai(model: str, given: int, made: int, **more: Any) -> RawSpan:
    tokens = {"gen_ai__usage__input_tokens": given, "gen_ai__usage__output_tokens": made}
    return span(gen_ai__operation__name="chat", gen_ai__request__model=model, **tokens, **more)


def test_a_call_costs_its_tokens() -> None:
    assert read_run(genai("gpt-4o-mini", 1_000_000, 1_000_000, gen_ai__system="openai")).cost == pytest.approx(0.75)


ELSEWHERE = """
import pickle, sys
from spanwise.collector.dialects import import_prices, read_run
learn, spans = pickle.loads(bytes.fromhex(sys.argv[1]))
import_prices(learn)
print([read_run(span).cost for span in spans], "genai_prices" in sys.modules)
"""


def test_a_process_that_is_told_prices_asks_for_none() -> None:
    spans = [genai(model, 1000, 100) for model in ("gpt-4o-mini", "gpt-4o", "no-such-model")]
    costs = [read_run(span).cost for span in spans]
    told = pickle.dumps((export_prices(), spans)).hex()
    found = subprocess.run([sys.executable, "-c", ELSEWHERE, told], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{costs} False"


@pytest.mark.process
def test_what_no_sum_answers_is_asked_for_in_a_process_that_is_told_prices() -> None:
    spans = [genai("gpt-4o-mini", 1000, 100, gen_ai__usage__cache_creation__input_tokens=900)]
    costs = [read_run(span).cost for span in spans]
    told = pickle.dumps((export_prices(), spans)).hex()
    found = subprocess.run([sys.executable, "-c", ELSEWHERE, told], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{costs} True"


def test_openinference_with_tokens_from_the_cache() -> None:
    found = read_run(
        span(
            openinference__span__kind="LLM",
            llm__model_name="gpt-4o-mini",
            llm__provider="openai",
            llm__token_count__prompt=1000,
            llm__token_count__completion=100,
            llm__token_count__prompt_details__cache_read=500,
        )
    )
    assert found.cost == pytest.approx(500 * 0.15e-6 + 500 * 0.075e-6 + 100 * 0.6e-6)


@pytest.mark.parametrize("name", ["spanwise__cost", "llm__cost__total"])
def test_a_cost_that_was_given_stays(name: str) -> None:
    assert read_run(genai("gpt-4o-mini", 10, 10, **{name: 1.5})).cost == 1.5


@pytest.mark.parametrize("model", ["nobody-knows-me", "m" * 100_000, "\ud800", " "])
def test_an_unknown_model_has_no_cost(model: str) -> None:
    found = read_run(genai(model, 10, 10))
    assert (found.cost, found.model) == (None, model)


def test_without_tokens_there_is_no_cost() -> None:
    assert read_run(span(gen_ai__request__model="gpt-4o-mini")).cost is None


@pytest.mark.parametrize("provider", ["azure.ai.openai", "my-gateway", 5])
def test_an_unknown_provider_is_no_obstacle(provider: Any) -> None:
    assert read_run(genai("gpt-4o-mini", 1000, 100, gen_ai__provider__name=provider)).cost == pytest.approx(0.00021)


def test_absurd_clocks_cost_nothing_but_the_price() -> None:
    beyond = RawSpan(
        trace_id="1" * 32, span_id="2" * 16, name="x", start_ns=2**63, attributes=genai("gpt-4o", 1, 1).attributes
    )
    assert read_run(beyond).model == "gpt-4o"


MODELS = ["gpt-4o", "gpt-4o-mini", "gemini-2.5-pro", "claude-3-5-sonnet-20241022", "o3"]


@given(st.sampled_from(MODELS), st.integers(0, 400_000), st.integers(0, 100_000), st.floats(0, 1))
def test_the_short_way_gives_what_genai_prices_gives(model: str, given_: int, made: int, share: float) -> None:
    cached = int(given_ * share)
    found = read_run(genai(model, given_, made, gen_ai__usage__cache_read__input_tokens=cached)).cost
    usage = Usage(input_tokens=given_, output_tokens=made, cache_read_tokens=cached)
    expected = calc_price(usage, model, genai_request_timestamp=datetime.fromtimestamp(T / 1e9, UTC)).total_price
    assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-15)
