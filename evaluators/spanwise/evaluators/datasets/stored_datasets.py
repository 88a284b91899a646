"""Datasets in a store: saving versions, kinds, JSON Schemas, matching by inputs, differences.

A dataset has one of three kinds:

- kv: any inputs and outputs.
- llm: {"input": prompt} → {"output": response}. Evaluators get the two texts.
- chat: {"input": messages} → {"output": messages}. Evaluators get the text of the last message, and the
  messages before it as `history`.

Stored ids never change. They may differ from `derive_example_id`, such as ids that users assigned or that earlier
versions derived. Examples without a given id are therefore matched with stored ones by their inputs, in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import eq
from typing import Any, Literal, cast

from spanwise.collector.errors import NotFound, SpanwiseError
from spanwise.collector.records import (
    JSON,
    Dataset,
    DatasetKind,
    Example,
    ExampleNumbering,
    canonical_json,
    derive_example_id,
)
from spanwise.collector.stores import ControlStore
from spanwise.evaluators.datasets.example_reader import read
from spanwise.evaluators.datasets.file_formats import to_row
from spanwise.evaluators.interface import StoreLocation, open_store_location, to_messages, unwrap_single_value


def infer_kind(examples: Iterable[Example]) -> DatasetKind:
    """Return the kind of a list of examples, judged by the inputs of the first."""
    first = next(iter(examples), None)
    if first is None or not isinstance(first.inputs, Mapping) or set(first.inputs) != {"input"}:
        return "kv"
    messages = first.inputs["input"]
    if isinstance(messages, str):
        return "llm"
    return "chat" if to_messages(messages) else "kv"


def check_kind(examples: Iterable[Example], kind: DatasetKind) -> None:
    """Raise `ValueError` for the first example that is not of the kind."""
    for number, example in enumerate(examples, 1):
        if kind != "kv" and infer_kind([example]) != kind:
            expected = "a string" if kind == "llm" else "a list of messages"
            raise ValueError(
                f"example {number} ({example.id[:12]}) is not of kind {kind!r}: inputs must be "
                f"{{'input': {expected}}}, not {example.inputs!r:.120}"
            )


def view_example(example: Example, kind: str) -> dict[str, JSON]:
    """Return the fields of a `Case` that an example supplies: `inputs`, `reference_outputs`, `history`."""
    fields = {"inputs": example.inputs, "reference_outputs": example.reference_outputs, "history": example.history}
    if kind == "kv":
        return fields
    if kind == "llm":
        return {
            **fields,
            "inputs": unwrap_single_value(example.inputs),
            "reference_outputs": unwrap_single_value(example.reference_outputs),
        }
    return {**fields, **_last_turn(example)}


def view_outputs(outputs: JSON, kind: str) -> JSON:
    """Return a task's outputs as evaluators see them."""
    if kind == "kv":
        return outputs
    turns = to_messages(unwrap_single_value(outputs)) if kind == "chat" else []
    return turns[-1].get("content") if turns else unwrap_single_value(outputs)


def _last_turn(example: Example) -> dict[str, JSON]:
    turns = to_messages(unwrap_single_value(example.inputs))
    if not turns:
        return {}
    return {
        "inputs": turns[-1].get("content"),
        "history": example.history or turns[:-1] or None,
        "reference_outputs": view_outputs(example.reference_outputs, "chat"),
    }


SCHEMA_PARTS = ("inputs", "reference_outputs")
Schema = Mapping[str, JSON]


class SchemaError(SpanwiseError, ValueError):
    """Error for an example that violates its dataset's schema, with the field in the message, or for an invalid
    schema.
    """


def infer_schema(examples: Iterable[Example]) -> dict[str, JSON]:
    """Infer the narrowest schema that all examples follow: the types of every field, and the fields that are always
    present.
    """
    rows = list(examples)
    references = [row.reference_outputs for row in rows if row.reference_outputs is not None]
    parts = {"inputs": [row.inputs for row in rows], "reference_outputs": references}
    return {
        field: _simplify_schema(_join_schemas([_infer_value(value) for value in values]))
        for field, values in parts.items()
        if values
    }


def check_schema(examples: Iterable[Example], schema: Schema) -> None:
    """Raise `SchemaError` for the first example that violates the schema, and for an invalid schema."""
    from jsonschema import Draft202012Validator

    _validate_schema(schema)
    validators = {
        schema_part: Draft202012Validator(schema[schema_part])
        for schema_part in SCHEMA_PARTS
        if schema.get(schema_part)
    }
    for number, example in enumerate(examples, 1):
        for schema_part, validator in validators.items():
            value = getattr(example, schema_part)
            if value is None and schema_part != "inputs":
                continue
            errors = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.path)))
            if errors:
                field = ".".join([schema_part, *map(str, errors[0].path)])
                raise SchemaError(
                    f"example {number} ({example.id[:12]}) does not follow the dataset's schema at {field}: "
                    f"{errors[0].message}"
                )


