"""Token counts and cost of a model call: normalization, reported costs, and prices by genai-prices.

Vendors disagree: OpenAI's `prompt_tokens` include tokens from the cache, Anthropic's `input_tokens` do not; OpenAI's
`completion_tokens` include reasoning, Gemini's `candidates_token_count` does not. docs/costs.md has the table.

Each price is looked up once per model, provider and hour of the call, because some prices depend on the time of day.
Unknown models are cached, too. Below its first tier, a price is linear, so the cost of most calls is one
multiplication per kind of token. genai-prices itself takes 70 µs per call, and a third of a second and 16 MB at the
first use. A process that imports the prices of another one (`import_prices`) avoids both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from spanwise.collector.dialects.draft import (
    AGGREGATE_KINDS,
    COST_NAMES,
    PARTIAL_COST_NAMES,
    TOTAL_COST_NAMES,
    Draft,
    Memo,
    new_usage,
    parse_number,
    text_or_none,
)
from spanwise.collector.records import JSON, Usage
from spanwise.tracer import attribute_names as names

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice


CACHE_READ, CACHE_WRITE = "cache_read.input_tokens", "cache_creation.input_tokens"
REASONING = "reasoning.output_tokens"
AUDIO_INPUT, AUDIO_OUTPUT = "audio.input_tokens", "audio.output_tokens"
MAX_TOKENS = 2**53  # highest token count; integers up to this are exact as JSON numbers


def normalize_usage(
    input: int,
    output: int,
    details: dict[str, int],
    *,
    total: int | None = None,
    cache_apart: bool = False,
    reasoning_apart: bool = False,
) -> Usage:
    """Return the usage. Add cached, reasoning and audio tokens to the totals if the sender counts them separately.

    `cache_apart` and `reasoning_apart`: the sender is known to do this. Otherwise a part counts as separate if it is
    larger than the total that should include it. A cached or reasoning part also does if the sender's `total` is right
    only with it added. If a sender excludes reasoning tokens and does not report them, they are the difference to `total`.
    """
    if reasoning_apart and REASONING not in details and total is not None and total > input + output:
        details = {**details, REASONING: total - input - output}
    if not details:
        return new_usage(input, output, details)
    cached = details.get(CACHE_READ, 0) + details.get(CACHE_WRITE, 0)
    reasoning = details.get(REASONING, 0)
    if total is not None and (missing := total - input - output) > 0:
        reasoning_apart = reasoning_apart or missing in (reasoning, reasoning + cached)
        cache_apart = cache_apart or missing in (cached + reasoning, cached)
    if cache_apart or cached > input:
        input = _add_bounded(input, cached)
    if reasoning_apart or reasoning > output:
        output = _add_bounded(output, reasoning)
    if (audio := details.get(AUDIO_INPUT, 0)) > input:
        input = _add_bounded(input, audio)
    if (audio := details.get(AUDIO_OUTPUT, 0)) > output:
        output = _add_bounded(output, audio)
    return new_usage(input, output, details)


def _add_bounded(tokens: int, part: int) -> int:
    """Return the sum, or the larger of the two numbers if the sum reaches `MAX_TOKENS`."""
    return tokens + part if tokens + part < MAX_TOKENS else max(tokens, part)


def take_reported_cost(draft: Draft) -> None:
    """Fill in the cost that a sender reports. Ignore it on spans that only repeat the sum of the calls below them."""
    attributes, fields = draft.attributes, draft.fields
    if draft.sums or (fields.get("kind") in AGGREGATE_KINDS and "decision" not in draft.namespaces):
        return
    for name in TOTAL_COST_NAMES:
        if (cost := parse_dollars(attributes.get(name))) is not None:
            fields["cost"] = cost
            del attributes[name]
            return
    for pair in PARTIAL_COST_NAMES:
        parts = [part for name in pair if (part := parse_dollars(attributes.get(name))) is not None]
        if len(parts) == len(pair):
            fields["cost"] = sum(parts)
            return


def parse_dollars(value: JSON) -> float | None:
    """Return a cost in US dollars: a finite, non-negative number, also parsed from text; else None."""
    cost = parse_number(value)
    return cost if cost is not None and cost >= 0 else None


PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
CACHED_DETAIL = "cache_read.input_tokens"
BILLED_DETAILS = {
    CACHED_DETAIL: "cache_read_tokens",
    "cache_creation.input_tokens": "cache_write_tokens",
    "audio.input_tokens": "input_audio_tokens",
    "audio.output_tokens": "output_audio_tokens",
}
ADDRESS = "server.address"
UNPRICED = names.UNPRICED
HOUR_NS = 3_600_000_000_000
MAX_NAME_CHARS = 200  # maximum length of a model's name
MILLION = 1_000_000


class Price(NamedTuple):
    """US dollars per token for calls of up to `until` input tokens. genai-prices computes the cost of larger calls."""

    until: float
    input: float
    output: float
    cached: float


class PriceKey(NamedTuple):
    """Key of a price: model, provider, hour since 1970, and the endpoint's address, if it is known."""

    model: str
    provider: str | None
    hour: int
    address: str | None = None


_price_memo: Memo[PriceKey, Price | None] = Memo()  # None: unknown model


def export_prices() -> dict[PriceKey, Price | None]:
    """Return the cached prices, for `import_prices` in another process."""
    return dict(_price_memo)


