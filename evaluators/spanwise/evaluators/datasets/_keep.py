"""Datasets in a store: put in, compared between versions, freed of doubles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import eq
from typing import Any, Literal, cast

from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Dataset, DatasetKind, Example
from spanwise.collector.stores import ControlStore
from spanwise.evaluators.datasets._align import aligned, stored_examples
from spanwise.evaluators.datasets._kinds import check_kind, kind_of
from spanwise.evaluators.datasets._read import read
from spanwise.evaluators.datasets._schema import Schema, check_schema, infer_schema
from spanwise.evaluators.protocol import Location, opened_store


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed from one list of examples to another, by id; `changed` maps an id to the names of its fields."""

    added: tuple[Example, ...]
    removed: tuple[Example, ...]
    changed: Mapping[str, tuple[str, ...]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def save(
    store: ControlStore | Location,
    name: str,
    source: Any,
    *,
    kind: DatasetKind | None = None,
    schema: Schema | Literal["infer"] | None = None,
    replace: bool = False,
    description: str | None = None,
    metadata: Mapping[str, JSON] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Dataset:
    """Put examples into a stored dataset (see `read` for sources); a new version if anything changed.

    An example without an id of its own is the stored one that asks the same, if there is one: with another reference
    it changes that one. All examples must follow the schema: the one given, one inferred from them, or the one that
    the dataset has already (else `SchemaError`). `replace` takes out what is not in the source. `store`
    may be a path or URL.
    """
    examples = read(source, columns=columns)
    with opened_store(cast(Location, store)) as found:
        return keep(
            found,
            name,
            examples,
            kind=kind,
            schema=schema,
            replace=replace,
            description=description,
            metadata=metadata,
        )[0]


def keep(
    store: ControlStore,
    name: str,
    examples: Sequence[Example],
    *,
    kind: DatasetKind | None = None,
    schema: Schema | Literal["infer"] | None = None,
    replace: bool = False,
    description: str | None = None,
    metadata: Mapping[str, JSON] | None = None,
) -> tuple[Dataset, list[Example]]:
    """`save`, which also gives the examples back under the ids that they have in the store."""
    known = _known(store, name)
    if known and not _is_there(examples, store, known):
        examples = aligned(examples, stored_examples(store, name, known.version))
    kind = kind or (known.kind if known else kind_of(examples))
    check_kind(examples, kind)
    held = infer_schema(examples) if schema == "infer" else schema or (known.schema if known else None)
    if held:
        check_schema(examples, held)
    saved = store.save_examples(
        name, examples, replace=replace, kind=kind, schema=held, description=description, metadata=metadata
    )
    return saved, list(examples)


def diff(before: Iterable[Example], after: Iterable[Example]) -> Diff:
    """What changed between two lists of examples, such as two versions of a dataset."""
    old = {example.id: example for example in before}
    new = {example.id: example for example in after}
    changes = {id: _changed(old[id], new[id]) for id in new if id in old}
    return Diff(
        added=tuple(example for id, example in new.items() if id not in old),
        removed=tuple(example for id, example in old.items() if id not in new),
        changed={id: names for id, names in changes.items() if names},
    )


def deduplicate(examples: Iterable[Example]) -> list[Example]:
    """The first of those whose inputs are the same; case and white space of texts do not count."""
    seen: dict[str, Example] = {}
    for example in examples:
        seen.setdefault(_fingerprint(example.inputs), example)
    return list(seen.values())


def _known(store: ControlStore, name: str) -> Dataset | None:
    try:
        return store.dataset(name)
    except NotFound:
        return None


def _is_there(examples: Sequence[Example], store: ControlStore, known: Dataset) -> bool:
    """Whether a dataset consists of these very examples, as when an experiment is done again: soon told."""
    try:
        return known.example_count == len(examples) and all(
            map(eq, examples, stored_examples(store, known.name, known.version))
        )
    except (TypeError, ValueError):  # an array among the inputs is neither equal nor unequal, nor is `pandas.NA`
        return False


def _changed(old: Example, new: Example) -> tuple[str, ...]:
    return tuple(field.name for field in fields(Example) if getattr(old, field.name) != getattr(new, field.name))


def _fingerprint(value: JSON) -> str:
    if isinstance(value, str):
        return repr(" ".join(value.casefold().split()))
    if isinstance(value, Mapping):
        return repr(sorted((str(key), _fingerprint(inner)) for key, inner in value.items()))
    if isinstance(value, list | tuple):
        return repr([_fingerprint(inner) for inner in value])
    return repr(value)
