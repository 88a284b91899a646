"""LangSmith's export over OpenTelemetry: `langsmith/_internal/otel/_otel_exporter.py` of its SDK, 0.4 to 0.15."""

from __future__ import annotations

import base64

from spanwise.collector.dialects import _calls, _langchain
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._values import count, from_json
from spanwise.collector.dialects.reported_costs import dollars
from spanwise.collector.dialects.token_counts import token_usage
from spanwise.collector.records import JSON
from spanwise.tracer import attributes as names

# "prompt" fills in a template, "parser" reads a reply: steps of a chain both
KINDS = {kind: kind for kind in ("llm", "chain", "tool", "retriever", "embedding")}
STEPS = {"prompt": "chain", "parser": "chain"}
KIND, TAGS, METADATA = "langsmith.span.kind", "langsmith.span.tags", "langsmith.metadata."
PROMPT, COMPLETION = "gen_ai.prompt", "gen_ai.completion"
USAGE = METADATA + "usage_metadata"
PROPERTIES = _calls.below(METADATA)


@found_in("langsmith")
def langsmith(draft: Draft) -> None:
    """Take kind, inputs, outputs, tokens, cost, session, user, tags and metadata; the model is GenAI's to read.

    The operation's name says "embeddings" of retrievers and "chat" of prompts: the kind that LangSmith names counts.
    """
    _kind(draft)
    _content(draft)
    _usage(draft)
    _calls.take(draft, "tags", TAGS, _tags)
    _calls.take_whose(draft, METADATA)
    _calls.take_metadata(draft, PROPERTIES)


def _kind(draft: Draft) -> None:
    said = draft.attributes.get(KIND)
    said = said.lower() if isinstance(said, str) else None
    if said in KINDS and _calls.fill(draft, "kind", KINDS[said]):
        del draft.attributes[KIND]
    elif said in STEPS:
        draft.fields.setdefault("kind", STEPS[said])


def _content(draft: Draft) -> None:
    """Inputs and outputs. Of LangChain's messages only what they say is taken, so that the whole stays beside it."""
    calls = draft.fields.get("kind") == "llm"
    inputs, outputs = _value(draft.attributes.get(PROMPT)), _outputs(draft.attributes.get(COMPLETION))
    if not (calls and _calls.fill(draft, "inputs", _langchain.given(inputs))):
        _calls.take(draft, "inputs", PROMPT, lambda _: inputs)
    if not (calls and _calls.fill(draft, "outputs", _langchain.made(outputs))):
        _calls.take(draft, "outputs", COMPLETION, lambda _: outputs)
    if COMPLETION in draft.attributes and outputs is None:
        draft.fields.setdefault("outputs", None)  # null, which is said here for good


def _value(value: JSON) -> JSON:
    """JSON; SDKs before 0.5 send it as bytes, which arrive in base64."""
    if not isinstance(value, str) or not value.startswith("e"):
        return from_json(value)
    try:
        parsed = from_json(base64.b64decode(value, validate=True).decode())
    except ValueError:
        return from_json(value)
    return parsed if isinstance(parsed, dict) else value


def _outputs(value: JSON) -> JSON:
    """What a function returned: what is no object is sent as `{"output": …}`."""
    outputs = _value(value)
    return outputs["output"] if isinstance(outputs, dict) and outputs.keys() == {"output"} else outputs


def _usage(draft: Draft) -> None:
    """Tokens of model calls; whatever else has some repeats those of the replies that it returns."""
    attributes, fields = draft.attributes, draft.fields
    if (kind := fields.get("kind")) not in ("llm", "embedding"):
        draft.sums = draft.sums or kind is not None  # without a kind it is another's span, with metadata for LangSmith
        return
    said = _said(draft)
    given, made = count(attributes.get(names.INPUT_TOKENS)), count(attributes.get(names.OUTPUT_TOKENS))
    used = _calls.usage(said)
    if given is not None or made is not None:
        total = count(said.get("total_tokens"))
        used = token_usage(given or 0, made or 0, _calls.details(said), total=total)
    if not _calls.fill(draft, "usage", used):
        return
    for name, tokens in ((names.INPUT_TOKENS, given), (names.OUTPUT_TOKENS, made)):
        if tokens is not None:
            del attributes[name]
    if (cost := dollars(said.get("total_cost"))) is not None:
        fields.setdefault("cost", cost)


def _said(draft: Draft) -> dict[str, JSON]:
    """The usage in LangChain's words, of the metadata or of the reply itself."""
    outputs = draft.fields.get("outputs")
    within = outputs.get("usage_metadata") if isinstance(outputs, dict) else None
    said = _calls.container(draft.attributes.get(USAGE, within))
    return said if isinstance(said, dict) else {}


def _tags(value: JSON) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(tag for tag in value.split(", ") if tag) or None
    return _calls.strings(value) or None
