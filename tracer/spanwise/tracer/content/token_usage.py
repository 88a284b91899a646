"""Token usage: vendors' usage fields as OpenTelemetry attributes, and estimates for calls without them.

Estimates use tiktoken if it is installed and a vocabulary is on disk or in memory. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors

if TYPE_CHECKING:
    from tiktoken import Encoding


USAGE_PREFIX = "gen_ai.usage."
CACHE_READ, CACHE_WRITE = f"{USAGE_PREFIX}cache_read.input_tokens", f"{USAGE_PREFIX}cache_creation.input_tokens"
REASONING = f"{USAGE_PREFIX}reasoning.output_tokens"
# Counts in addition to input and output tokens, by their names in the APIs of Anthropic, Gemini and others, and by
# short names
VENDOR_FIELDS = {
    "cache_read_input_tokens": CACHE_READ,
    "cache_creation_input_tokens": CACHE_WRITE,
    "cached_content_token_count": CACHE_READ,
    "thoughts_token_count": REASONING,
    "cache_read_tokens": CACHE_READ,
    "cache_write": CACHE_WRITE,
    "cache_write_tokens": CACHE_WRITE,
    "reasoning": REASONING,
    "reasoning_tokens": REASONING,
}
# Objects with detailed counts in OpenAI's APIs
INPUT_DETAILS = {
    "cached_tokens": CACHE_READ,
    "cache_write_tokens": CACHE_WRITE,
    "audio_tokens": f"{USAGE_PREFIX}audio.input_tokens",
}
OUTPUT_DETAILS = {"reasoning_tokens": REASONING, "audio_tokens": f"{USAGE_PREFIX}audio.output_tokens"}
DETAIL_OBJECTS = {
    "prompt_tokens_details": INPUT_DETAILS,
    "input_tokens_details": INPUT_DETAILS,
    "completion_tokens_details": OUTPUT_DETAILS,
    "output_tokens_details": OUTPUT_DETAILS,
}
TOTAL_FIELDS = ("total_tokens", "total_token_count")


def build_usage_attributes(
    input_tokens: int | None, output_tokens: int | None, more: Mapping[str, Any]
) -> dict[str, int]:
    """Return the attributes for token counts. `more` holds further counts of an API, under its own names.

    Input tokens include tokens read from and written to the cache, and output tokens include reasoning. Anthropic's
    `input_tokens` and Gemini's `candidates_token_count` do not include these tokens, which are therefore added.
    """
    counts: dict[str, int] = {}
    for name, value in more.items():
        if isinstance(value, int) and name not in TOTAL_FIELDS:
            if (full_name := VENDOR_FIELDS.get(name)) is None:
                full_name = f"{USAGE_PREFIX}{name}.input_tokens" if name.startswith("cache") else USAGE_PREFIX + name
            counts[full_name] = value
        elif isinstance(value, Mapping) and name in DETAIL_OBJECTS:
            counts |= {
                full: value[part] for part, full in DETAIL_OBJECTS[name].items() if isinstance(value.get(part), int)
            }
    openai = (counts.pop(f"{USAGE_PREFIX}prompt_tokens", None), counts.pop(f"{USAGE_PREFIX}completion_tokens", None))
    gemini = (
        counts.pop(f"{USAGE_PREFIX}prompt_token_count", None),
        counts.pop(f"{USAGE_PREFIX}candidates_token_count", None),
    )
    if (
        isinstance(input_tokens, int)
        and "cache_read_input_tokens" in more
        and not any(name in more for name in TOTAL_FIELDS)
    ):
        input_tokens += counts.get(CACHE_READ, 0) + counts.get(CACHE_WRITE, 0)
    if gemini != (None, None):
        gemini = (gemini[0], (gemini[1] or 0) + counts.get(REASONING, 0))
    for name, own in ((names.INPUT_TOKENS, input_tokens), (names.OUTPUT_TOKENS, output_tokens)):
        side = name == names.OUTPUT_TOKENS
        tokens = next((each for each in (own, openai[side], gemini[side]) if each is not None), None)
        if tokens is not None:
            counts[name] = tokens
    return counts


ESTIMATED_LIBRARIES = frozenset(("openai", "dspy", "litellm"))  # model calls of these libraries may lack token counts
ESTIMATED_SCOPES = frozenset(f"openinference.instrumentation.{name}" for name in ESTIMATED_LIBRARIES)
is_enabled = False  # set when one of the libraries is instrumented and tiktoken is installed
_VOCABULARY_URL = (
    # tiktoken derives the names of its cache files from this URL
    "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
)
_FALLBACK_ENCODING = "cl100k_base"
_MAX_CHARACTERS = 400_000  # maximum number of characters of a call; tokens of longer calls are not estimated
_CHUNK_CHARACTERS = 10_000  # characters encoded at once
_TOKENS_PER_MESSAGE, _REPLY_TOKENS = (
    4,
    3,
)  # tokens that the API adds around each message and before the reply (OpenAI cookbook, "How to count tokens")


def enable_estimates() -> None:
    """Enable estimates if tiktoken is installed."""
    global is_enabled
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        return
    is_enabled = True


@internal_errors.error_boundary("token_estimates")
def add_usage_estimate(attributes: dict[str, Any]) -> None:
    """Add estimated token counts to the attributes of an OpenInference model span without counts.

    They are marked as estimated.
    """
    if attributes.get(names.KIND) != "LLM" or any(name.startswith("llm.token_count.") for name in attributes):
        return
    inputs, outputs = _collect_texts(attributes, "input"), _collect_texts(attributes, "output")
    if not outputs or sum(map(len, (*inputs, *outputs))) > _MAX_CHARACTERS:
        return
    encoding = _find_encoding(str(attributes.get("llm.model_name") or ""))
    if encoding is None:
        return
    prompt = sum(_count_tokens(encoding, text) + _TOKENS_PER_MESSAGE for text in inputs) + _REPLY_TOKENS
    completion = sum(_count_tokens(encoding, text) for text in outputs)
    attributes |= {
        "llm.token_count.prompt": prompt,
        "llm.token_count.completion": completion,
        "llm.token_count.total": prompt + completion,
        names.USAGE_ESTIMATED: True,
    }


def _collect_texts(attributes: Mapping[str, Any], side: str) -> list[str]:
    """Return the texts of the input or output messages of a call, including tool calls. `side` is "input" or "output".

    Without messages, return the whole input or output.
    """
    prefix = f"llm.{side}_messages."
    wanted = (".content", ".text", ".arguments", ".function.name")
    found = [
        value
        for name, value in attributes.items()
        if name.startswith(prefix) and name.endswith(wanted) and isinstance(value, str)
    ]
    whole = attributes.get(f"{side}.value")
    return found or ([whole] if isinstance(whole, str) and whole else [])


def _count_tokens(encoding: Encoding, text: str) -> int:
    pieces = range(0, len(text), _CHUNK_CHARACTERS)
    return sum(len(encoding.encode_ordinary(text[start : start + _CHUNK_CHARACTERS])) for start in pieces)


def _find_encoding(model: str) -> Encoding | None:
    """Return the encoding of an OpenAI model, or a similar encoding if only its vocabulary is available.

    Return None for other models, or if no vocabulary is available.
    """
    from tiktoken.model import encoding_name_for_model

    try:
        own = encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return None
    return next((found for name in (own, _FALLBACK_ENCODING) if (found := _load_encoding(name)) is not None), None)


def _load_encoding(name: str) -> Encoding | None:
    import hashlib
    import tempfile

    from tiktoken.registry import ENCODINGS, get_encoding

    if name in ENCODINGS:
        return ENCODINGS[name]
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    file = hashlib.sha1(_VOCABULARY_URL.format(name).encode(), usedforsecurity=False).hexdigest()
    return get_encoding(name) if folder and os.path.exists(os.path.join(folder, file)) else None
