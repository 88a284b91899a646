"""Model calls of OpenAI, Anthropic and Gemini: messages of the GenAI conventions, token usage and its estimates."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors

if TYPE_CHECKING:
    from tiktoken import Encoding


# Model requests and responses of OpenAI, Anthropic and Gemini, converted to the messages of the GenAI conventions.
#
# A message is `{role, parts, name?}`; output messages also have a `finish_reason`. Values of unknown shape become the
# text of one message, as JSON. Source: OpenTelemetry semantic-conventions-genai, `gen-ai-input-messages.json`,
# `gen-ai-output-messages.json` and `gen-ai-tool-definitions.json`.

Message: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]

# names of arguments that hold the messages of a request, in the order in which they are tried
_MESSAGE_FIELDS = ("messages", "input", "contents", "prompt")
_MESSAGE_FIELD_SET = frozenset(_MESSAGE_FIELDS)
_INSTRUCTION_FIELDS = ("system", "instructions", "system_instruction")
# fields of a request → names after `gen_ai.request.`; the values are numbers
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
}
# finish reasons of providers → those of the conventions; others are kept
_FINISH_REASONS = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "refusal": "content_filter",
    "failed": "error",
}
_PLAIN_ROLES = ("system", "user", "assistant")
_ROLES = {"developer": "system", "model": "assistant", "function": "tool"}
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_CONVENTION_TYPES = ("tool_call", "tool_call_response", "server_tool_call", "server_tool_call_response", "blob", "uri")


@dataclass(slots=True)
class ModelRequest:
    """Request of a model call. `parameters` are numbers such as the temperature, by their names in the conventions."""

    messages: list[Message] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    model: str | None = None
    parameters: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class ModelResponse:
    """Response of a model call. `finish_reasons` are those of the provider."""

    messages: list[Message] = field(default_factory=list)
    id: str | None = None
    model: str | None = None
    finish_reasons: list[str] = field(default_factory=list)


def read_model_request(value: Any) -> ModelRequest:
    """Return the request in the inputs of a model call: messages, a text, or the arguments of a function."""
    if not isinstance(value, dict):
        return ModelRequest(_read_messages(value, "user"))
    known = value
    if _MESSAGE_FIELD_SET.isdisjoint(value):  # `def call(**options)`, `def call(request)`
        inner = (v for v in value.values() if isinstance(v, dict) and not _MESSAGE_FIELD_SET.isdisjoint(v))
        known = next(inner, value)
    request = ModelRequest(
        tools=_read_tools(known.get("tools")),
        model=_text(known.get("model")),
        parameters={
            _PARAMETERS[k]: v
            for k, v in known.items()
            if k in _PARAMETERS and isinstance(v, (int, float)) and not isinstance(v, bool)
        },
    )
    content = next((known[name] for name in _MESSAGE_FIELDS if known.get(name) is not None), None)
    if content is None:
        request.messages = _read_messages(_reduce_arguments(value), "user")
        return request
    request.messages = _read_messages(content, "user")
    instructions = next((known[name] for name in _INSTRUCTION_FIELDS if known.get(name)), None)
    if instructions is not None and not any(message["role"] == "system" for message in request.messages):
        request.messages.insert(0, {"role": "system", "parts": _read_parts(_get_parts(instructions))})
    return request


def read_model_response(value: Any) -> ModelResponse:
    """Return the response in the outputs of a model call: a provider's response, a message, messages, or a text."""
    if not isinstance(value, dict):
        return _finish(ModelResponse(_read_messages(value, "assistant")), ())
    response = ModelResponse(id=_text(value.get("id")), model=_text(value.get("model") or value.get("modelVersion")))
    choices, output, candidates = value.get("choices"), value.get("output"), value.get("candidates")
    if isinstance(choices, list):  # OpenAI's chat completions
        choices = [choice for choice in choices if isinstance(choice, dict)]
        response.messages = [
            message
            for choice in choices
            for message in _read_messages(choice.get("message") or {"content": choice.get("text")}, "assistant")
        ]
        return _finish(response, [choice.get("finish_reason") for choice in choices])
    if isinstance(output, list):  # OpenAI's responses: the items of one reply
        parts = [part for item in output for part in _read_message(item, "assistant")["parts"]]
        response.messages = [{"role": "assistant", "parts": parts}] if parts else []
        incomplete = value.get("incomplete_details")
        reason = incomplete.get("reason") if isinstance(incomplete, dict) else None
        return _finish(response, [reason or value.get("status")])
    if isinstance(candidates, list):  # Gemini
        candidates = [candidate for candidate in candidates if isinstance(candidate, dict)]
        contents = [candidate["content"] for candidate in candidates if candidate.get("content") is not None]
        response.messages = [message for each in contents for message in _read_messages(each, "assistant")]
        return _finish(response, [candidate.get("finishReason") for candidate in candidates])
    if "role" in value or isinstance(value.get("tool_calls"), list):  # Anthropic's reply, or one message
        response.messages = [_read_message(value, "assistant")]
        return _finish(response, [value.get("stop_reason") or value.get("finish_reason")])
    messages = value.get("messages")
    return _finish(ModelResponse(_read_messages(messages if messages else value, "assistant")), ())


