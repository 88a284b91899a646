"""OpenInference's documents: what a retriever found, what a reranker left, and what was given to either."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from spanwise.collector.dialects._draft import Draft
from spanwise.collector.dialects._keys import FILES
from spanwise.collector.dialects._values import REPR, document_of, documents, from_json, new_document, number, take_list
from spanwise.collector.records import JSON, Document
from spanwise.tracer import attributes as names

FOUND = (names.DOCUMENTS, "reranker.output_documents")
INPUT_FILES, OUTPUT_FILES = FILES
GIVEN, QUERY = "reranker.input_documents", "reranker.query"
LONGEST = 2**20  # characters of outputs that are looked into for ids
FIELDS = frozenset(("content", "id", "score", "metadata"))


def retrieved(draft: Draft) -> None:
    """Documents that were found, and what a reranker was asked, where it says nothing else of its inputs."""
    draft.fields.setdefault("documents", _found(draft))
    if is_repr_of(draft.fields.get("outputs"), draft.fields["documents"]):
        del draft.fields["outputs"]
    query = draft.attributes.get(QUERY)
    if "inputs" not in draft.fields and query is not None:
        given = [_as_json(one) for one in take_list(draft.attributes, GIVEN, "document")]
        draft.fields["inputs"] = {"query": query, "documents": given} if given else query
        del draft.attributes[QUERY]


def is_repr_of(outputs: JSON, found: tuple[Document, ...]) -> bool:
    """Return whether outputs only repeat the documents that were found, as `repr` writes LlamaIndex's nodes."""
    if not isinstance(outputs, list) or not found or len(outputs) != len(found):
        return False
    return all(isinstance(output, str) and output.startswith(REPR) for output in outputs)


def files(draft: Draft) -> None:
    """Documents, such as PDFs, that a step was given or made: what it has for inputs and outputs if it names no others.

    Of a retriever those that it gives are what it found.
    """
    attributes, fields, namespaces = draft.attributes, draft.fields, draft.namespaces
    if (
        INPUT_FILES in namespaces
        and "inputs" not in fields
        and (given := take_list(attributes, INPUT_FILES, "document"))
    ):
        fields["inputs"] = [_as_json(one) for one in given]
    if OUTPUT_FILES not in namespaces:
        return
    if fields.get("kind") in ("retriever", "reranker") and not fields.get("documents"):
        fields["documents"] = tuple(map(document, take_list(attributes, OUTPUT_FILES, "document")))
    elif "outputs" not in fields and (made := take_list(attributes, OUTPUT_FILES, "document")):
        fields["outputs"] = [_as_json(one) for one in made]


def document(flat: Mapping[str, JSON]) -> Document:
    """A document out of its names; those that a `Document` has no field for stand in its metadata."""
    if len(flat) == len(FIELDS) and (plain := _plain(flat)):
        return plain
    read = document_of(flat)
    if flat.keys() <= FIELDS and read.score == flat.get("score") and (read.metadata or "metadata" not in flat):
        return read
    rest = {name: value for name, value in flat.items() if name not in FIELDS and value != read.id}
    if "metadata" in flat and not isinstance(from_json(flat["metadata"]), dict):
        rest["metadata"] = flat["metadata"]
    if flat.get("score") is not None and number(flat["score"]) is None:
        rest["score"] = flat["score"]
    return Document(read.content, read.id, read.score, {**rest, **read.metadata}) if rest else read


def _plain(flat: Mapping[str, JSON]) -> Document | None:
    """One whose four fields hold what belongs there, as nearly all do; None for any other."""
    content, id, score = flat.get("content"), flat.get("id"), flat.get("score")
    if type(content) is not str or type(id) is not str or type(score) is not float or not isfinite(score):
        return None
    metadata = from_json(flat.get("metadata"))
    return new_document(content, id, score, metadata) if id and metadata and isinstance(metadata, dict) else None


def _as_json(flat: Mapping[str, JSON]) -> JSON:
    return {**flat, "metadata": from_json(flat["metadata"])} if "metadata" in flat else dict(flat)


def _found(draft: Draft) -> tuple[Document, ...]:
    for prefix in FOUND:
        if listed := take_list(draft.attributes, prefix, "document"):
            found = tuple(map(document, listed))
            outputs = draft.fields.get("outputs")
            return found if outputs is None or all(one.id for one in found) else _named(found, outputs)
    return ()


def _named(found: tuple[Document, ...], outputs: JSON) -> tuple[Document, ...]:
    """The same documents with the ids that the outputs give them, and with the empty ones that were not listed.

    LangChain's instrumentor lists neither ids nor empty documents; its outputs have both. Outputs that hold anything
    else than these documents in this order say nothing about them.
    """
    if isinstance(outputs, str):
        outputs = from_json(outputs) if len(outputs) <= LONGEST else None
    named, waiting = [], list(reversed(found))
    for said in documents(outputs):
        if waiting and waiting[-1].content == said.content:
            listed = waiting.pop()
            named.append(Document(listed.content, listed.id or said.id, listed.score, listed.metadata))
        elif said.content:
            return found
        else:
            named.append(said)
    return found if waiting else tuple(named)
