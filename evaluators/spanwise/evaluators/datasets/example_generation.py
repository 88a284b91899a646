"""Generated examples: questions and variations by a model, and perturbed copies of examples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import orjson

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import (
    JSON,
    PERTURBATION_KINDS,
    Example,
    derive_example_id,
    is_perturbed,
    number_duplicates,
)
from spanwise.evaluators.datasets.column_mapping import BadRow, to_example
from spanwise.evaluators.datasets.example_reader import read
from spanwise.evaluators.datasets.text_perturbation import PROTECTED, Perturbation, find_protected, make_perturbation
from spanwise.evaluators.interface import run_coroutine, to_documents, to_messages

if TYPE_CHECKING:
    from spanwise.evaluators.judges import Judge


# Generation of examples by a model: questions about documents, variations of examples.

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


# Perturbed datasets: examples with changed inputs, each linked to the base case that it was made from.

Path: TypeAlias = tuple[str | int, ...]
ChangeText: TypeAlias = Callable[[str, Path], str]
_CHAT_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class PerturbedDataset(Sequence[Example]):
    """Base examples, unchanged and in their order, followed by the perturbed examples.

    The counts are by kind: `perturbed` examples that were made, `unchangeable` ones that were chosen but have no text
    that the kind can change, and `existing` ones that the dataset contained already.
    """

    examples: tuple[Example, ...]
    perturbed: Mapping[str, int]
    unchangeable: Mapping[str, int]
    existing: Mapping[str, int]

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        return self.examples[index]

    def __len__(self) -> int:
        return len(self.examples)

    def __str__(self) -> str:
        lines = [f"{len(self.examples)} examples"]
        for kind, count in self.perturbed.items():
            more = f", {self.existing[kind]} existed" if self.existing[kind] else ""
            lines.append(f"{kind}: {count} perturbed, {self.unchangeable[kind]} unchangeable{more}")
        return "\n".join(lines)


def perturb(
    dataset: Any,
    kinds: str | Sequence[str],
    *,
    seed: int = 0,
    share: float = 1.0,
    fields: Collection[str] | None = None,
    protect: Collection[str] = PROTECTED,
    chain: bool = False,
) -> PerturbedDataset:
    """Return a dataset's examples and, for each kind, a perturbed copy of each of them.

    `dataset` is anything that `datasets.read` accepts. Kinds are typos, casing, punctuation, contractions, word_order,
    noise, synonyms (requires WordNet), base64 and base16. A perturbed example has the id of its base as `base_id`, the
    kind as its last category, and no `outputs`. All else but the inputs is that of the base, also the reference.

    - `share` is the share of the examples that each kind perturbs. A hash of seed, kind and id chooses them.
    - `fields` names the inputs to change, such as "question" or "user.question". Without it, all texts change. Of
      chat messages, only the last of the user changes.
    - `protect` names the parts of texts that stay: code (fenced, inline, tags), urls, emails, placeholders, numbers,
      json. `protect=()` protects nothing.
    - With `chain`, examples that are perturbations themselves are perturbed, too.

    Equal seeds give equal texts everywhere; synonyms also depend on the version of WordNet. Raises `ValueError` for
    unknown names and `NotFound` without WordNet.
    """
    if not kinds:
        raise ValueError(f"kinds must name at least one of: {', '.join(PERTURBATION_KINDS)}")
    functions = {kind: make_perturbation(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)}
    bases = read(dataset)
    _check_options(seed, share, fields, protect, bases)
    known = {(base.base_id, derive_example_id(base)) for base in bases if base.base_id}
    counts = {name: dict.fromkeys(functions, 0) for name in ("perturbed", "unchangeable", "existing")}
    made: list[Example] = []
    for base in bases:
        if is_perturbed(base) and not chain:
            continue
        spans: dict[str, list[tuple[int, int]]] = {}  # protected spans of the example's texts
        for kind, function in functions.items():
            key = f"{seed}\0{kind}\0{base.id}"
            if _hash(key) >= share * 2**64:
                continue
            inputs = _change_inputs(base.inputs, fields, _bind(function, key, protect, spans))
            if inputs is base.inputs:
                counts["unchangeable"][kind] += 1
                continue
            categories = (*(category for category in base.categories if category != kind), kind)
            copy = replace(base, inputs=inputs, outputs=None, base_id=base.id, categories=categories, id="")
            if (base.id, copy.id) in known:
                counts["existing"][kind] += 1
                continue
            counts["perturbed"][kind] += 1
            made.append(copy)
    return PerturbedDataset(tuple(number_duplicates([*bases, *made])), **counts)


def _check_options(
    seed: int, share: float, fields: Collection[str] | None, protect: Collection[str], examples: Sequence[Example]
) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be an integer, got {seed!r:.100}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"share must be a number from 0 to 1, got {share!r:.100}")
    for name, value in (("fields", fields), ("protect", protect)):
        if isinstance(value, str):
            raise ValueError(f"{name} must be a list of names, got the string {value!r:.100}")
    for name in protect:
        if name not in PROTECTED:
            raise ValueError(f"unknown name {name!r:.100} in protect; expected one of: {', '.join(PROTECTED)}")
    for field in fields or ():
        if examples and not any(
            _change_inputs(example.inputs, [field], lambda text, path: f"{text}.") is not example.inputs
            for example in examples
        ):
            raise ValueError(f"no example has a text in the field {field!r:.100} of its inputs")


def _hash(key: str) -> int:
    """Return a number of 64 bits that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def _bind(
    perturbation: Perturbation, key: str, protect: Collection[str], spans: dict[str, list[tuple[int, int]]]
) -> ChangeText:
    """Return the perturbation as a function of a text and its place in the inputs, which seeds the randomness."""

    def change(text: str, path: Path) -> str:
        if text not in spans:
            spans[text] = find_protected(text, protect)
        place = "\0".join(map(str, path))
        return perturbation(text, spans[text], Random(_hash(f"{key}\0{place}")))

    return change


