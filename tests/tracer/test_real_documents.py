"""Documents of LangChain, LlamaIndex and Haystack, made by these packages: contents, ids, scores and metadata stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from spanwise.tracer import trace
from spanwise.tracer.configuration import Settings
from spanwise.tracer.content.documents import flatten_documents, read_document_list
from spanwise.tracer.export import SpanSanitizer
from spanwise.tracer.export.span_encoding import Conventions
from spanwise.tracer.testing import capture_spans

LLAMA_INDEX = Path(__file__).parents[1] / "fixtures/documents/llama_index.json"  # see make.py beside it
PREFIX = "retrieval.documents.0.document."
EXPECTED = {"id": "a", "content": "Gold is heavy.", "score": 0.75, "metadata": '{"source":"g.txt"}'}


def langchain() -> Any:
    """What `similarity_search_with_score` returns."""
    documents = pytest.importorskip("langchain_core.documents")
    return [(documents.Document(id="a", page_content="Gold is heavy.", metadata={"source": "g.txt"}), 0.75)]


def llama_index() -> Any:
    """What a retriever returns."""
    schema = pytest.importorskip("llama_index.core.schema")
    node = schema.TextNode(id_="a", text="Gold is heavy.", metadata={"source": "g.txt"})
    return [schema.NodeWithScore(node=node, score=0.75)]


def llama_index_response() -> Any:
    """What a query engine returns."""
    base = pytest.importorskip("llama_index.core.base.response.schema")
    return base.Response(response="Gold.", source_nodes=llama_index())


def haystack() -> Any:
    """What a retriever component returns."""
    package = pytest.importorskip("haystack")
    document = package.Document(id="a", content="Gold is heavy.", meta={"source": "g.txt"}, score=0.75)
    return {"documents": [document]}


@pytest.mark.slow  # these packages take seconds to import
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("result", [langchain, llama_index, llama_index_response, haystack])
def test_what_a_retriever_returns_is_recorded_as_documents(result: Any) -> None:
    found = result()
    with capture_spans() as spans:
        trace(kind="retriever")(lambda: found)()
    span = SpanSanitizer(Settings()).span(spans.ended[0])
    assert span is not None
    attributes = Conventions({"openinference"}).attributes(span)
    assert {k.removeprefix(PREFIX): v for k, v in attributes.items() if k.startswith(PREFIX)} == EXPECTED


@pytest.mark.parametrize("result", ["nodes", "response"])
def test_what_is_written_of_llama_indexs_objects_is_read_as_documents(result: str) -> None:
    written = orjson.dumps(orjson.loads(LLAMA_INDEX.read_bytes())[result]).decode()
    assert {k.removeprefix(PREFIX): v for k, v in flatten_documents(read_document_list(written)).items()} == EXPECTED