def _finish(response: ModelResponse, reasons: Any) -> ModelResponse:
    """Set the finish reasons, and one in every message: there, the conventions require it."""
    response.finish_reasons = [reason for reason in reasons if isinstance(reason, str) and reason]
    last = response.finish_reasons or ["stop"]
    for number, message in enumerate(response.messages):
        reason = last[min(number, len(last) - 1)].lower()
        message.setdefault("finish_reason", _FINISH_REASONS.get(reason, reason))
    return response


def _reduce_arguments(arguments: dict[str, Any]) -> Any:
    """Return the only text or list of messages among the arguments of a function, or else all arguments."""
    texts = [
        v
        for v in arguments.values()
        if isinstance(v, str) or (isinstance(v, list) and any(isinstance(m, dict) and "role" in m for m in v))
    ]
    return texts[0] if len(texts) == 1 else arguments


def _read_messages(value: Any, role: str) -> list[Message]:
    if value is None:
        return []
    if isinstance(value, dict) and ("role" in value or "parts" in value or "content" in value or "tool_calls" in value):
        return [_read_message(value, role)]
    objects = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    if objects and all("role" in item or item.get("type") in _ITEM_READERS for item in objects):
        # a text among the messages is the serializer's mark of a list that was cut
        return [_read_message(item, role) for item in value]
    if objects and all(item.get("type") in _TEXT_TYPES for item in objects):
        return [{"role": role, "parts": _read_parts(value)}]
    return [{"role": role, "parts": [_text_part(value)]}]


def _read_message(value: Any, role: str) -> Message:
    """Return the message in a provider's message, or in an item of OpenAI's responses."""
    if not isinstance(value, dict):
        return {"role": role, "parts": [_text_part(value)]}
    if len(value) == 2 and type(text := value.get("content")) is str and value.get("role") in _PLAIN_ROLES:
        return {"role": value["role"], "parts": [{"type": "text", "content": text}] if text else []}
    reader = _ITEM_READERS.get(value.get("type")) if "role" not in value else None
    if reader is not None:
        owner = "tool" if value["type"] == "function_call_output" else "assistant"
        return {"role": owner, "parts": reader(value)}
    role = _text(value.get("role")) or role
    role = _ROLES.get(role, role)
    message: Message = {"role": role, "parts": []}
    if reasoning := _text(value.get("reasoning_content") or value.get("reasoning")):
        message["parts"].append({"type": "reasoning", "content": reasoning})
    if role == "tool" and "parts" not in value:
        content = value.get("content")
        response = {"type": "tool_call_response", "id": _text(value.get("tool_call_id")), "response": content}
        message["parts"].append({k: v for k, v in response.items() if k != "id" or v is not None})
    else:
        message["parts"] += _read_parts(_get_parts(value))
        if refusal := _text(value.get("refusal")):
            message["parts"].append(_text_part(refusal))
    calls = value.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        message["parts"] += _read_tool_call(call)
    if name := _text(value.get("name")):
        message["name"] = name
    return message


def _get_parts(value: Any) -> Any:
    """Return the parts of a message, or of the instructions of a request."""
    if not isinstance(value, dict):
        return value
    return value["parts"] if "parts" in value else value.get("content")


def _read_parts(content: Any) -> list[Part]:
    if content is None or content == "":
        return []
    if isinstance(content, list):
        return [part for item in content for part in _read_part(item)]
    return _read_part(content)


def _read_part(item: Any) -> list[Part]:
    """Return the parts in one element of a provider's content. An unknown element is kept as a generic part."""
    if not isinstance(item, dict):
        return [_text_part(item)]
    kind = item.get("type")
    if kind in _ITEM_READERS:
        return _ITEM_READERS[kind](item)
    if kind in _TEXT_TYPES or (kind is None and "text" in item):
        text = next((item[name] for name in ("text", "content", "refusal") if item.get(name) is not None), "")
        return [_text_part(text)]
    if kind in _CONVENTION_TYPES:
        return [item]
    if kind in ("tool_use", "server_tool_use"):
        return [_call_part(item.get("id"), item.get("name"), item.get("input"))]
    if kind == "tool_result":
        return [{"type": "tool_call_response", "id": item.get("tool_use_id"), "response": item.get("content")}]
    if kind in ("image_url", "input_image", "image", "input_audio"):
        return [_read_media(item)]
    for name in ("functionCall", "function_call"):  # Gemini
        if isinstance(call := item.get(name), dict):
            return [_call_part(call.get("id"), call.get("name"), call.get("args"))]
    return [item if isinstance(kind, str) else {"type": "generic", **item}]


