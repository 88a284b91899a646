"""A small retrieval-augmented application, as one would write it: three traced functions.

A document's id is its topic, not its passage (that is in the metadata), because the dataset names the topics where an
answer stands. So two passages of one topic are two documents with the same id: recall and MRR count a topic once, at
the rank of its first passage, where the ranks are those of passages, as the reader gets them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from spanwise.cli.demo.reading import ask, extract, has_model, model_name
from spanwise.cli.demo.retrieval import Hit, Index
from spanwise.tracer import current_run, trace

Read = Callable[[str, Sequence[dict[str, Any]]], str]


def application(index: Index, k: int, read: Read) -> Callable[[str], str]:
    """The application's entry point `answer(question)`, over an index, with k passages per question, and a reader."""

    @trace(kind="retriever")
    def retrieve(question: str, k: int) -> list[dict[str, Any]]:
        return [_document(hit) for hit in index.search(question, k)]

    @trace
    def answer(question: str) -> str:
        return read(question, retrieve(question, k))

    return answer


def reader(note: Callable[[str], None]) -> Read:
    """The function `read`: asks a chat model if the environment names one, else picks sentences.

    After the model's first failure, which is told to `note`, it picks sentences, too.
    """
    working = has_model()

    @trace
    def read(question: str, documents: Sequence[dict[str, Any]]) -> str:
        nonlocal working
        if not working:
            return extract(question, documents)
        try:
            return _generate(question, documents)
        except Exception as error:  # whatever the service or its client throws, an answer can be had without it
            if working:
                note(f"{model_name()} does not answer, so sentences are picked instead: {error}")
            working = False
            return extract(question, documents)

    return read


@trace(kind="llm", name="generate")
def _generate(question: str, documents: Sequence[dict[str, Any]]) -> str:
    text, usage = ask(question, documents)
    current_run().set_model(model_name())
    current_run().set_usage(**usage)
    return text


def _document(hit: Hit) -> dict[str, Any]:
    passage = hit.passage
    return {"content": passage.text, "id": passage.topic, "score": hit.score, "metadata": {"passage": passage.id}}
