"""What models cost."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def price_of(model: str, base_url: str | None) -> tuple[float, float] | None:
    """US dollars per million tokens, of input and of output, as genai-prices knows them; None where it does not."""
    from genai_prices import Usage, calc_price

    try:
        price = calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_api_url=base_url)
    except LookupError:
        return None
    return float(price.input_price) * 1e6, float(price.output_price) * 1e6