def _validate_schema(schema: Schema) -> None:
    from jsonschema import Draft202012Validator

    if unknown := sorted(set(schema) - set(SCHEMA_PARTS)):
        raise SchemaError(
            f"unknown key {unknown[0]!r} in the dataset's schema: put a JSON Schema under "
            f"{' or '.join(map(repr, SCHEMA_PARTS))}, as in {{'inputs': {{…}}}}"
        )
    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    for field in SCHEMA_PARTS:
        error = next(meta.iter_errors(schema.get(field, {})), None)
        if error is not None:
            raise SchemaError(
                f"the schema is not a valid JSON Schema at {'.'.join([field, *map(str, error.path)])}: {error.message}"
            )


def _infer_value(value: JSON) -> dict[str, Any]:
    if isinstance(value, Mapping):
        properties = {str(key): _infer_value(inner) for key, inner in value.items()}
        return {"type": ["object"], "properties": properties, "required": sorted(properties)}
    if isinstance(value, list | tuple):
        return {
            "type": ["array"],
            **({"items": _join_schemas([_infer_value(inner) for inner in value])} if value else {}),
        }
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (type(None), "null"))
    return {"type": [next((name for kind, name in kinds if isinstance(value, kind)), "string")]}


def _join_schemas(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Join schemas: the union of their types. A field is required if every object has it."""
    types = {name for schema in schemas for name in schema["type"]}
    joined: dict[str, Any] = {"type": sorted(types - {"integer"} if "number" in types else types)}
    objects = [schema for schema in schemas if "properties" in schema]
    if objects:
        names = sorted({name for schema in objects for name in schema["properties"]})
        having = {name: [s["properties"][name] for s in objects if name in s["properties"]] for name in names}
        joined["properties"] = {name: _join_schemas(parts) for name, parts in having.items()}
        joined["required"] = sorted(set.intersection(*(set(schema["required"]) for schema in objects)))
    items = [schema["items"] for schema in schemas if "items" in schema]
    if items:
        joined["items"] = _join_schemas(items)
    return joined


def _simplify_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace type lists of one member by that member."""
    tidy = {**schema, "type": schema["type"][0] if len(schema["type"]) == 1 else schema["type"]}
    if "properties" in tidy:
        tidy["properties"] = {name: _simplify_schema(member) for name, member in tidy["properties"].items()}
    if "items" in tidy:
        tidy["items"] = _simplify_schema(tidy["items"])
    return tidy


PAGE_EXAMPLES = 5000


def align_examples(examples: Sequence[Example], stored: Iterable[Example]) -> list[Example]:
    """Return the examples, each with the id of the stored example that has the same inputs, unless its id was given.

    If several examples have the same inputs, they are paired in three steps: equal examples, then examples of the
    same split, then the others. In each step, examples with the same id are paired before those with other ids, which
    are paired in order. Every remaining example gets an id that no stored example has. A `base_id` that names one of
    the examples follows its id.
    """
    keys = [derive_example_id(example) for example in examples]
    unassigned: dict[str, list[int]] = defaultdict(list)  # positions of the examples without a given id, by key
    for index, (example, key) in enumerate(zip(examples, keys, strict=True)):
        if is_derived_id(example.id, key):
            unassigned[key].append(index)
    if not unassigned:
        return list(examples)
    explicit_ids = {
        example.id for example, key in zip(examples, keys, strict=True) if not is_derived_id(example.id, key)
    }
    stored_ids, candidates = _find_same_inputs(stored, unassigned)
    ids: dict[int, str] = {}
    for key, same_inputs in candidates.items():
        old = {example.id: example for example in same_inputs if example.id not in explicit_ids}
        ids.update(_pair_examples({index: examples[index] for index in unassigned[key]}, old))
    numbering = ExampleNumbering(stored_ids | explicit_ids)
    aligned = [
        example
        if example.id in explicit_ids or ids.get(index) == example.id
        else replace(example, id=ids[index])
        if index in ids
        else numbering.of(replace(example, id=keys[index]))
        for index, example in enumerate(examples)
    ]
    renamed = {old.id: new.id for old, new in zip(examples, aligned, strict=True) if old.id != new.id}
    if not renamed:
        return aligned
    return [
        replace(example, base_id=renamed[example.base_id]) if example.base_id in renamed else example
        for example in aligned
    ]


def is_derived_id(id: str, key: str) -> bool:
    """Return whether an id was derived from its example's inputs: it is the key, or the key with a number (`key-2`) that
    distinguishes examples with the same inputs.
    """
    return id == key or (id.startswith(f"{key}-") and id[len(key) + 1 :].isdecimal())


def stored_examples(
    store: ControlStore, name: str, version: int | None, *, split: str | None = None, page: int = PAGE_EXAMPLES
) -> Iterator[Example]:
    """Yield the examples of a version, or of one split of it, with at most `page` of them in memory."""
    offset = 0
    while examples := store.examples(name, version, split=split, limit=page, offset=offset):
        yield from examples
        offset += len(examples)


def _find_same_inputs(stored: Iterable[Example], keys: Container[str]) -> tuple[set[str], dict[str, list[Example]]]:
    """Return the ids of all stored examples. Also return, by key, the stored examples that have the same inputs as a new
    example.
    """
    stored_ids: set[str] = set()
    candidates: dict[str, list[Example]] = defaultdict(list)
    for example in stored:
        stored_ids.add(example.id)
        if (key := derive_example_id(example)) in keys:
            candidates[key].append(example)
    return stored_ids, candidates


def _pair_examples(new: dict[int, Example], old: dict[str, Example]) -> Mapping[int, str]:
    """Match new examples with stored ones that have the same inputs. Return the stored ids by position of the new
    example.

    The time is linear in the number of examples, even if all have the same inputs.
    """
    if len(new) == len(old) == 1:
        return dict(zip(new, old, strict=True))
    paired: dict[int, str] = {}
    for make_key in _MATCH_LEVELS if old else ():
        unpaired: dict[object, deque[str]] = defaultdict(deque)
        for example in old.values():
            unpaired[make_key(example)].append(example.id)
        for index, example in list(new.items()):
            if ids := unpaired.get(make_key(example)):
                paired[index] = ids.popleft()
                del old[paired[index]], new[index]
    return paired


def _content_key(example: Example) -> object:
    return canonical_json({name: value for name, value in to_row(example).items() if name != "id"})


# keys under which new and stored examples are paired, the strictest first; the last pairs any two examples
_MATCH_LEVELS: tuple[Callable[[Example], object], ...] = (
    lambda example: (example.id, _content_key(example)),
    _content_key,
    lambda example: (example.id, example.split),
    lambda example: example.split,
    lambda example: example.id,
    lambda example: None,
)


@dataclass(frozen=True, slots=True)
class Diff:
    """Differences between two lists of examples, by id. `changed` maps an id to the names of its changed fields."""

    added: tuple[Example, ...]
    removed: tuple[Example, ...]
    changed: Mapping[str, tuple[str, ...]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def save(
    store: ControlStore | StoreLocation,
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
    """Save examples to a stored dataset (see `read` for sources). Any change creates a new version.

    An example without a given id replaces the stored example with the same inputs, for instance to change its
    reference. All examples must follow the schema: the given one, one inferred from them, or that of the dataset
    (else `SchemaError`). `replace` removes stored examples that the source lacks. `store` may be a path or URL.
    """
    examples = read(source, columns=columns)
    with open_store_location(cast(StoreLocation, store)) as opened:
        return store_examples(
            opened,
            name,
            examples,
            kind=kind,
            schema=schema,
            replace=replace,
            description=description,
            metadata=metadata,
        )[0]


def store_examples(
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
    """Save examples like `save`, and also return them with their ids in the store."""
    try:
        known = store.dataset(name)
    except NotFound:
        known = None
    if known and not _is_unchanged(examples, store, known):
        examples = align_examples(examples, stored_examples(store, name, known.version))
    kind = kind or (known.kind if known else infer_kind(examples))
    check_kind(examples, kind)
    effective = infer_schema(examples) if schema == "infer" else schema or (known.schema if known else None)
    if effective:
        check_schema(examples, effective)
    saved = store.save_examples(
        name, examples, replace=replace, kind=kind, schema=effective, description=description, metadata=metadata
    )
    return saved, list(examples)


def diff(before: Iterable[Example], after: Iterable[Example]) -> Diff:
    """Return the differences between two lists of examples, such as two versions of a dataset."""
    old = {example.id: example for example in before}
    new = {example.id: example for example in after}
    changes = {
        id: tuple(
            field.name for field in fields(Example) if getattr(old[id], field.name) != getattr(new[id], field.name)
        )
        for id in new
        if id in old
    }
    return Diff(
        added=tuple(example for id, example in new.items() if id not in old),
        removed=tuple(example for id, example in old.items() if id not in new),
        changed={id: names for id, names in changes.items() if names},
    )


def deduplicate(examples: Iterable[Example]) -> list[Example]:
    """Return the first example of each distinct inputs. Case and white space of texts are ignored."""
    by_id: dict[str, Example] = {}
    for example in examples:
        by_id.setdefault(_input_fingerprint(example.inputs), example)
    return list(by_id.values())


def _is_unchanged(examples: Sequence[Example], store: ControlStore, known: Dataset) -> bool:
    """Return whether the dataset consists of exactly these examples, as when an experiment is repeated. Then the
    costlier matching is not needed.
    """
    try:
        return known.example_count == len(examples) and all(
            map(eq, examples, stored_examples(store, known.name, known.version))
        )
    # inputs with arrays or `pandas.NA` cannot be compared, as the result has no truth value
    except (TypeError, ValueError):
        return False


def _input_fingerprint(value: JSON) -> str:
    if isinstance(value, str):
        return repr(" ".join(value.casefold().split()))
    if isinstance(value, Mapping):
        return repr(sorted((str(key), _input_fingerprint(inner)) for key, inner in value.items()))
    if isinstance(value, list | tuple):
        return repr([_input_fingerprint(inner) for inner in value])
    return repr(value)
