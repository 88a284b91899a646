"""What a model call has cost, where nobody said: its tokens at the prices that genai-prices knows, without a network.

A price is looked up once per model, provider and hour of the call (some change with the time of day), found or not.
Up to its first tier it is linear, so that of most calls nothing but a sum is asked: genai-prices takes 70 µs for each,
and a third of a second, with 16 MB, to begin with: a process that is told what is known needs none of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from spanwise.collector.dialects._draft import Draft
from spanwise.collector.dialects._keys import COSTS, Memo
from spanwise.collector.dialects._values import text
from spanwise.collector.dialects.reported_costs import take_reported_cost
from spanwise.collector.records import Usage
from spanwise.tracer import attributes as names

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
CACHED = "cache_read.input_tokens"
DETAILS = {
    CACHED: "cache_read_tokens",
    "cache_creation.input_tokens": "cache_write_tokens",
    "audio.input_tokens": "input_audio_tokens",
    "audio.output_tokens": "output_audio_tokens",
}
ADDRESS = "server.address"
UNPRICED = names.UNPRICED
HOUR_NS = 3_600_000_000_000
LONGEST = 200  # characters of a model's name
MILLION = 1_000_000


class Price(NamedTuple):
    """Dollars per token for calls of up to `until` input tokens; beyond it genai-prices is asked."""

    until: float
    input: float
    output: float
    cached: float


class Asked(NamedTuple):
    """Whose price it is, in which hour since 1970, and the address of the endpoint, if it is known."""

    model: str
    provider: str | None
    hour: int
    address: str | None = None


_known: Memo[Asked, Price | None] = Memo()  # None: it knows no such model


def known_prices() -> dict[Asked, Price | None]:
    """What has been looked up, for `learn_prices` in another process."""
    return dict(_known)


def learn_prices(known: Mapping[Asked, Price | None]) -> None:
    """Have what another process has looked up."""
    for asked, price in known.items():
        _known.keep(asked, price, len(asked.model))


def prices(draft: Draft) -> None:
    """Fill in what a call has cost from its model and its tokens, unless its sender said so."""
    fields = draft.fields
    if "cost" not in fields and not COSTS.isdisjoint(draft.namespaces):
        take_reported_cost(draft)
    if "usage" in fields and "cost" not in fields and "model" in fields:
        fields["cost"] = cost(fields["model"], fields["usage"], draft.span.attributes, draft.span.start_ns)


def cost(model: str, usage: Usage, attributes: Mapping[str, Any], start_ns: int) -> float | None:
    """US dollars; None for a model that genai-prices does not know, and for an endpoint to which no price applies."""
    if len(model) > LONGEST or UNPRICED in attributes:
        return None
    provider = None if attributes.keys().isdisjoint(PROVIDERS) else _provider(attributes)
    address = text(attributes.get(ADDRESS))
    asked = Asked(model, provider, start_ns // HOUR_NS, address and address[:LONGEST])
    try:
        price = _known[asked]
    except KeyError:
        price = _known.keep(asked, _linear(asked), len(model) + len(address or ""))
    return None if price is None else _cost(asked, price, usage)


def price_applies(address: str | None) -> bool:
    """Return whether models at an address have the prices that genai-prices knows; None: the address is not known.

    The address is a base URL or a host. A model at an endpoint that genai-prices does not know, such as a server of
    one's own, has no price, whatever it is called there.
    """
    return not address or provider_at(address) is not None


@lru_cache(maxsize=1024)
def provider_at(address: str) -> str | None:
    """Return the name of the provider at a base URL or host; None for one that genai-prices does not know."""
    from genai_prices.data_snapshot import get_snapshot

    url = address if "://" in address else f"https://{address}"
    try:
        provider = get_snapshot().find_provider(None, None, url)
    except LookupError:
        return None
    # The patterns match beginnings: `https://api.openai.com.example.org` is somebody else's
    known = re.match(provider.api_pattern, url)
    is_longer = known is not None and known[0][-1:] not in ("/", ".") and re.match(r"[\w.-]", url[known.end() :])
    return None if is_longer else provider.id


def _provider(attributes: Mapping[str, Any]) -> str | None:
    provider = next((named for name in PROVIDERS if (named := text(attributes.get(name)))), None)
    return provider and provider[:LONGEST]


def _cost(asked: Asked, price: Price, usage: Usage) -> float | None:
    details = {name: n for name, n in usage.details.items() if n and name in DETAILS} if usage.details else {}
    cached = details.pop(CACHED, 0)
    if details or not 0 <= cached <= usage.input_tokens <= price.until or usage.output_tokens < 0:
        model = _model(asked)
        return None if model is None else _billed(model, usage)
    return (usage.input_tokens - cached) * price.input + usage.output_tokens * price.output + cached * price.cached


@lru_cache(maxsize=1024)
def _model(asked: Asked) -> ModelPrice | None:
    model, provider, hour, address = asked
    if not price_applies(address):
        return None
    try:
        return _of_snapshot(model, provider, datetime.fromtimestamp(hour * 3600, UTC))
    except (LookupError, ValueError, OverflowError, OSError):  # an unknown model; a clock beyond the calendar
        return None


def _of_snapshot(model: str, provider: str | None, when: datetime) -> ModelPrice:
    from genai_prices.data_snapshot import DataSnapshot, get_snapshot

    # A fresh one: it remembers every name that it did not find, for ever.
    snapshot = DataSnapshot(get_snapshot().providers, from_auto_update=False)
    try:
        return snapshot.find_provider_model(model, None, provider, None)[1].get_prices(when)
    except LookupError:  # a provider that it does not know, or that only passes the model on
        return snapshot.find_provider_model(model, None, None, None)[1].get_prices(when)


def _linear(asked: Asked) -> Price | None:
    model = _model(asked)
    if model is None:
        return None
    tiers = [tier.start for price in vars(model).values() for tier in getattr(price, "tiers", ())]
    until = min(tiers, default=math.inf)
    part = int(min(until, MILLION))
    parts = (Usage(part), Usage(0, MILLION), Usage(part, 0, {CACHED: part}))
    given, made, cached = (_billed(model, usage) for usage in parts)
    if not part or given is None or made is None or cached is None:
        return Price(-1, 0.0, 0.0, 0.0)
    return Price(until, given / part, made / MILLION, cached / part)


def _billed(model: ModelPrice, usage: Usage) -> float | None:
    from genai_prices import Usage as Billed

    details = {DETAILS[name]: n for name, n in usage.details.items() if n and name in DETAILS}
    for some in (details, {}):
        try:
            billed = Billed(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, **some)
            return float(model.calc_price(billed)["total_price"])
        except (ValueError, ArithmeticError):  # more tokens from the cache than tokens: the sums may still be right
            continue
    return None
