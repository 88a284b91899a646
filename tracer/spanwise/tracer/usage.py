"""Token counts as the APIs of vendors report them, under OpenTelemetry's names and in its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.tracer import attributes as names

PREFIX = "gen_ai.usage."
CACHE_READ, CACHE_WRITE = f"{PREFIX}cache_read.input_tokens", f"{PREFIX}cache_creation.input_tokens"
REASONING = f"{PREFIX}reasoning.output_tokens"
# Counts beside input and output tokens, by their names in the APIs of Anthropic, Gemini and others
DETAILS = {
    "cache_read_input_tokens": CACHE_READ,
    "cache_creation_input_tokens": CACHE_WRITE,
    "cached_content_token_count": CACHE_READ,
    "thoughts_token_count": REASONING,
}
# Objects of finer counts in OpenAI's APIs, and what these are counts of
INPUT = {"cached_tokens": CACHE_READ, "cache_write_tokens": CACHE_WRITE, "audio_tokens": f"{PREFIX}audio.input_tokens"}
OUTPUT = {"reasoning_tokens": REASONING, "audio_tokens": f"{PREFIX}audio.output_tokens"}
NESTED = {
    "prompt_tokens_details": INPUT,
    "input_tokens_details": INPUT,
    "completion_tokens_details": OUTPUT,
    "output_tokens_details": OUTPUT,
}
SUMS = ("total_tokens", "total_token_count")


def usage_attributes(input_tokens: int | None, output_tokens: int | None, more: Mapping[str, Any]) -> dict[str, int]:
    """Return the attributes for token counts; `more` holds what an API reports beside, under its own names.

    Input tokens include those read from and written to the cache, output tokens include reasoning. Anthropic's
    `input_tokens` and Gemini's `candidates_token_count` do not, so that these parts are added.
    """
    made: dict[str, int] = {}
    for name, value in more.items():
        if isinstance(value, int) and name not in SUMS:
            made[_name(name)] = value
        elif isinstance(value, Mapping) and name in NESTED:
            made |= {full: value[part] for part, full in NESTED[name].items() if isinstance(value.get(part), int)}
    openai = (made.pop(f"{PREFIX}prompt_tokens", None), made.pop(f"{PREFIX}completion_tokens", None))
    gemini = (made.pop(f"{PREFIX}prompt_token_count", None), made.pop(f"{PREFIX}candidates_token_count", None))
    if isinstance(input_tokens, int) and "cache_read_input_tokens" in more and not any(name in more for name in SUMS):
        input_tokens += made.get(CACHE_READ, 0) + made.get(CACHE_WRITE, 0)
    if gemini != (None, None):
        gemini = (gemini[0], (gemini[1] or 0) + made.get(REASONING, 0))
    for name, given in ((names.INPUT_TOKENS, input_tokens), (names.OUTPUT_TOKENS, output_tokens)):
        place = name == names.OUTPUT_TOKENS
        tokens = next((each for each in (given, openai[place], gemini[place]) if each is not None), None)
        if tokens is not None:
            made[name] = tokens
    return made


def _name(name: str) -> str:
    if known := DETAILS.get(name):
        return known
    return f"{PREFIX}{name}.input_tokens" if name.startswith("cache") else PREFIX + name
