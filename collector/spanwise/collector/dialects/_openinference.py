"""OpenInference: `spec/semantic_conventions.md` of Arize's openinference."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from spanwise.collector.dialects._draft import Dialect, Draft, found_in
from spanwise.collector.dialects._keys import OfNames, namespace
from spanwise.collector.dialects._openinference_annotations import read_annotations
from spanwise.collector.dialects._openinference_documents import INPUT_FILES, OUTPUT_FILES, files, retrieved
from spanwise.collector.dialects._openinference_messages import messages
from spanwise.collector.dialects._values import count, from_json, take_list, text
from spanwise.collector.dialects.token_counts import token_usage
from spanwise.collector.records import JSON
from spanwise.tracer import attributes as names

# "prompt" is a template being filled in, "decision" a branch being chosen: steps of a chain both
KINDS = {kind.upper(): kind for kind in names.KINDS} | {"PROMPT": "chain", "DECISION": "chain"}
MODELS = (
    "llm.response.model_name",
    "llm.model_name",
    "llm.request.model_name",
    "embedding.model_name",
    "reranker.model_name",
    "decision.response.model_name",
    "decision.model_name",
    "decision.request.model_name",
)
MODEL_WITHIN = ("model", "model_name", "model_id")  # of parameters
NAMED = (names.RESPONSE_MODEL, names.REQUEST_MODEL)  # by GenAI's names, which say it plainly
PARAMETERS = ("llm.invocation_parameters", "embedding.invocation_parameters")
WHOSE = frozenset(map(namespace, (names.SESSION, names.USER, names.METADATA, names.TAGS)))
RARE = frozenset(("retrieval", "reranker", "llm", "embedding", "decision"))  # namespaces that plain spans do not have
MODELLED = RARE - {"retrieval"}  # of these those in which a model is named
FEEDBACK = frozenset(("annotations", "evaluations"))
FILES = frozenset((INPUT_FILES, OUTPUT_FILES))
HAYSTACK = "openinference.instrumentation.haystack"
IN_REPR = {
    "cached_tokens": "cache_read.input_tokens",
    "cache_read_input_tokens": "cache_read.input_tokens",
    "cache_creation_input_tokens": "cache_creation.input_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
}
# Of these kinds some instrumentors (smolagents, CrewAI) give the sum of the calls below: counted there
SUMMED = frozenset(("agent", "chain"))
GIVEN, MADE, TOTAL = "llm.token_count.prompt", "llm.token_count.completion", "llm.token_count.total"
DECIDED = ("decision.token_count.input", "decision.token_count.output")
COUNTED = (GIVEN, MADE, "llm.cost.total", "llm.cost.prompt", "llm.cost.completion")
DETAILS = {
    "llm.token_count.prompt_details.cache_read": "cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_input": "cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "cache_creation.input_tokens",
    "llm.token_count.prompt_details.audio": "audio.input_tokens",
    "llm.token_count.completion_details.reasoning": "reasoning.output_tokens",
    "llm.token_count.completion_details.audio": "audio.output_tokens",
}


@found_in("openinference", "input", "output", *FILES, *FEEDBACK, *WHOSE, *RARE)
def openinference(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, model, tokens, cost, session, user, tags and metadata; read feedback.

    A model's call is its messages: what instrumentors give as its inputs and outputs is the request to one of many
    APIs, or Python's `repr` of it, and stays an attribute. Of other spans messages say only a part.
    """
    for step in _steps(draft.namespaces):
        step(draft)


def _kind(draft: Draft) -> None:
    value = draft.attributes.get(names.KIND)
    if isinstance(value, str) and (kind := KINDS.get(value) or KINDS.get(value.upper())):
        draft.fields["kind"] = kind
        del draft.attributes[names.KIND]
    if draft.fields.get("kind") == "llm" and "llm" in draft.namespaces:
        messages(draft)


def _inputs(draft: Draft) -> None:
    attributes = draft.attributes
    if names.INPUT_VALUE in attributes and "inputs" not in draft.fields:
        draft.fields["inputs"] = _value(attributes.pop(names.INPUT_VALUE), attributes.pop(names.INPUT_MIME, None))


def _outputs(draft: Draft) -> None:
    """Take outputs; null stays where it was: there it tells a call that returned None from one that says nothing."""
    attributes = draft.attributes
    if names.OUTPUT_VALUE not in attributes or "outputs" in draft.fields:
        return
    outputs = _value(attributes[names.OUTPUT_VALUE], attributes.get(names.OUTPUT_MIME))
    if outputs is not None:
        draft.fields["outputs"] = outputs
        del attributes[names.OUTPUT_VALUE]
        attributes.pop(names.OUTPUT_MIME, None)


def _value(value: JSON, mime: JSON) -> JSON:
    return from_json(value) if mime == "application/json" else value


