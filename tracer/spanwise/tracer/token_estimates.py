"""Estimated token counts for model calls whose server reports none, such as OpenAI streams without `include_usage`.

Counted with tiktoken where the application has it and a vocabulary lies on disk or in memory; nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spanwise.tracer import _errors
from spanwise.tracer import attributes as names

if TYPE_CHECKING:
    from tiktoken import Encoding

LIBRARIES = frozenset(("openai", "dspy", "litellm"))  # whose calls may come without counts
SCOPES = frozenset(f"openinference.instrumentation.{name}" for name in LIBRARIES)
is_enabled = False  # set when one of the libraries is instrumented and tiktoken is installed
_SOURCE = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"  # tiktoken names its cache files after it
_FALLBACK = "cl100k_base"
_MAX_CHARACTERS = 400_000  # of a call; longer ones are not counted
_PIECE = 10_000  # characters that are encoded at once
_PER_MESSAGE, _PRIMING = 4, 3  # tokens around a message and before the reply (OpenAI cookbook, "How to count tokens")


def enable() -> None:
    """Estimate from now on, if tiktoken is installed."""
    global is_enabled
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        return
    is_enabled = True


@_errors.ours("token_estimates")
def add_estimate(attributes: dict[str, Any]) -> None:
    """Add token counts to the attributes of an OpenInference model span that has none, marked as estimated."""
    if attributes.get(names.KIND) != "LLM" or any(name.startswith("llm.token_count.") for name in attributes):
        return
    inputs, outputs = _texts(attributes, "input"), _texts(attributes, "output")
    if not outputs or sum(map(len, (*inputs, *outputs))) > _MAX_CHARACTERS:
        return
    encoding = _encoding(str(attributes.get("llm.model_name") or ""))
    if encoding is None:
        return
    prompt = sum(_count(encoding, text) + _PER_MESSAGE for text in inputs) + _PRIMING
    completion = sum(_count(encoding, text) for text in outputs)
    attributes |= {
        "llm.token_count.prompt": prompt,
        "llm.token_count.completion": completion,
        "llm.token_count.total": prompt + completion,
        names.USAGE_ESTIMATED: True,
    }


def _texts(attributes: Mapping[str, Any], side: str) -> list[str]:
    """Return the texts of a call's messages, tool calls included; without messages, its whole input or output."""
    prefix = f"llm.{side}_messages."
    wanted = (".content", ".text", ".arguments", ".function.name")
    found = [
        value
        for name, value in attributes.items()
        if name.startswith(prefix) and name.endswith(wanted) and isinstance(value, str)
    ]
    whole = attributes.get(f"{side}.value")
    return found or ([whole] if isinstance(whole, str) and whole else [])


def _count(encoding: Encoding, text: str) -> int:
    pieces = range(0, len(text), _PIECE)
    return sum(len(encoding.encode_ordinary(text[start : start + _PIECE])) for start in pieces)


def _encoding(model: str) -> Encoding | None:
    """Return the encoding of an OpenAI model, else a similar one; None without a vocabulary or for other models."""
    from tiktoken.model import encoding_name_for_model

    try:
        own = encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return None
    return next((found for name in (own, _FALLBACK) if (found := _loaded(name)) is not None), None)


def _loaded(name: str) -> Encoding | None:
    import hashlib
    import tempfile

    from tiktoken.registry import ENCODINGS, get_encoding

    if name in ENCODINGS:
        return ENCODINGS[name]
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    file = hashlib.sha1(_SOURCE.format(name).encode(), usedforsecurity=False).hexdigest()
    return get_encoding(name) if folder and os.path.exists(os.path.join(folder, file)) else None
