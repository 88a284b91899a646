"""OpenInference conventions: spans, messages, documents, annotations and evaluations.

Annotations and evaluations become feedback. Their attributes also stay with the span.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Set
from math import isfinite
from typing import Any

from spanwise.collector.dialects.draft import (
    AGGREGATE_KINDS,
    DOCUMENT_KINDS,
    DOCUMENT_NAMESPACES,
    LLAMA_INDEX_REPR,
    TOOL_PARAMETERS,
    Dialect,
    Draft,
    RawSpan,
    applies_to,
    build_document,
    get_indexed_lists,
    get_indexed_name,
    get_namespace,
    make_side_record,
    memoize_names,
    new_document,
    parse_count,
    parse_json,
    parse_number,
    read_documents,
    take_indexed_list,
    text_or_none,
    to_text,
)
from spanwise.collector.dialects.token_costs import normalize_usage
from spanwise.collector.records import JSON, Document, Feedback, Source, Target
from spanwise.tracer import attribute_names as names

INPUT_MESSAGES, OUTPUT_MESSAGES = "llm.input_messages", "llm.output_messages"
PROMPTS, CHOICES = "llm.prompts", "llm.choices"
SINGLE_ATTRIBUTE_LISTS = (PROMPTS, CHOICES)  # these lists may also be sent as one attribute
TOOL_CALLS, CONTENT_PARTS = "tool_calls", "contents"
NON_CONTENT_FIELDS = frozenset(("role", "name", "finish_reason"))


def take_messages(draft: Draft) -> None:
    """Fill in inputs and outputs with the messages to and from a model, unless they are filled in already."""
    fields, attributes = draft.fields, draft.attributes
    if "inputs" in fields and "outputs" in fields:
        return
    if not get_indexed_lists(tuple(attributes)) and attributes.keys().isdisjoint(SINGLE_ATTRIBUTE_LISTS):
        return
    if "inputs" not in fields and (
        content := _take_message_list(attributes, INPUT_MESSAGES) or _take_texts(attributes, PROMPTS, "prompt")
    ):
        fields["inputs"] = content
    if "outputs" not in fields and (
        content := _take_message_list(attributes, OUTPUT_MESSAGES) or _take_texts(attributes, CHOICES, "completion")
    ):
        fields["outputs"] = content


def _take_message_list(attributes: dict[str, Any], prefix: str) -> list[dict[str, JSON]]:
    """Take a list of messages if at least one has content. The answer of a failed call has only a role."""
    elements = get_indexed_lists(tuple(attributes)).get((prefix, "message"), ())
    if any(field not in NON_CONTENT_FIELDS for element in elements for field, _ in element):
        return [build_message(flat) for flat in take_indexed_list(attributes, prefix, "message")]
    return []


def _take_texts(attributes: dict[str, Any], prefix: str, element: str) -> JSON:
    """Take the text, or the list of several texts, of a call to OpenAI's legacy completions API."""
    texts = attributes.get(prefix)
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        del attributes[prefix]
    else:
        lists = get_indexed_lists(tuple(attributes))
        names_in_elements = {field for fields in lists.get((prefix, element), ()) for field, _ in fields}
        if names_in_elements - {"text"} or any(of[0] == prefix and of[1] != element for of in lists):
            return None
        texts = [flat["text"] for flat in take_indexed_list(attributes, prefix, element)]
    return texts[0] if len(texts) == 1 else texts


