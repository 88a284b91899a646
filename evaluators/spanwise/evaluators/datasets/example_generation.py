"""Generation of examples by a model: questions about documents, variations of examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Example, number_duplicates
from spanwise.evaluators.datasets.column_mapping import BadRow, to_example
from spanwise.evaluators.interface import run_coroutine, to_documents

if TYPE_CHECKING:
    from spanwise.evaluators.judges import Judge


Model = Callable[[str], Any]
_JSON_LIST = re.compile(r"\[.*\]", re.DOTALL)

DOCUMENT_PROMPT = """\
Write {n} different questions that can be answered from the text below and from nothing else, with short answers.
Reply with a JSON list of objects with the keys "question" and "answer", and nothing besides.

Text:
{content}
"""
VARIATION_PROMPT = """\
Write {n} variations of the inputs below: other words or other details, but the same kind of request with the same \
keys. Give the right answer to each, in the form of the reference.
Reply with a JSON list of objects with the keys "inputs" and "reference_outputs", and nothing besides.

Inputs: {inputs}
Reference: {reference}
"""


class ModelSaid(SpanwiseError, ValueError):
    """Error for a reply of a model that contains no examples. The message quotes the reply."""


def generate(
    source: Iterable[Any],
    model: Model | Judge | str,
    *,
    client: Any = None,
    per_source: int = 3,
    on_error: Callable[[ModelSaid], None] | None = None,
) -> list[Example]:
    """Generate examples with a model, about documents or as variations of seed examples.

    `source` holds documents (texts, dicts, `Document`) or `Example`s. `model` is anything that `make_judge`
    accepts: a function from a prompt to a reply, a `Judge`, or a model's name. A name is looked up at the
    endpoint of `client` (an `openai.OpenAI`), else at the endpoint of a judge with that name. The model is
    called without temperature, seed and cache.

    A question about a document has the document as `expected_documents`. A variation has the id of its seed as
    `base_id`. `metadata["generated"]` is True in all of them, and `metadata["model"]` is the model's name.

    An unreadable reply, a refusal and an empty reply raise `ModelSaid`. If `on_error` is given, it is called with the
    error, and the document or seed gives no examples. Raises `Unjudged` if the endpoint gives no reply, and any error
    of the function or `client`.
    """
    judge, named = _choose_judge(model, client)
    examples: list[Example] = []
    for seed in source:
        try:
            examples += [example for example in _generate_from(seed, judge, per_source) if example not in examples]
        except ModelSaid as error:
            if on_error is None:
                raise
            on_error(error)
    written = number_duplicates(examples)
    return [replace(each, metadata={**each.metadata, "model": named}) for each in written] if named else written


def _choose_judge(model: Any, client: Any) -> tuple[Judge, str | None]:
    """Return the judge to call, and the model name for the metadata of examples."""
    from spanwise.evaluators.judges import Judge, make_judge

    if isinstance(model, str) and client is not None:
        return make_judge(lambda messages: client.chat.completions.create(model=model, messages=messages)), model
    if isinstance(model, str):
        return Judge(model=model, temperature=None, seed=None, cache=False), model
    judge = make_judge(model)
    return judge, judge.model if judge is model else None


def _ask_model(judge: Judge, prompt: str) -> str:
    """Return the model's reply. Raises `ModelSaid` if the model was reached but gave no usable reply."""
    from spanwise.evaluators.judges import Ask, CutOff, Declined

    try:
        return str(run_coroutine(judge.ask(Ask(messages=({"role": "user", "content": prompt},)))).value)
    except (CutOff, Declined) as error:
        reply = error.metadata.get("reply", "")
        raise ModelSaid(
            f"the model's reply contains no examples: {error}{f': {reply!r:.300}' if reply else ''}"
        ) from None


def _generate_from(seed: Any, judge: Judge, n: int) -> Iterator[Example]:
    if isinstance(seed, Example):
        reference = _dump_json(seed.reference_outputs)
        reply = _ask_model(judge, VARIATION_PROMPT.format(n=n, inputs=_dump_json(seed.inputs), reference=reference))
        for row in _parse_reply_rows(reply):
            yield replace(_make_generated(row, reply), base_id=seed.id, id="")
    else:
        (document,) = to_documents([seed])
        reply = _ask_model(judge, DOCUMENT_PROMPT.format(n=n, content=document.content))
        for row in _parse_reply_rows(reply):
            yield replace(_make_generated(row, reply), expected_documents=(replace(document, score=None),), id="")


def _parse_reply_rows(reply: str) -> list[Mapping[str, JSON]]:
    """Return the list of objects in a reply, ignoring any text around it."""
    block = _JSON_LIST.search(reply)
    try:
        rows = orjson.loads(block.group()) if block else None
    except orjson.JSONDecodeError:
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ModelSaid(f"the model's reply contains no JSON list of examples: {reply!r:.300}")
    return rows


def _make_generated(row: Mapping[str, JSON], reply: str) -> Example:
    try:
        example = to_example(row)
    except BadRow as error:
        raise ModelSaid(f"{error}; the model's reply: {reply!r:.300}") from None
    return replace(example, metadata={**example.metadata, "generated": True})


def _dump_json(value: JSON) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
