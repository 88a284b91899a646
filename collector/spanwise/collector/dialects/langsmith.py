"""LangSmith's OpenTelemetry export, with the messages of LangChain."""

from __future__ import annotations

import base64

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.draft import Draft, applies_to, parse_count, parse_json
from spanwise.collector.dialects.token_costs import normalize_usage, parse_dollars
from spanwise.collector.records import JSON
from spanwise.tracer import attribute_names as names

# "prompt" fills in a template, "parser" reads a reply; both are steps of a chain
RUN_KINDS = {kind: kind for kind in ("llm", "chain", "tool", "retriever", "embedding")}
STEP_KINDS = {"prompt": "chain", "parser": "chain"}
KIND, TAGS, METADATA = "langsmith.span.kind", "langsmith.span.tags", "langsmith.metadata."
PROMPT, COMPLETION = "gen_ai.prompt", "gen_ai.completion"
USAGE = METADATA + "usage_metadata"
METADATA_MEMO = field_extraction.make_suffix_memo(METADATA)


@applies_to("langsmith")
def langsmith(draft: Draft) -> None:
    """Take kind, inputs, outputs, tokens, cost, session, user, tags and metadata. `genai` reads the model.

    LangSmith's kind takes precedence over the GenAI operation, which is "embeddings" for retrievers and "chat" for
    prompts.
    """
    kind = draft.attributes.get(KIND)
    kind = kind.lower() if isinstance(kind, str) else None
    if kind in RUN_KINDS and field_extraction.fill_field(draft, "kind", RUN_KINDS[kind]):
        del draft.attributes[KIND]
    elif kind in STEP_KINDS:
        draft.fields.setdefault("kind", STEP_KINDS[kind])
    _content(draft)
    _usage(draft)
    field_extraction.take_attribute(draft, "tags", TAGS, _parse_tags)
    field_extraction.take_identity(draft, METADATA)
    field_extraction.take_metadata(draft, METADATA_MEMO)


def _content(draft: Draft) -> None:
    """Take inputs and outputs. LangChain's messages are copied to the fields, and the full value stays as an
    attribute.
    """
    is_model_call = draft.fields.get("kind") == "llm"
    inputs, outputs = _decode_value(draft.attributes.get(PROMPT)), _decode_value(draft.attributes.get(COMPLETION))
    # LangSmith wraps a result that is not an object in `output`
    if isinstance(outputs, dict) and outputs.keys() == {"output"}:
        outputs = outputs["output"]
    if not (is_model_call and field_extraction.fill_field(draft, "inputs", read_langchain_inputs(inputs))):
        field_extraction.take_attribute(draft, "inputs", PROMPT, lambda _: inputs)
    if not (is_model_call and field_extraction.fill_field(draft, "outputs", read_langchain_outputs(outputs))):
        field_extraction.take_attribute(draft, "outputs", COMPLETION, lambda _: outputs)
    if COMPLETION in draft.attributes and outputs is None:
        draft.fields.setdefault("outputs", None)  # the sender reports null as the output


def _decode_value(value: JSON) -> JSON:
    """Decode JSON. SDKs before 0.5 send it as bytes, which arrive in base64."""
    if not isinstance(value, str) or not value.startswith("e"):
        return parse_json(value)
    try:
        parsed = parse_json(base64.b64decode(value, validate=True).decode())
    except ValueError:
        return parse_json(value)
    return parsed if isinstance(parsed, dict) else value


def _usage(draft: Draft) -> None:
    """Take the tokens of model calls. The counts of other spans are ignored: they repeat those of the replies they
    return.
    """
    attributes, fields = draft.attributes, draft.fields
    if (kind := fields.get("kind")) not in ("llm", "embedding"):
        # a span without a kind comes from another SDK, and only has metadata for LangSmith
        draft.sums = draft.sums or kind is not None
        return
    # usage in LangChain's format, from the metadata or from the reply
    outputs = draft.fields.get("outputs")
    reply_usage = outputs.get("usage_metadata") if isinstance(outputs, dict) else None
    reported = field_extraction.parse_container(draft.attributes.get(USAGE, reply_usage))
    counts: dict[str, JSON] = reported if isinstance(reported, dict) else {}
    input_tokens = parse_count(attributes.get(names.INPUT_TOKENS))
    output_tokens = parse_count(attributes.get(names.OUTPUT_TOKENS))
    usage = field_extraction.read_usage(counts)
    if input_tokens is not None or output_tokens is not None:
        total, details = parse_count(counts.get("total_tokens")), field_extraction.read_token_details(counts)
        usage = normalize_usage(input_tokens or 0, output_tokens or 0, details, total=total)
    if not field_extraction.fill_field(draft, "usage", usage):
        return
    for name, tokens in ((names.INPUT_TOKENS, input_tokens), (names.OUTPUT_TOKENS, output_tokens)):
        if tokens is not None:
            del attributes[name]
    if (cost := parse_dollars(counts.get("total_cost"))) is not None:
        fields.setdefault("cost", cost)


def _parse_tags(value: JSON) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(tag for tag in value.split(", ") if tag) or None
    return field_extraction.read_strings(value) or None


# LangChain's message type → role; any other type is used as the role
LANGCHAIN_ROLES = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
}
MESSAGE_FIELDS = ("name", "tool_calls", "tool_call_id")  # optional fields of a message


def read_langchain_inputs(value: JSON) -> list[JSON] | None:
    """Return the messages in `{"messages": [[…]]}`, the input of a chat model; None for any other value."""
    batches = value.get("messages") if isinstance(value, dict) else None
    return _read_messages(batches[0]) if isinstance(batches, list) and len(batches) == 1 else None


def read_langchain_outputs(value: JSON) -> list[JSON] | None:
    """Return the messages in `{"generations": [[{"message": …}]]}`, one per choice; None for any other value."""
    generations = value.get("generations") if isinstance(value, dict) else None
    if not isinstance(generations, list) or len(generations) != 1 or not isinstance(generations[0], list):
        return None
    return _read_messages([choice.get("message") if isinstance(choice, dict) else None for choice in generations[0]])


def _read_messages(value: JSON) -> list[JSON] | None:
    if not isinstance(value, list):
        return None
    messages = [_read_message(message) for message in value]
    return messages if messages and all(messages) else None


def _read_message(value: JSON) -> JSON:
    fields = value.get("kwargs") if isinstance(value, dict) and "lc" in value else None
    if not isinstance(fields, dict) or "content" not in fields:
        return None
    kind = fields.get("type")
    role = LANGCHAIN_ROLES.get(kind, kind) if isinstance(kind, str) else "user"
    return {
        "role": role,
        "content": fields["content"],
        **{part: fields[part] for part in MESSAGE_FIELDS if fields.get(part)},
    }