def _read_media(item: dict[str, Any]) -> Part:
    """Return the part for an image or an audio file, inline or by address."""
    modality = "audio" if item["type"] == "input_audio" else "image"
    source = item.get("source") or item.get("image_url") or item.get("input_audio") or {}
    if isinstance(source, str):
        source = {"url": source}
    url, data = source.get("url"), source.get("data")
    if isinstance(url, str) and url.startswith("data:"):
        head, _, data = url.partition(",")
        source = {"media_type": head.removeprefix("data:").partition(";")[0]}
    if data is None:
        return {"type": "uri", "modality": modality, "uri": url}
    mime = source.get("media_type") or (f"{modality}/{source['format']}" if "format" in source else None)
    return {"type": "blob", "modality": modality, "mime_type": mime, "content": data}


def _read_tool_call(call: Any) -> list[Part]:
    """Return the part for a tool call of an assistant's message, in OpenAI's or LangChain's form."""
    if not isinstance(call, dict):
        return []
    function = call.get("function")
    if isinstance(function, dict):
        return [_call_part(call.get("id"), function.get("name"), function.get("arguments"))]
    return [_call_part(call.get("id"), call.get("name"), call.get("args", call.get("arguments")))]


def _call_part(id: Any, name: Any, arguments: Any) -> Part:
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            pass
    part = {"type": "tool_call", "id": id, "name": name, "arguments": arguments}
    return {key: value for key, value in part.items() if value is not None}


def _read_reasoning(item: dict[str, Any]) -> list[Part]:
    """Return the part for reasoning: Anthropic's text, OpenAI's summaries, or the conventions' content."""
    content = item.get("thinking") or item.get("content") or item.get("summary")
    if isinstance(content, list):
        content = "\n".join(str(each.get("text") or "") for each in content if isinstance(each, dict))
    return [{"type": "reasoning", "content": content}] if content else []


# types of elements that are messages of their own in OpenAI's responses
_ITEM_READERS: dict[Any, Callable[[dict[str, Any]], list[Part]]] = {
    "function_call": lambda item: [_call_part(item.get("call_id"), item.get("name"), item.get("arguments"))],
    "function_call_output": lambda item: [
        {"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}
    ],
    "reasoning": _read_reasoning,
    "thinking": _read_reasoning,
}


def _read_tools(tools: Any) -> list[Any]:
    """Return the definitions of tools. Functions of all providers get one form; other tools are kept."""
    definitions = []
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        function = function if isinstance(function, dict) else tool
        if isinstance(function, dict) and (function is not tool or tool.get("type") in (None, "function", "custom")):
            parameters = function.get("parameters") or function.get("input_schema")
            definition = {
                "type": "function",
                "name": function.get("name"),
                "description": function.get("description"),
                "parameters": parameters,
            }
            definitions.append({key: value for key, value in definition.items() if value is not None})
        elif isinstance(tool, dict):
            definitions.append(tool)
    return definitions


def _text_part(value: Any) -> Part:
    return {"type": "text", "content": value if isinstance(value, str) else orjson.dumps(value, default=str).decode()}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# beginnings of models' names → `gen_ai.provider.name`
_PROVIDERS_BY_MODEL = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4-": "openai",
    "text-embedding-3": "openai",
    "text-embedding-ada": "openai",
    "claude": "anthropic",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "ministral": "mistral_ai",
    "codestral": "mistral_ai",
    "command-": "cohere",
    "deepseek": "deepseek",
    "grok-": "x_ai",
    "sonar": "perplexity",
}
# prefixes such as LiteLLM's (`azure/gpt-4o`), and names of other conventions → `gen_ai.provider.name`
_PROVIDERS_BY_PREFIX = {
    "openai": "openai",
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "aws": "aws.bedrock",
    "vertex_ai": "gcp.vertex_ai",
    "vertexai": "gcp.vertex_ai",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "groq": "groq",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "xai": "x_ai",
    "perplexity": "perplexity",
}


def find_provider(model: str | None, attributes: Mapping[str, Any]) -> str | None:
    """Return the provider that another convention names, or that a model's name implies; None if it is unknown."""
    for name in ("gen_ai.system", "llm.provider", "llm.system"):
        if given := _text(attributes.get(name)):
            return _PROVIDERS_BY_PREFIX.get(given.lower(), given)
    return _find_provider_of_model(model) if isinstance(model, str) else None


@functools.lru_cache(maxsize=256)
def _find_provider_of_model(model: str) -> str | None:
    prefix, slash, rest = model.lower().partition("/")
    if slash and prefix in _PROVIDERS_BY_PREFIX:
        return _PROVIDERS_BY_PREFIX[prefix]
    bare = rest if slash else prefix
    return next((provider for start, provider in _PROVIDERS_BY_MODEL.items() if bare.startswith(start)), None)


# Token usage: vendors' usage fields as OpenTelemetry attributes, and estimates for calls without them.
#
# Estimates use tiktoken if it is installed and a vocabulary is on disk or in memory. Nothing is downloaded.

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
