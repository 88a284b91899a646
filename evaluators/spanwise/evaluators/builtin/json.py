"""JSON evaluators: strict JSON and JSON Schema validation with bounded keywords.

The schema is trusted, the validated value is not. Without bounds a pattern may backtrack endlessly, alternatives
multiply, and jsonschema compares all pairs of items for `uniqueItems`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeAlias

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import Document
from spanwise.evaluators.builtin.boolean_families import family_metrics, family_rows
from spanwise.evaluators.builtin.text_matching import check_time_limit, search_pattern
from spanwise.evaluators.interface import Metric, register_builtin
from spanwise.evaluators.interface.evaluator_spec import SECURE, VALID

_LANGUAGE = re.compile(r"[\w-]*\s*")


class InvalidJSON(SpanwiseError, ValueError):
    """Raised for a text that is not JSON, or does not match the schema."""


def load_strict_json(text: str, *, lenient: bool = False) -> Any:
    """Parse strict JSON (RFC 8259): no NaN or Infinity, no repeated keys, no byte order mark, nothing around it.

    With `lenient`, a byte order mark and a Markdown code fence are removed first. Raises `InvalidJSON`.
    """
    if lenient:
        text = strip_code_fence(text.removeprefix("\ufeff"))
    if text.startswith("\ufeff"):
        raise InvalidJSON("a BOM, a byte order mark, stands before it")
    try:
        return _STRICT_DECODER.decode(text)
    except InvalidJSON:
        raise
    except RecursionError:
        raise InvalidJSON("nested too deeply to be read") from None
    except ValueError as error:
        raise InvalidJSON(str(error)) from error


def strip_code_fence(text: str) -> str:
    """Return a text without the Markdown code fence around it; other texts unchanged."""
    inner = text.strip()
    if not (inner.startswith("```") and inner.endswith("```")):
        return text
    language, newline, content = inner[3:-3].partition("\n")
    return content if newline and _LANGUAGE.fullmatch(language) else text


def is_json(text: str, *, lenient: bool = False) -> bool:
    """Return whether a text is strict JSON."""
    try:
        load_strict_json(text, lenient=lenient)
    except InvalidJSON:
        return False
    return True


@register_builtin(
    "is_json",
    metrics=(Metric("is_json", primary=True),),
    standards=(VALID, SECURE),
    source="LangSmith: heuristic evaluators",
    canonical="json of Python, strict",
    example='get_evaluator("is_json"), outputs=\'{"a": NaN}\'',
)
@dataclass(frozen=True, slots=True)
class IsJSON:
    """True if the answer is strict JSON (no NaN, no repeated keys, nothing around it).

    With `lenient`, a byte order mark and a Markdown code fence are removed first. Outputs that are not a text are
    values already. Of these, only numbers that JSON cannot represent (nan, inf) fail.
    """

    lenient: bool = False

    def __call__(self, outputs: Any) -> dict[str, Any]:
        problem = _find_problem(outputs, None, self.lenient)
        return {"score": problem is None, "comment": problem}


@register_builtin(
    "json_schema",
    metrics=family_metrics("json_schema", parse=False),
    standards=(VALID, SECURE),
    source="H2O Eval Studio: JSON schema",
    canonical="jsonschema",
    example='get_evaluator("json_schema", json_schema={"required": ["a"]}), outputs=\'{"b": 1}\', documents=[\'{"a": 1}\']',
)
@dataclass(frozen=True, slots=True)
class JSONSchema:
    """True if the answer is JSON and matches a JSON Schema (draft 2020-12 unless `$schema` names another).

    `json_schema` is the schema as a dict or as JSON. With an empty schema the answer must only be JSON. An
    invalid schema is rejected when the evaluator is made, and so is one with external references: nothing is
    fetched.

    Retrieved documents that begin like a JSON object or array are checked in the same way. Documents that fail the
    check count as retrieval failures, but do not fail the case. With `lenient`, a byte order mark and a code fence
    are removed first.

    A check that takes longer than `seconds` (wall-clock time) is an error of that case, and so is a pattern that
    takes more than 1 s of CPU time.
    """

    json_schema: Mapping[str, Any] | str | bool = field(default_factory=dict)
    lenient: bool = False
    evaluate_retrieved_context: bool = True
    seconds: float = 10.0
    _validator: Any = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        check_time_limit(self.seconds)
        object.__setattr__(self, "_validator", make_validator(self.json_schema))

    def __call__(self, outputs: Any, documents: Sequence[Document] | None = None) -> list[dict[str, Any]]:
        problem = self._problem(outputs)
        context, bad = None, []
        if documents is not None and self.evaluate_retrieved_context:
            fragments = [
                (rank, document.content)
                for rank, document in enumerate(documents)
                if document.content.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")
            ]
            bad = [f"document {rank}: {wrong}" for rank, text in fragments if (wrong := self._problem(text))]
            context = not bad if fragments else None
        return family_rows(
            "json_schema",
            problem is None,
            context,
            parse=False,
            counted=False,
            comment=problem,
            metadata={"documents": bad} if bad else None,
        )

    def _problem(self, value: Any) -> str | None:
        return _find_problem(value, self._validator, self.lenient, self.seconds)


def make_validator(schema: Mapping[str, Any] | str | bool) -> Any:
    """Return a jsonschema validator, or None for an empty schema. Raises `ValueError` for an invalid schema."""
    if isinstance(schema, str):
        try:
            schema = load_strict_json(schema) if schema.strip() else {}
        except InvalidJSON as error:
            raise ValueError(f"json_schema is not valid JSON: {error}") from error
    if isinstance(schema, bool):  # boolean schemas: true accepts everything, false nothing
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        raise ValueError(f"json_schema must be a dict or its JSON, not {schema!r:.200}")
    if not schema:
        return None
    import jsonschema
    from jsonschema_specifications import REGISTRY

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise ValueError(f"json_schema is not a valid JSON Schema: {error.message} at {error.json_path}") from error
    except RecursionError:
        raise ValueError("json_schema is nested too deeply") from None
    _check_references(dict(schema), kind.META_SCHEMA["$schema"])
    return _check_termination(
        bound_keywords(kind)(dict(schema), registry=REGISTRY)
    )  # the registry contains the meta-schemas; nothing is fetched


def _check_references(schema: Mapping[str, Any], dialect: str) -> None:
    """Raise `ValueError` for an unresolvable reference, on which every case would fail."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource, exceptions, jsonschema

    root = Resource.from_contents(schema, default_specification=jsonschema.specification_with(dialect))
    waiting = [(root, REGISTRY.resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        for name in ("$ref", "$dynamicRef"):
            reference = resource.contents.get(name) if isinstance(resource.contents, Mapping) else None
            try:
                _ = reference is None or resolver.lookup(reference)
            except exceptions.Unresolvable as error:
                raise ValueError(
                    f"json_schema refers to {reference!r}, which is not in it: put it under $defs (nothing is fetched)"
                ) from error
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _check_termination(validator: Any) -> Any:
    """Return the validator. Raises `ValueError` if its references form an endless loop."""
    try:
        next(iter(validator.iter_errors(None)), None)
    except RecursionError:
        raise ValueError("json_schema refers to itself endlessly") from None
    return validator


def _find_problem(value: Any, validator: Any, lenient: bool, seconds: float = math.inf) -> str | None:
    """Return why an answer is not valid JSON or violates the schema, or None if it passes. A value that is not a text is
    checked without parsing.
    """
    try:
        parsed = load_strict_json(value, lenient=lenient) if isinstance(value, str) else value
    except InvalidJSON as error:
        return str(error)
    if isinstance(parsed, float) and not math.isfinite(parsed):
        return f"{parsed!r} is no JSON"
    if validator is None:
        return None
    try:
        first = first_error(validator, parsed, seconds)
    except RecursionError:
        return "nested too deeply to be checked"
    return None if first is None else f"{first.message:.500} at {first.json_path}"


def _refuse_constant(name: str) -> None:
    raise InvalidJSON(f"{name} is no JSON")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise InvalidJSON(f"the key {repeated!r:.200} comes twice in one object")
    return members


_STRICT_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant,
    # Python rejects very long integers, which JSON allows
    parse_int=lambda digits: int(digits) if len(digits) < 4000 else float(digits),
    object_pairs_hook=_object_without_duplicates,
)


Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
# Keywords that can multiply the number of steps of a check. The time of all others is linear in the answer.
BRANCHING_KEYWORDS = frozenset("$ref $dynamicRef $recursiveRef allOf anyOf oneOf not if contains".split())
MAX_UNEVALUATED = 5000  # maximum members of a list or object for keywords of quadratic cost

_check_deadline: ContextVar[tuple[float, float]] = ContextVar(
    "limit", default=(float("inf"), 0.0)
)  # (deadline, limit in seconds)


def first_error(validator: Any, value: Any, seconds: float) -> Any:
    """Return the first validation error of a value, or None.

    Raises `TimeoutError` if bounded keywords take longer than `seconds`.
    """
    token = _check_deadline.set((monotonic() + seconds, seconds))
    try:
        return next(iter(validator.iter_errors(value)), None)
    finally:
        _check_deadline.reset(token)


def bound_keywords(kind: Any) -> Any:
    """Return a jsonschema validator class whose keywords are limited in time or size."""
    import jsonschema

    theirs = dict(kind.VALIDATORS)
    ours: dict[str, Keyword] = {
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "uniqueItems": _check_unique_items,
        "additionalProperties": _check_additional_properties(theirs["additionalProperties"]),
    }
    ours |= {
        name: _with_size_limit(name, theirs[name])
        for name in ("unevaluatedItems", "unevaluatedProperties")
        if name in theirs
    }
    extend: Any = jsonschema.validators.extend  # jsonschema does not annotate `extend`
    branching = {name: _with_deadline(keyword) for name, keyword in theirs.items() if name in BRANCHING_KEYWORDS}
    return extend(kind, branching | ours)


def _raise_if_late() -> None:
    until, seconds = _check_deadline.get()
    if monotonic() > until:
        raise TimeoutError(f"the check against json_schema took more than {seconds} s: raise the limit with seconds=")


def _with_deadline(keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        _raise_if_late()
        return keyword(validator, value, instance, schema)

    return checked


def _with_size_limit(name: str, keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        if isinstance(instance, list | Mapping) and len(instance) > MAX_UNEVALUATED:
            raise ValueError(f"{name} cannot check {len(instance):,} members: the limit is {MAX_UNEVALUATED:,}")
        return keyword(validator, value, instance, schema)

    return checked


def _check_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """Check `pattern` with a time limit, because the answer determines how long a pattern backtracks."""
    import jsonschema

    if isinstance(instance, str) and search_pattern(pattern, instance) is None:
        yield jsonschema.ValidationError(f"{instance!r:.200} does not match {pattern!r}")


def _check_pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, Mapping):
        return
    for pattern, wanted in patterns.items():
        for name, value in instance.items():
            if search_pattern(pattern, name) is not None:
                yield from validator.descend(value, wanted, path=name, schema_path=pattern)


def _check_additional_properties(theirs: Keyword) -> Keyword:
    """Wrap jsonschema's `additionalProperties`. Names that match `patternProperties` are excluded here, because these
    patterns need a time limit.
    """

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        patterns = schema.get("patternProperties", {})
        if not isinstance(instance, Mapping) or not patterns:
            return theirs(validator, value, instance, schema)
        unmatched = {
            name: inner for name, inner in instance.items() if not any(search_pattern(each, name) for each in patterns)
        }
        return theirs(validator, value, unmatched, {**schema, "patternProperties": {}})

    return additional


def _check_unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    import jsonschema

    if wanted and isinstance(instance, list):
        seen: set[Any] = set()
        for item in instance:
            _raise_if_late()
            known = _hashable(item)
            if known in seen:
                yield jsonschema.ValidationError(f"{item!r:.200} occurs more than once")
                return
            seen.add(known)


def _hashable(value: Any) -> Any:
    """Return a hashable that is equal for values that are equal in JSON: 1 equals 1.0, but not true."""
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return (bool, value) if isinstance(value, bool) else value