def build_message(flat: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build a message from flat attribute names. Fields without a counterpart in OpenAI's format keep their names."""
    message: dict[str, JSON] = {}
    calls: dict[int, dict[str, JSON]] = {}
    parts: dict[int, dict[str, JSON]] = {}
    calls_in_content: dict[int, dict[str, JSON]] = {}  # tool calls among the content parts, as in Anthropic's messages
    for name, value in flat.items():
        indexed = get_indexed_name(f"message.{name}") if "." in name else None
        if indexed is not None and indexed.prefix == "message.tool_calls" and indexed.element == "tool_call":
            calls.setdefault(indexed.position, {})[indexed.rest] = value
        elif indexed is not None and indexed.prefix == "message.contents" and indexed.element == "message_content":
            parts.setdefault(indexed.position, {})[indexed.rest] = value
        elif indexed is not None and indexed.prefix == "message.contents" and indexed.element == "tool_call":
            calls_in_content.setdefault(indexed.position, {})[indexed.rest] = value
        elif indexed is not None and indexed.prefix == "message.contents":
            parts.setdefault(indexed.position, {})[f"{indexed.element}.{indexed.rest}"] = value
        else:
            message[name] = value
    if calls_in_content:
        _move_calls(calls_in_content, parts, calls)
    if parts:
        message["content" if message.get("content") is None else CONTENT_PARTS] = [
            _build_content_part(part) for _, part in sorted(parts.items())
        ]
    if calls:
        tool_calls: list[JSON] = []
        for _, call in sorted(calls.items()):
            function = {
                name: call.pop(f"function.{name}") for name in ("name", "arguments") if f"function.{name}" in call
            }
            tool_calls.append({"type": "function", **call, "function": function})
        message[TOOL_CALLS] = tool_calls
    return message


def _move_calls(
    calls_in_content: Mapping[int, dict[str, JSON]],
    parts: dict[int, dict[str, JSON]],
    calls: dict[int, dict[str, JSON]],
) -> None:
    """Move tool calls from the content parts of a message to its list of calls, unless the list has a call with the same
    id.
    """
    ids = {call.get("id") for call in calls.values()}
    for position in sorted(calls_in_content):
        if calls_in_content[position].get("id") is None or calls_in_content[position]["id"] not in ids:
            calls[max(calls, default=-1) + 1] = calls_in_content[position]
        if parts.get(position, {}).keys() <= {"type"}:
            parts.pop(position, None)


def _build_content_part(flat: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build a content part from flat attribute names: `image.image.url` becomes `{"image": {"url": …}}`."""
    part: dict[str, Any] = {}
    for name, value in flat.items():
        head, _, tail = name.partition(".")
        inner = part.setdefault(head, {}) if tail else None
        if isinstance(inner, dict):
            inner[tail.removeprefix(f"{head}.")] = value
        else:
            part[name] = value
    return part


DOCUMENT_LISTS = (names.DOCUMENTS, "reranker.output_documents")
INPUT_FILES, OUTPUT_FILES = DOCUMENT_NAMESPACES
RERANKER_DOCUMENTS, RERANKER_QUERY = "reranker.input_documents", "reranker.query"
MAX_SEARCHED_CHARS = 2**20  # longer outputs are not searched for document ids
DOCUMENT_FIELDS = frozenset(("content", "id", "score", "metadata"))


def take_retrieved_documents(draft: Draft) -> None:
    """Take retrieved documents. Use the query of a reranker as inputs if the span has none.

    If another dialect has found documents, a list of other documents stays in the attributes.
    """
    fields = draft.fields
    if not fields.get("documents"):
        fields["documents"] = _take_documents(draft.attributes, fields.get("outputs"))
    else:
        remaining = dict(draft.attributes)
        if _repeat_documents(_take_documents(remaining, None), fields["documents"]):
            draft.attributes = remaining
    if is_repr_of(fields.get("outputs"), fields["documents"]):
        del fields["outputs"]
    query = draft.attributes.get(RERANKER_QUERY)
    if "inputs" not in fields and query is not None:
        candidates = list(map(_to_json, take_indexed_list(draft.attributes, RERANKER_DOCUMENTS, "document")))
        fields["inputs"] = {"query": query, "documents": candidates} if candidates else query
        del draft.attributes[RERANKER_QUERY]


def is_repr_of(outputs: JSON, found: tuple[Document, ...]) -> bool:
    """Return whether outputs only repeat the retrieved documents, in the `repr` of LlamaIndex's nodes."""
    if not isinstance(outputs, list) or not found or len(outputs) != len(found):
        return False
    return all(isinstance(output, str) and output.startswith(LLAMA_INDEX_REPR) for output in outputs)


def take_files(draft: Draft) -> None:
    """Take files such as PDFs as inputs and outputs if the span has no others.

    The output files of a retriever are its retrieved documents.
    """
    attributes, fields, namespaces = draft.attributes, draft.fields, draft.namespaces
    if (
        INPUT_FILES in namespaces
        and "inputs" not in fields
        and (files := take_indexed_list(attributes, INPUT_FILES, "document"))
    ):
        fields["inputs"] = [_to_json(file) for file in files]
    if OUTPUT_FILES not in namespaces:
        return
    if fields.get("kind") in DOCUMENT_KINDS and not fields.get("documents"):
        fields["documents"] = tuple(map(read_listed_document, take_indexed_list(attributes, OUTPUT_FILES, "document")))
    elif "outputs" not in fields and (output_files := take_indexed_list(attributes, OUTPUT_FILES, "document")):
        fields["outputs"] = [_to_json(file) for file in output_files]


def read_listed_document(flat: Mapping[str, JSON]) -> Document:
    """Build a document from flat attribute names. Values for which `Document` has no field become metadata."""
    if len(flat) == len(DOCUMENT_FIELDS):  # all four fields are present and valid, which is the usual case
        content, id, score = flat.get("content"), flat.get("id"), flat.get("score")
        if type(content) is str and type(id) is str and id and type(score) is float and isfinite(score):
            metadata = parse_json(flat.get("metadata"))
            if metadata and isinstance(metadata, dict):
                return new_document(content, id, score, metadata)
    read = build_document(flat)
    if flat.keys() <= DOCUMENT_FIELDS and read.score == flat.get("score") and (read.metadata or "metadata" not in flat):
        return read
    extra = {name: value for name, value in flat.items() if name not in DOCUMENT_FIELDS and value != read.id}
    if "metadata" in flat and not isinstance(parse_json(flat["metadata"]), dict):
        extra["metadata"] = flat["metadata"]
    if flat.get("score") is not None and parse_number(flat["score"]) is None:
        extra["score"] = flat["score"]
    return Document(read.content, read.id, read.score, {**extra, **read.metadata}) if extra else read


def _to_json(flat: Mapping[str, JSON]) -> JSON:
    return {**flat, "metadata": parse_json(flat["metadata"])} if "metadata" in flat else dict(flat)


def _take_documents(attributes: dict[str, Any], outputs: JSON) -> tuple[Document, ...]:
    for prefix in DOCUMENT_LISTS:
        if listed := take_indexed_list(attributes, prefix, "document"):
            found = tuple(map(read_listed_document, listed))
            has_ids = all(document.id for document in found)
            return found if outputs is None or has_ids else _add_output_ids(found, outputs)
    return ()


def _repeat_documents(listed: tuple[Document, ...], documents: tuple[Document, ...]) -> bool:
    """Return whether the listed documents hold nothing but values of the documents at the same ranks."""
    return len(listed) == len(documents) and all(
        one.content == other.content
        and one.id in (None, other.id)
        and one.score in (None, other.score)
        and (not one.metadata or one.metadata == other.metadata)
        for one, other in zip(listed, documents, strict=True)
    )


def _add_output_ids(found: tuple[Document, ...], outputs: JSON) -> tuple[Document, ...]:
    """Return the listed documents with ids from the outputs, and with the empty documents that the list omits.

    LangChain's instrumentor lists neither ids nor empty documents, but its outputs have both. The outputs are ignored
    if they hold any other document, or another order.
    """
    if isinstance(outputs, str):
        outputs = parse_json(outputs) if len(outputs) <= MAX_SEARCHED_CHARS else None
    merged, waiting = [], list(reversed(found))
    for document in read_documents(outputs):
        if waiting and waiting[-1].content == document.content:
            listed = waiting.pop()
            merged.append(Document(listed.content, listed.id or document.id, listed.score, listed.metadata))
        elif document.content:
            return found
        else:
            merged.append(document)
    return found if waiting else tuple(merged)


# Prefix of the attributes → (target of the feedback, element name)
LIST_FORMS = {
    f"{scope}{plural}": (scope.rstrip(".") or "span", singular)
    for scope in ("", "trace.", "session.")
    for plural, singular in (("annotations", "annotation"), ("evaluations", "evaluation"))
}
LIST_PREFIXES = tuple(LIST_FORMS)
ANNOTATOR_SOURCES: Mapping[JSON, Source] = {"HUMAN": "human", "LLM": "model", "CODE": "code"}
FIELD_NAMES = frozenset(("name", "score", "label", "explanation", "annotator_kind", "identifier", "metadata"))
# label of an annotation that has only an explanation; the explanation becomes the comment
EXPLANATION_LABEL = "explanation"
CARRIER_KINDS = (None, "evaluator")  # kinds of spans that may carry feedback on another span


def read_annotations(draft: Draft) -> None:
    """Add the feedback on the span, its trace and its session to the draft. Invalid annotations are reported to the
    sender.
    """
    found: dict[tuple[str, int], dict[str, JSON]] = {}
    for name, value in draft.attributes.items():
        indexed = get_indexed_name(name) if name.startswith(LIST_PREFIXES) else None
        if indexed is not None and indexed.prefix in LIST_FORMS and indexed.element == LIST_FORMS[indexed.prefix][1]:
            found.setdefault((indexed.prefix, indexed.position), {})[indexed.rest] = value
    if found:
        draft.also += tuple(
            [
                make_side_record(_read_annotation, draft, LIST_FORMS[prefix][0], flat)
                for (prefix, _), flat in found.items()
            ]
        )


def _read_annotation(draft: Draft, scope: str, flat: Mapping[str, JSON]) -> Feedback:
    """Return the feedback of an annotation. Raise `ValueError` if it has no name, no value, or no target."""
    kind, key = flat.get("annotator_kind"), flat.get("name")
    score, label = flat.get("score"), flat.get("label")
    if not text_or_none(key):
        raise ValueError(f"an annotation has no name; its fields are {sorted(flat)!r:.200}")
    if score is not None and (isinstance(score, bool | str) or parse_number(score) is None):
        raise ValueError(f"annotation {key!r:.200}: score {score!r:.200} is not a number")
    if score is None and label is None:
        if not text_or_none(flat.get("explanation")):
            raise ValueError(f"annotation {key!r:.200} has neither score, label nor explanation")
        label = EXPLANATION_LABEL
    source = ANNOTATOR_SOURCES.get(kind, "code") if isinstance(kind, str) else "code"
    identifier = None if flat.get("identifier") is None else to_text(flat["identifier"])
    return Feedback(
        target=_find_target(draft, scope),
        key=to_text(key),
        score=parse_number(score),
        label=None if label is None else to_text(label),
        comment=None if flat.get("explanation") is None else to_text(flat["explanation"]),
        source=source,
        author=identifier if source == "human" else None,
        evaluator=None if source == "human" else identifier,
        metadata=_read_annotation_metadata(flat),
        created_ns=draft.span.end_ns or time.time_ns(),
    )


def _read_annotation_metadata(flat: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the annotation's metadata, together with the values for which `Feedback` has no field."""
    metadata = parse_json(flat.get("metadata"))
    rest: dict[str, JSON] = {name: value for name, value in flat.items() if name not in FIELD_NAMES}
    kind = flat.get("annotator_kind")
    if kind is not None and not (isinstance(kind, str) and kind in ANNOTATOR_SOURCES):
        rest["annotator_kind"] = kind
    if isinstance(metadata, dict):
        return {**rest, **metadata}
    return rest if metadata is None else {**rest, "metadata": metadata}


def _find_target(draft: Draft, scope: str) -> Target:
    span = draft.span
    if scope == "session":
        if session := text_or_none(span.attributes.get(names.SESSION)):
            return Target(session_id=session)
        raise ValueError(f"span {span.name!r:.200} has an annotation of its session, but no attribute session.id")
    trace_id, span_id = (
        _get_linked_ids(span)
        if draft.fields.get("kind") in CARRIER_KINDS and span.links
        else (span.trace_id, span.span_id)
    )
    return Target(trace_id=trace_id) if scope == "trace" else Target(trace_id=trace_id, span_id=span_id)


def _get_linked_ids(span: RawSpan) -> tuple[str, str]:
    """Return trace id and span id of the earlier span that an annotation span links to.

    Raise `ValueError` unless the annotation span has exactly one link.
    """
    if len(span.links) != 1:
        raise ValueError(
            f"span {span.name!r:.200} has annotations and {len(span.links)} links: send exactly one link, to the annotated span"
        )
    return span.links[0].trace_id, span.links[0].span_id


# "prompt" fills in a template, "decision" chooses a branch; both are steps of a chain
OPENINFERENCE_KINDS = {kind.upper(): kind for kind in names.KINDS} | {"PROMPT": "chain", "DECISION": "chain"}
MODEL_NAMES = (
    "llm.response.model_name",
    "llm.model_name",
    "llm.request.model_name",
    "embedding.model_name",
    "reranker.model_name",
    "decision.response.model_name",
    "decision.model_name",
    "decision.request.model_name",
)
MODEL_PARAMETERS = ("model", "model_name", "model_id")  # keys that hold the model in the invocation parameters
# names that take precedence over the invocation parameters
GENAI_MODEL_NAMES = (names.RESPONSE_MODEL, names.REQUEST_MODEL)
PARAMETERS = ("llm.invocation_parameters", "embedding.invocation_parameters")
IDENTITY_NAMESPACES = frozenset(map(get_namespace, (names.SESSION, names.USER, names.METADATA, names.TAGS)))
# namespaces that the fast path does not handle
RARE_NAMESPACES = frozenset(("retrieval", "reranker", "llm", "embedding", "decision"))
SCHEMA_FIELDS = frozenset(("properties", "$schema", "additionalProperties"))  # a JSON schema has at least one of these
MODEL_NAMESPACES = RARE_NAMESPACES - {"retrieval"}  # namespaces that may hold a model name
FEEDBACK_NAMESPACES = frozenset(("annotations", "evaluations"))
FILE_NAMESPACES = frozenset((INPUT_FILES, OUTPUT_FILES))
HAYSTACK = "openinference.instrumentation.haystack"
REPR_DETAILS = {
    "cached_tokens": "cache_read.input_tokens",
    "cache_read_input_tokens": "cache_read.input_tokens",
    "cache_creation_input_tokens": "cache_creation.input_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
}
PROMPT_TOKENS, COMPLETION_TOKENS = "llm.token_count.prompt", "llm.token_count.completion"
TOTAL_TOKENS = "llm.token_count.total"
DECISION_TOKENS = ("decision.token_count.input", "decision.token_count.output")
COUNT_NAMES = (PROMPT_TOKENS, COMPLETION_TOKENS, "llm.cost.total", "llm.cost.prompt", "llm.cost.completion")
DETAIL_NAMES = {
    "llm.token_count.prompt_details.cache_read": "cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_input": "cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "cache_creation.input_tokens",
    "llm.token_count.prompt_details.audio": "audio.input_tokens",
    "llm.token_count.completion_details.reasoning": "reasoning.output_tokens",
    "llm.token_count.completion_details.audio": "audio.output_tokens",
}


@applies_to(
    *("openinference", "input", "output", TOOL_PARAMETERS),
    *(*FILE_NAMESPACES, *FEEDBACK_NAMESPACES, *IDENTITY_NAMESPACES, *RARE_NAMESPACES),
)
def openinference(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, model, tokens, cost, session, user, tags and metadata; read feedback.

    For a model call, inputs and outputs are its messages. Its `input.value` and `output.value` stay as attributes:
    instrumentors fill them with the request of a particular API, or with its `repr`. For other spans these two values
    take precedence, because the messages are only a part of the content.
    """
    for step in _get_steps(draft.namespaces):
        step(draft)


def _kind(draft: Draft) -> None:
    value = draft.attributes.get(names.KIND)
    if isinstance(value, str) and (kind := OPENINFERENCE_KINDS.get(value) or OPENINFERENCE_KINDS.get(value.upper())):
        draft.fields["kind"] = kind
        del draft.attributes[names.KIND]
    if draft.fields.get("kind") == "llm" and "llm" in draft.namespaces:
        take_messages(draft)


def _inputs(draft: Draft) -> None:
    attributes = draft.attributes
    if names.INPUT_VALUE in attributes and "inputs" not in draft.fields:
        mime = attributes.pop(names.INPUT_MIME, DEFAULT_MIME.get(draft.span.scope))
        draft.fields["inputs"] = _value(attributes.pop(names.INPUT_VALUE), mime)


def _outputs(draft: Draft) -> None:
    """Take outputs. A null stays as an attribute: it distinguishes a call that returned None from one without
    outputs.
    """
    attributes = draft.attributes
    if names.OUTPUT_VALUE not in attributes or "outputs" in draft.fields:
        return
    mime = attributes.get(names.OUTPUT_MIME, DEFAULT_MIME.get(draft.span.scope))
    outputs = _value(attributes[names.OUTPUT_VALUE], mime)
    if outputs is not None:
        draft.fields["outputs"] = outputs
        del attributes[names.OUTPUT_VALUE]
        attributes.pop(names.OUTPUT_MIME, None)


# Scope → type of contents without a MIME type. Spanwise's tracer leaves out the type of JSON, and of texts that cannot
# be parsed as JSON
DEFAULT_MIME = {"spanwise": "application/json"}


def _value(value: JSON, mime: JSON) -> JSON:
    return parse_json(value) if mime == "application/json" else value


def take_openinference_identity(draft: Draft) -> None:
    """Take session, user, metadata and tags."""
    attributes, fields = draft.attributes, draft.fields
    session, user = attributes.get(names.SESSION), attributes.get(names.USER)
    if isinstance(session, str) and session:
        fields["session_id"] = session
        del attributes[names.SESSION]
    if isinstance(user, str) and user:
        fields["user_id"] = user
        del attributes[names.USER]
    if names.METADATA in attributes and isinstance(metadata := parse_json(attributes[names.METADATA]), dict):
        fields["metadata"] = metadata
        if user := text_or_none(metadata.get("user_id")):  # LangChain's configuration has no other field for a user
            fields.setdefault("user_id", user)
        del attributes[names.METADATA]
    if isinstance(tags := attributes.get(names.TAGS), list):
        fields["tags"] = tuple(str(tag) for tag in tags)
        del attributes[names.TAGS]


def _tool_parameters(draft: Draft) -> None:
    """Take the arguments of a tool as inputs if it has no others. Some instrumentors send their JSON schema instead."""
    arguments = parse_json(draft.attributes.get(TOOL_PARAMETERS))
    if "inputs" in draft.fields or draft.fields.get("kind", "tool") != "tool":
        return
    if not isinstance(arguments, dict) or not SCHEMA_FIELDS.isdisjoint(arguments):
        return
    draft.fields["inputs"] = arguments
    del draft.attributes[TOOL_PARAMETERS]


def _take_rare_fields(draft: Draft) -> None:
    namespaces = draft.namespaces
    if "retrieval" in namespaces or "reranker" in namespaces:
        take_retrieved_documents(draft)
    if not MODEL_NAMESPACES.isdisjoint(namespaces):
        _model(draft)
    if "llm" in namespaces:
        if not draft.attributes.keys().isdisjoint(COUNT_NAMES):
            is_decision = str(draft.span.attributes.get(names.KIND)).upper() == "DECISION"
            if draft.fields.get("kind") in AGGREGATE_KINDS and not is_decision:
                draft.sums = True  # some instrumentors (smolagents, CrewAI) send the total of the calls below
            else:
                _usage(draft, PROMPT_TOKENS, COMPLETION_TOKENS)
        take_messages(draft)
    if "decision" in namespaces:
        _usage(draft, *DECISION_TOKENS)
    if "embedding" in namespaces and "inputs" not in draft.fields:
        # use the embedded texts as inputs if the span has no others. They also stay as attributes, together with the
        # vectors
        embeddings = take_indexed_list(dict(draft.attributes), "embedding.embeddings", "embedding")
        if texts := [embedding["text"] for embedding in embeddings if isinstance(embedding.get("text"), str)]:
            draft.fields["inputs"] = texts[0] if len(texts) == 1 else texts


def _model(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    for name in () if attributes.keys().isdisjoint(MODEL_NAMES) else MODEL_NAMES:
        if (model := text_or_none(attributes.get(name))) and fields.setdefault("model", model) == model:
            del attributes[name]
    if "model" in fields or attributes.keys().isdisjoint(PARAMETERS):
        return
    if attributes.keys().isdisjoint(GENAI_MODEL_NAMES):
        parameter_sets = (parse_json(attributes[name]) for name in PARAMETERS if name in attributes)
        candidates = (
            parameters.get(key)
            for parameters in parameter_sets
            if isinstance(parameters, dict)
            for key in MODEL_PARAMETERS
        )
        if model := next(filter(None, map(text_or_none, candidates)), None):
            fields["model"] = model


def _usage(draft: Draft, input: str, output: str) -> None:
    attributes = draft.attributes
    input_tokens, output_tokens = parse_count(attributes.get(input)), parse_count(attributes.get(output))
    if (input_tokens is None and output_tokens is None) or "usage" in draft.fields:
        return
    total, details = parse_count(attributes.get(TOTAL_TOKENS)), dict[str, int]()
    if not attributes.keys().isdisjoint(DETAIL_NAMES):
        for key, detail in DETAIL_NAMES.items():
            count = parse_count(attributes.get(key))
            if count is not None and details.setdefault(detail, count) == count:
                del attributes[key]
    details = details or _find_haystack_details(draft)
    draft.fields["usage"] = usage = normalize_usage(input_tokens or 0, output_tokens or 0, details, total=total)
    for name, tokens in ((input, input_tokens), (output, output_tokens)):
        if tokens is not None:
            del attributes[name]
    if total is not None and total in (usage.total_tokens, (input_tokens or 0) + (output_tokens or 0)):
        del attributes[TOTAL_TOKENS]


def _find_haystack_details(draft: Draft) -> dict[str, int]:
    """Return the detailed token counts that Haystack's instrumentor leaves in the `repr` of the reply."""
    outputs = draft.span.attributes.get(names.OUTPUT_VALUE)
    if draft.span.scope != HAYSTACK or not isinstance(outputs, str):
        return {}
    usage = outputs[outputs.rfind("'usage':") :] if "'usage':" in outputs else ""
    matches = ((name, re.search(rf"\b{key}'?[:=] ?([0-9]{{1,15}})\b", usage)) for key, name in REPR_DETAILS.items())
    return {name: int(match[1]) for name, match in matches if match}


# (namespaces, step): a step runs if the span has attributes in one of the namespaces. Steps run in this order
STEPS: tuple[tuple[frozenset[str], Dialect], ...] = (
    (frozenset(("openinference",)), _kind),
    (frozenset(("input",)), _inputs),
    (frozenset(("output",)), _outputs),
    (FEEDBACK_NAMESPACES, read_annotations),
    (IDENTITY_NAMESPACES, take_openinference_identity),
    (RARE_NAMESPACES, _take_rare_fields),
    (frozenset((TOOL_PARAMETERS,)), _tool_parameters),
    (FILE_NAMESPACES, take_files),
)


@memoize_names
def _get_steps(namespaces: Set[str]) -> tuple[Dialect, ...]:
    return tuple(step for where, step in STEPS if not where.isdisjoint(namespaces))
