"""Perturbed datasets: examples with changed inputs, each linked to the base case that it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias, overload

from spanwise.collector.records import (
    JSON,
    PERTURBATION_KINDS,
    Example,
    derive_example_id,
    is_perturbed,
    number_duplicates,
)
from spanwise.evaluators.datasets.example_reader import read
from spanwise.evaluators.datasets.protected_text import PROTECTED, find_protected
from spanwise.evaluators.datasets.text_perturbation import Perturbation, make_perturbation
from spanwise.evaluators.interface import to_messages

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
