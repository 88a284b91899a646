"""Token counts of a model call, in one meaning: input and output tokens include their parts.

Vendors disagree: OpenAI's `prompt_tokens` include tokens from the cache, Anthropic's `input_tokens` do not; OpenAI's
`completion_tokens` include reasoning, Gemini's `candidates_token_count` does not. docs/costs.md has the table.
"""

from __future__ import annotations

from spanwise.collector.dialects._values import new_usage
from spanwise.collector.records import Usage

CACHE_READ, CACHE_WRITE = "cache_read.input_tokens", "cache_creation.input_tokens"
REASONING = "reasoning.output_tokens"
AUDIO_INPUT, AUDIO_OUTPUT = "audio.input_tokens", "audio.output_tokens"
MOST = 2**53  # tokens that JSON can carry


def token_usage(
    input: int,
    output: int,
    details: dict[str, int],
    *,
    total: int | None = None,
    cache_apart: bool = False,
    reasoning_apart: bool = False,
) -> Usage:
    """Return the usage with parts that were counted apart added to the tokens that they belong to.

    `cache_apart` and `reasoning_apart` are what is known of the sender. Else a part was counted apart if it is larger
    than what should include it, or if the sender's `total` is right only when it is added. Of a sender that leaves out
    reasoning without counting it, reasoning is what is missing to the total.
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
        input = _sum(input, cached)
    if reasoning_apart or reasoning > output:
        output = _sum(output, reasoning)
    if (audio := details.get(AUDIO_INPUT, 0)) > input:
        input = _sum(input, audio)
    if (audio := details.get(AUDIO_OUTPUT, 0)) > output:
        output = _sum(output, audio)
    return new_usage(input, output, details)


def _sum(tokens: int, part: int) -> int:
    """Return both together, unless that is more than can be."""
    return tokens + part if tokens + part < MOST else max(tokens, part)
