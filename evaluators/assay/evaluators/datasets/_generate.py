"""Examples that a model writes: questions about documents, or variations of examples that are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from assay.collector.errors import AssayError
from assay.collector.records import JSON, Document, Example, distinct
from assay.evaluators.datasets._columns import BadRow, to_example
from assay.evaluators.protocol import documents_of

Model = Callable[[str], str]
_BLOCK = re.compile(r"\[.*\]", re.DOTALL)

ABOUT_DOCUMENT = """\
Write {n} different questions that can be answered from the text below and from nothing else, with short answers.
Reply with a JSON list of objects with the keys "question" and "answer", and nothing besides.

Text:
{content}
"""
LIKE_EXAMPLE = """\
Write {n} variations of the inputs below: other words or other details, but the same kind of request with the same \
keys. Give the right answer to each, in the form of the reference.
Reply with a JSON list of objects with the keys "inputs" and "reference_outputs", and nothing besides.

Inputs: {inputs}
Reference: {reference}
"""


class ModelSaid(AssayError, ValueError):
    """A model's reply that holds no examples; shows the reply."""


def generate(
    source: Iterable[Any],
    model: Model | str,
    *,
    client: Any = None,
    per_source: int = 3,
    on_error: Callable[[ModelSaid], None] | None = None,
) -> list[Example]:
    """Examples that a model writes about documents or after seed examples.

    `source` holds documents (texts, dicts, `Document`) or `Example`s. `model` is a function from a prompt to a reply,
    or the name of a model behind an OpenAI-compatible endpoint: that of `client` (an `openai.OpenAI`), else of
    OPENAI_BASE_URL and OPENAI_API_KEY. A question about a document has it as its `expected_documents`; a variation of
    an example has its id as `base_id`. `metadata["generated"]` is True in all of them, `metadata["model"]` the name.
    A reply that cannot be read raises `ModelSaid`, or is handed to `on_error` and left out; the client's errors pass.
    """
    if isinstance(model, str):
        written = generate(source, _asking(model, client), per_source=per_source, on_error=on_error)
        return [replace(example, metadata={**example.metadata, "model": model}) for example in written]
    examples: list[Example] = []
    for seed in source:
        try:
            examples += [example for example in _of_one(seed, model, per_source) if example not in examples]
        except ModelSaid as error:
            if on_error is None:
                raise
            on_error(error)
    return distinct(examples)


def _asking(name: str, client: Any) -> Model:
    """A function that asks a model behind an OpenAI-compatible endpoint."""
    from openai import OpenAI

    asked = client if client is not None else OpenAI()

    def ask(prompt: str) -> str:
        answer = asked.chat.completions.create(model=name, messages=[{"role": "user", "content": prompt}])
        return str(answer.choices[0].message.content or "") if answer.choices else ""

    return ask


def _of_one(seed: Any, model: Model, n: int) -> Iterator[Example]:
    if isinstance(seed, Example):
        reference = _dumps(seed.reference_outputs)
        reply = model(LIKE_EXAMPLE.format(n=n, inputs=_dumps(seed.inputs), reference=reference))
        for row in _rows(reply):
            yield replace(_example(row, reply), base_id=seed.id, id="")
    else:
        (document,) = documents_of([seed])
        reply = model(ABOUT_DOCUMENT.format(n=n, content=document.content))
        for row in _rows(reply):
            yield replace(_example(row, reply), expected_documents=(_without_score(document),), id="")


def _rows(reply: str) -> list[Mapping[str, JSON]]:
    """The list of objects in a reply, whatever stands around it."""
    block = _BLOCK.search(reply)
    try:
        rows = orjson.loads(block.group()) if block else None
    except orjson.JSONDecodeError:
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ModelSaid(f"the model's reply holds no JSON list of examples: {reply!r:.300}")
    return rows


def _example(row: Mapping[str, JSON], reply: str) -> Example:
    try:
        example = to_example(row)
    except BadRow as error:
        raise ModelSaid(f"{error}; the model's reply: {reply!r:.300}") from None
    return replace(example, metadata={**example.metadata, "generated": True})


def _without_score(document: Document) -> Document:
    return replace(document, score=None)


def _dumps(value: JSON) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
