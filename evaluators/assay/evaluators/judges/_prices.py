"""What models cost, as genai-prices knows it, and what a judge's own `price` makes of it."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from assay.collector.records import Usage

if TYPE_CHECKING:
    from assay.evaluators.judges._judge import Judge

MILLION = 1_000_000


@lru_cache(maxsize=256)
def price_of(model: str, base_url: str | None) -> tuple[float, float] | None:
    """US dollars per million tokens, of input and of output, as genai-prices knows them; None where it does not.

    A model at an address that it does not know has no price, whatever it is called there.
    """
    from genai_prices import Usage as Billed
    from genai_prices import calc_price

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
    from assay.collector.dialects import cost  # tiers, cached tokens, prices that change with the time of day

    return cost(judge.model, usage, {"gen_ai.provider.name": _provider(judge.base_url)}, time.time_ns())


@lru_cache(maxsize=256)
def _provider(base_url: str | None) -> str | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider(None, None, base_url).id
    except LookupError:
        return None