def whose(draft: Draft) -> None:
    """Take session, user, metadata and tags."""
    attributes, fields = draft.attributes, draft.fields
    session, user = attributes.get(names.SESSION), attributes.get(names.USER)
    if isinstance(session, str) and session:
        fields["session_id"] = session
        del attributes[names.SESSION]
    if isinstance(user, str) and user:
        fields["user_id"] = user
        del attributes[names.USER]
    if names.METADATA in attributes and isinstance(metadata := from_json(attributes[names.METADATA]), dict):
        fields["metadata"] = metadata
        if user := text(metadata.get("user_id")):  # LangChain's configuration has no other place for one
            fields.setdefault("user_id", user)
        del attributes[names.METADATA]
    if isinstance(tags := attributes.get(names.TAGS), list):
        fields["tags"] = tuple(str(tag) for tag in tags)
        del attributes[names.TAGS]


def _rare(draft: Draft) -> None:
    namespaces = draft.namespaces
    if "retrieval" in namespaces or "reranker" in namespaces:
        retrieved(draft)
    if not MODELLED.isdisjoint(namespaces):
        _model(draft)
    if "llm" in namespaces:
        _tokens(draft)
        messages(draft)
    if "decision" in namespaces:
        _usage(draft, *DECIDED)
    if "embedding" in namespaces and "inputs" not in draft.fields:
        _embedded(draft)


def _model(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    for name in () if attributes.keys().isdisjoint(MODELS) else MODELS:
        if (model := text(attributes.get(name))) and fields.setdefault("model", model) == model:
            del attributes[name]
    if "model" in fields or attributes.keys().isdisjoint(PARAMETERS):
        return
    if attributes.keys().isdisjoint(NAMED):
        asked = (from_json(attributes[name]) for name in PARAMETERS if name in attributes)
        named = (parameters.get(key) for parameters in asked if isinstance(parameters, dict) for key in MODEL_WITHIN)
        if model := next(filter(None, map(text, named)), None):
            fields["model"] = model


def _tokens(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    if attributes.keys().isdisjoint(COUNTED):
        return
    if fields.get("kind") in SUMMED and str(draft.span.attributes.get(names.KIND)).upper() != "DECISION":
        draft.sums = True
        return
    _usage(draft, GIVEN, MADE)


def _usage(draft: Draft, input: str, output: str) -> None:
    attributes = draft.attributes
    given, made = count(attributes.get(input)), count(attributes.get(output))
    if (given is None and made is None) or "usage" in draft.fields:
        return
    total, details = count(attributes.get(TOTAL)), _details(attributes) or _of_haystack(draft)
    draft.fields["usage"] = usage = token_usage(given or 0, made or 0, details, total=total)
    for name, tokens in ((input, given), (output, made)):
        if tokens is not None:
            del attributes[name]
    if total is not None and total in (usage.total_tokens, (given or 0) + (made or 0)):
        del attributes[TOTAL]


def _embedded(draft: Draft) -> None:
    """The texts that became vectors, where a span says nothing else of its inputs; with the vectors they stay."""
    listed = take_list(dict(draft.attributes), "embedding.embeddings", "embedding")
    if texts := [one["text"] for one in listed if isinstance(one.get("text"), str)]:
        draft.fields["inputs"] = texts[0] if len(texts) == 1 else texts


def _details(attributes: dict[str, Any]) -> dict[str, int]:
    details: dict[str, int] = {}
    for key, name in () if attributes.keys().isdisjoint(DETAILS) else DETAILS.items():
        if (tokens := count(attributes.get(key))) is not None and details.setdefault(name, tokens) == tokens:
            del attributes[key]
    return details


def _of_haystack(draft: Draft) -> dict[str, int]:
    """Return the finer counts that the instrumentor of Haystack leaves in the `repr` of the reply."""
    outputs = draft.span.attributes.get(names.OUTPUT_VALUE)
    if draft.span.scope != HAYSTACK or not isinstance(outputs, str):
        return {}
    said = outputs[outputs.rfind("'usage':") :] if "'usage':" in outputs else ""
    found = ((name, re.search(rf"\b{key}'?[:=] ?([0-9]{{1,15}})\b", said)) for key, name in IN_REPR.items())
    return {name: int(match[1]) for name, match in found if match}


# What there is to do for a span with attributes in one of these namespaces, in this order
STEPS: tuple[tuple[frozenset[str], Dialect], ...] = (
    (frozenset(("openinference",)), _kind),
    (frozenset(("input",)), _inputs),
    (frozenset(("output",)), _outputs),
    (FEEDBACK, read_annotations),
    (WHOSE, whose),
    (RARE, _rare),
    (FILES, files),
)


def _to_do(namespaces: Set[str]) -> tuple[Dialect, ...]:
    return tuple(step for where, step in STEPS if not where.isdisjoint(namespaces))


_steps = OfNames(_to_do).__getitem__