def _change_inputs(inputs: JSON, fields: Collection[str] | None, change: ChangeText) -> JSON:
    """Return the inputs with changed texts; the same object if no text has changed."""
    if fields is None:
        return _change_value(inputs, change, ())
    for field in fields:  # a key of the inputs may itself contain dots
        names = [field] if isinstance(inputs, Mapping) and field in inputs else field.split(".")
        inputs = _change_field(inputs, names, change, ())
    return inputs


def _change_field(value: JSON, names: list[str], change: ChangeText, path: Path) -> JSON:
    if not names:
        return _change_value(value, change, path)
    if not isinstance(value, Mapping) or names[0] not in value:
        return value
    inner = _change_field(value[names[0]], names[1:], change, (*path, names[0]))
    return value if inner is value[names[0]] else {**value, names[0]: inner}


def _change_value(value: JSON, change: ChangeText, path: Path) -> JSON:
    """Return a value with all its texts changed, of chat messages only the last of the user."""
    if isinstance(value, str):
        changed = change(value, path)
        return value if changed == value else changed
    if isinstance(value, Mapping):
        if isinstance(value.get("role"), str) and "content" in value:
            return _change_message(value, change, path) if value["role"] == "user" else value
        items = {key: _change_value(inner, change, (*path, str(key))) for key, inner in value.items()}
        return value if all(items[key] is value[key] for key in items) else items
    if isinstance(value, list | tuple):
        roles = [message.get("role") for message in to_messages(list(value))]
        if not _CHAT_ROLES.isdisjoint(roles):
            last = max((index for index, role in enumerate(roles) if role == "user"), default=None)
            if last is None:
                return value
            turn = _change_message(value[last], change, (*path, last))
            return value if turn is value[last] else [*value[:last], turn, *value[last + 1 :]]
        new = [_change_value(item, change, (*path, index)) for index, item in enumerate(value)]
        return value if all(old is item for old, item in zip(value, new, strict=True)) else new
    return value


def _change_message(message: Any, change: ChangeText, path: Path) -> Any:
    """Return a message of OpenAI's or LangChain's format with a changed content: a text, or the texts of its parts."""
    for wrapper in ("data", "kwargs"):
        if isinstance(message.get(wrapper), Mapping):
            inner = _change_message(message[wrapper], change, (*path, wrapper))
            return message if inner is message[wrapper] else {**message, wrapper: inner}
    content = message.get("content")
    if isinstance(content, str):
        new: Any = _change_value(content, change, (*path, "content"))
    elif isinstance(content, list | tuple):
        new = [_change_part(item, change, (*path, "content", index)) for index, item in enumerate(content)]
        if all(old is item for old, item in zip(content, new, strict=True)):
            return message
    else:
        return message
    return message if new is content else {**message, "content": new}


def _change_part(item: Any, change: ChangeText, path: Path) -> Any:
    if isinstance(item, str):
        return _change_value(item, change, path)
    if isinstance(item, Mapping) and isinstance(item.get("text"), str):
        new = _change_value(item["text"], change, path)
        return item if new is item["text"] else {**item, "text": new}
    return item
