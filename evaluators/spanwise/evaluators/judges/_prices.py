"""What models cost, as genai-prices knows it, and what a judge's own `price` makes of it."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from spanwise.collector.records import Usage

if TYPE_CHECKING:
    from spanwise.evaluators.judges._judge import Judge

MILLION = 1_000_000


@lru_cache(maxsize=256)
def price_of(model: str, base_url: str | None) -> tuple[float, float] | None:
    """US dollars per million tokens, of input and of output, as genai-prices knows them; None where it does not.

    A model at an address that it does not know has no price, whatever it is called there.
    """
    from genai_prices import Usage as Billed
    from genai_prices import calc_price

    from spanwise.collector.dialects import price_applies

    if not price_applies(base_url):
        return None
    try:
        price = calc_price(Billed(input_tokens=1, output_tokens=1), model, provider_api_url=base_url)
    except LookupError:
        return None
    return float(price.input_price) * MILLION, float(price.output_price) * MILLION


def cost_of(judge: Judge, usage: Usage) -> float | None:
    """US dollars for a call of a judge; None where its price is not known."""
    if judge.price is not None:
        return (usage.input_tokens * judge.price[0] + usage.output_tokens * judge.price[1]) / MILLION
    if judge.prices is None:
        return None
    # with tiers, cached tokens, prices that change with the time of day
    from spanwise.collector.dialects import cost, provider_at

    provider = provider_at(judge.base_url) if judge.base_url else None
    return cost(judge.model, usage, {"gen_ai.provider.name": provider}, time.time_ns())