def import_prices(known: Mapping[PriceKey, Price | None]) -> None:
    """Add prices from another process to the cache."""
    for key, price in known.items():
        _price_memo.keep(key, price, len(key.model))


def prices(draft: Draft) -> None:
    """Fill in the cost of a call from its model and its tokens, unless the sender reports one."""
    fields = draft.fields
    if "cost" not in fields and not COST_NAMES.isdisjoint(draft.namespaces):
        take_reported_cost(draft)
    if "usage" in fields and "cost" not in fields and "model" in fields:
        fields["cost"] = compute_cost(fields["model"], fields["usage"], draft.span.attributes, draft.span.start_ns)


def compute_cost(model: str, usage: Usage, attributes: Mapping[str, Any], start_ns: int) -> float | None:
    """Return the cost in US dollars; None for a model without a known price, or an endpoint to which no price
    applies.
    """
    if len(model) > MAX_NAME_CHARS or UNPRICED in attributes:
        return None
    provider = None
    if not attributes.keys().isdisjoint(PROVIDERS):
        provider = next(
            (provider_name for name in PROVIDERS if (provider_name := text_or_none(attributes.get(name)))), None
        )
        provider = provider and provider[:MAX_NAME_CHARS]
    address = text_or_none(attributes.get(ADDRESS))
    key = PriceKey(model, provider, start_ns // HOUR_NS, address and address[:MAX_NAME_CHARS])
    try:
        price = _price_memo[key]
    except KeyError:
        price = _price_memo.keep(key, _find_linear_price(key), len(model) + len(address or ""))
    if price is None:
        return None
    details = {name: n for name, n in usage.details.items() if n and name in BILLED_DETAILS} if usage.details else {}
    cached = details.pop(CACHED_DETAIL, 0)
    if details or not 0 <= cached <= usage.input_tokens <= price.until or usage.output_tokens < 0:
        model_price = _find_model_price(key)
        return None if model_price is None else _bill(model_price, usage)
    return (usage.input_tokens - cached) * price.input + usage.output_tokens * price.output + cached * price.cached


def has_price(address: str | None) -> bool:
    """Return whether the prices of genai-prices apply to models at an address; True for an unknown address (None).

    The address is a base URL or a host. Models at an endpoint that genai-prices does not know, such as a self-hosted
    server, have no price, whatever their names.
    """
    return not address or find_provider(address) is not None


@lru_cache(maxsize=1024)
def find_provider(address: str) -> str | None:
    """Return the name of the provider at a base URL or host; None if genai-prices does not know it."""
    from genai_prices.data_snapshot import get_snapshot

    url = address if "://" in address else f"https://{address}"
    try:
        provider = get_snapshot().find_provider(None, None, url)
    except LookupError:
        return None
    # genai-prices' patterns match only the start of the URL. Without this check, `https://api.openai.com.example.org`
    # would belong to OpenAI
    match = re.match(provider.api_pattern, url)
    is_longer = match is not None and match[0][-1:] not in ("/", ".") and re.match(r"[\w.-]", url[match.end() :])
    return None if is_longer else provider.id


@lru_cache(maxsize=1024)
def _find_model_price(key: PriceKey) -> ModelPrice | None:
    model, provider, hour, address = key
    if not has_price(address):
        return None
    try:
        return _look_up_model_price(model, provider, datetime.fromtimestamp(hour * 3600, UTC))
    # an unknown model, or a time outside the calendar's range
    except (LookupError, ValueError, OverflowError, OSError):
        return None


def _look_up_model_price(model: str, provider: str | None, when: datetime) -> ModelPrice:
    from genai_prices.data_snapshot import DataSnapshot, get_snapshot

    # Use a new snapshot each time, because a snapshot caches every unknown model name for ever.
    snapshot = DataSnapshot(get_snapshot().providers, from_auto_update=False)
    try:
        return snapshot.find_provider_model(model, None, provider, None)[1].get_prices(when)
    except LookupError:  # an unknown provider, or one that only resells the model
        return snapshot.find_provider_model(model, None, None, None)[1].get_prices(when)


def _find_linear_price(key: PriceKey) -> Price | None:
    model = _find_model_price(key)
    if model is None:
        return None
    tiers = [tier.start for price in vars(model).values() for tier in getattr(price, "tiers", ())]
    until = min(tiers, default=math.inf)
    input_tokens = int(min(until, MILLION))
    usages = (Usage(input_tokens), Usage(0, MILLION), Usage(input_tokens, 0, {CACHED_DETAIL: input_tokens}))
    input_price, output_price, cached_price = (_bill(model, usage) for usage in usages)
    if not input_tokens or input_price is None or output_price is None or cached_price is None:
        return Price(-1, 0.0, 0.0, 0.0)
    return Price(until, input_price / input_tokens, output_price / MILLION, cached_price / input_tokens)


def _bill(model: ModelPrice, usage: Usage) -> float | None:
    from genai_prices import Usage as Billed

    details = {BILLED_DETAILS[name]: n for name, n in usage.details.items() if n and name in BILLED_DETAILS}
    for billed_details in (details, {}):
        try:
            tokens = Billed(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, **billed_details)
            return float(model.calc_price(tokens)["total_price"])
        # inconsistent details, such as more cached than input tokens: try without details
        except (ValueError, ArithmeticError):
            continue
    return None
