"""Argument binding: which fields of a case a callable receives, type checks, and native outputs of a task.

A field whose value is None is missing. For a missing field the parameter's default is used. Without a default the
case is skipped, and the skip names the field. The `outputs` of a failed run are missing, too. Two kinds of None are
values and not missing: None that a task has returned (see `has_null_output`), and None in the outputs to which a path
in `map` leads.

Callables of users may change their arguments, so they get copies of values and views of records (see `case_views`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import orjson

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import Case
from spanwise.evaluators.interface.case_views import IMMUTABLE_TYPES, copy_value, make_case_view, make_langsmith_example
from spanwise.evaluators.interface.outcomes import Skip, decode_infinity
from spanwise.tracer import attribute_names as names

# Native outputs: the objects that a task returned, for evaluators that ask for them by annotation.
#
# An evaluator asks with the annotation of its outputs: a pydantic model, a dataclass, or a type that contains one,
# such as `Answer | None` or `list[Answer]`. The outputs of stored runs are JSON, from which pydantic rebuilds the
# object.

_MAX_PROBLEMS = 3  # maximum number of problems listed in the reason of a skip


@dataclass(frozen=True)
class NativeOutputs:
    """Getter of outputs as a type. It raises `Skip` with the reason if the outputs are not of this type."""

    hint: Any

    def __call__(self, case: Case) -> Any:
        native = case.native_outputs
        if native is not None:
            if isinstance(self.hint, type) and isinstance(native, self.hint):
                return native
            try:
                return self._adapter.validate_python(native)
            except Exception:
                pass  # read the JSON instead
        if case.outputs is None:
            return None
        try:
            return self._adapter.validate_json(orjson.dumps(case.outputs))
        except Exception as error:  # validators of models may raise anything
            raise Skip(f"outputs cannot be read as {self._name}: {_describe_problems(error)}") from None

    @property
    def accepts_none(self) -> bool:
        """Return whether None is of the type."""
        return type(None) in get_args(self.hint)

    @property
    def _name(self) -> str:
        return self.hint.__qualname__ if isinstance(self.hint, type) else str(self.hint)

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter  # imported here because most evaluators do not need it

        return TypeAdapter(self.hint)


def make_native_getter(function: Callable[..., Any], parameter: str) -> NativeOutputs | None:
    """Return the getter of native outputs for a parameter; None if its annotation has no model or dataclass, or cannot
    be resolved.
    """
    while isinstance(function, partial):
        function = function.func
    annotated = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        hint = get_type_hints(annotated).get(parameter)
    except Exception:  # the annotation names a type that exists only for type checkers
        return None
    return NativeOutputs(hint) if _has_native_type(hint) else None


def _has_native_type(hint: Any) -> bool:
    if any(map(_has_native_type, get_args(hint))):
        return True
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "__pydantic_core_schema__"))


def _describe_problems(error: Exception) -> str:
    problems = getattr(error, "errors", None)
    if not callable(problems):
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    listed = problems()
    texts = [
        ": ".join([*[".".join(map(str, each["loc"]))] * bool(each["loc"]), each["msg"]])
        for each in listed[:_MAX_PROBLEMS]
    ]
    return "; ".join([*texts, *[f"{len(listed) - _MAX_PROBLEMS} more"] * (len(listed) > _MAX_PROBLEMS)])


# Argument binding: which fields of a case a callable receives, and type checks of parameters.

Getter: TypeAlias = Callable[[Case], Any]
Arguments: TypeAlias = dict[str, Any]


def _outputs(case: Case) -> Any:
    return case.outputs


def _field_or_example_field(name: str) -> Getter:
    def get(case: Case) -> Any:
        value = getattr(case, name)
        return getattr(case.example, name) if value is None and case.example is not None else value

    return get


FIELDS: Mapping[str, Getter] = {
    "inputs": _field_or_example_field("inputs"),
    "outputs": _outputs,
    "reference_outputs": _field_or_example_field("reference_outputs"),
    "documents": lambda case: case.documents,
    "expected_documents": _field_or_example_field("expected_documents"),
    "conditions": _field_or_example_field("conditions"),
    "guidelines": _field_or_example_field("guidelines"),
    "history": _field_or_example_field("history"),
    "run": lambda case: case.run,
    "root_run": lambda case: case.run,
    "trace": lambda case: case.trace,
    "example": lambda case: case.example,
    "metadata": lambda case: case.metadata or (case.example.metadata if case.example else case.metadata),
    "case": lambda case: case,
}
# fields that hold records; they are passed as views
_RECORD_FIELDS = frozenset({"run", "root_run", "trace", "example", "case"})
# Other products' names of the fields of a case
SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("input", "question", "query", "request"), "inputs"),
    **dict.fromkeys(
        ("output", "answer", "response", "prediction", "actual_output", "actual_answer", "completion"), "outputs"
    ),
    **dict.fromkeys(
        ("reference", "reference_output", "expected", "expected_output", "expected_outputs", "expected_answer"),
        "reference_outputs",
    ),
    **dict.fromkeys(("ground_truth", "target"), "reference_outputs"),
    **dict.fromkeys(
        ("context", "contexts", "retrieval_context", "retrieved_context", "retrieved_contexts"), "documents"
    ),
}
CASE_SCORES = "case_scores"  # metadata of a set-level score: the scores of the single cases
MAX_CASE_SCORES = 10_000  # cases of one set-level score whose own scores are stored
_SIMILARITY_CUTOFF = 0.85  # minimum difflib ratio of two names that counts as a misspelling
PLURALS: Mapping[str, str] = {"cases": "case", "runs": "run", "examples": "example"}


def has_null_output(case: Case) -> bool:
    """Return whether the task returned None: the root records JSON's null as its output."""
    run = case.run
    return run is not None and run.status != "error" and run.attributes.get(names.OUTPUT_VALUE) == "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseColumns:
    """Arguments of a set-level callable: for each argument a list with the values of all complete cases.

    `missing` are the fields that the incomplete cases lack. `trace_ids` are those of the first `MAX_CASE_SCORES`
    complete cases, "" for a case without a trace.
    """

    arguments: Arguments
    complete: int
    incomplete: int
    missing: Sequence[str]
    trace_ids: Sequence[str]

    def describe(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a set-level score with the numbers of cases.

        A list `CASE_SCORES`, with one score per complete case, is replaced by a dict from trace ids to scores. It is
        left out for more than `MAX_CASE_SCORES` cases, and for cases without traces.
        """
        described = {**metadata, "cases": self.complete, "left_out": self.incomplete}
        scores = metadata.get(CASE_SCORES)
        if isinstance(scores, list) and len(scores) == self.complete:
            del described[CASE_SCORES]
            if self.complete == len(self.trace_ids) and all(self.trace_ids):
                described[CASE_SCORES] = dict(zip(self.trace_ids, scores, strict=True))
        return described


class BindingError(SpanwiseError, TypeError):
    """Raised for a callable that asks for a field that no case has."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Compiled call of one callable for a case.

    `required` arguments must have a value in the case; `optional` ones are passed if they have one.
    """

    required: tuple[tuple[str, Getter], ...]
    optional: tuple[tuple[str, Getter], ...] = ()
    positional: tuple[str, ...] = ()
    prepare: Callable[[Case], Mapping[str, Any]] | None = None
    paths: tuple[tuple[str, Getter], ...] = ()  # arguments in `map`, each with the function that reads its value
    copy: Callable[[Any], Any] = copy_value  # function that copies a value for the callable
    # True: the callable gets views, because it requests records, or `map` contains functions of the case
    views: bool = False
    shares: bool = False  # True: the callable gets the original values, because built-in evaluators change nothing
    # parameters that no field fills, each with the field whose name is similar
    misspelt: tuple[tuple[str, str], ...] = ()

    def arguments(self, case: Case) -> tuple[Arguments, list[str]]:
        """Return the arguments, and the names of required ones that are missing."""
        arguments: Arguments = dict(self.prepare(case)) if self.prepare else {}
        missing = []
        if self.views:
            case = make_case_view(case)
        for name, get in self.required:
            if arguments and name in arguments:
                value = arguments[name]
            elif type(value := get(case)) not in IMMUTABLE_TYPES:
                value = self.copy(value)
            if value is None and not _is_null_answer(get, case):
                missing.append(name)
            else:
                arguments[name] = value
        for name, get in self.optional:
            if name not in arguments and ((value := get(case)) is not None or _is_null_answer(get, case)):
                arguments[name] = value if type(value) in IMMUTABLE_TYPES else self.copy(value)
        return arguments, missing

    def pop_positional(self, arguments: Arguments) -> Sequence[Any]:
        """Remove the arguments of positional-only parameters from `arguments`, and return them in order."""
        if not self.positional:
            return ()
        return [arguments.pop(name) for name in self.positional if name in arguments]

    def mapped(self, case: Case) -> Case:
        """Return the case with fields replaced as `map` and `prepare_data` specify, for callables that receive whole
        cases.
        """
        case = case if self.shares else make_case_view(case)
        prepared = self.prepare(case) if self.prepare else {}
        arguments = {**{name: get(case) for name, get in self.paths}, **prepared}
        fields = {name: value for name, value in arguments.items() if name in Case.__dataclass_fields__}
        return replace(case, **fields) if fields else case

    def columns(self, cases: Iterable[Case]) -> CaseColumns:
        """Return the arguments of a set-level callable. Cases are read one by one and not kept."""
        columns: Arguments = {name: [] for name, _ in (*self.required, *self.optional)}
        complete = incomplete = 0
        missing_fields: set[str] = set()
        trace_ids: list[str] = []
        for case in cases:
            arguments, missing = self.arguments(case)
            if missing:
                incomplete += 1
                missing_fields.update(missing)
                continue
            complete += 1
            if complete <= MAX_CASE_SCORES:
                trace_ids.append(case.trace.trace_id if case.trace else "")
            for name, values in columns.items():
                values.append(arguments.get(name))
        absent = [name for name, _ in self.optional if all(value is None for value in columns[name])]
        return CaseColumns(
            arguments={name: columns[name] for name in columns if name not in absent},
            complete=complete,
            incomplete=incomplete,
            missing=sorted(missing_fields),
            trace_ids=trace_ids,
        )


def bind(
    function: Callable[..., Any],
    *,
    where: Mapping[str, str | Callable[[Case], Any]] | None = None,
    prepare_data: Callable[..., Mapping[str, Any]] | None = None,
    name: str = "",
    shares: bool = False,
    native: bool = False,
) -> Binding:
    """Compile a binding. `where` maps an argument to a path ("outputs.answer") or to a function of the case.

    With `shares`, the arguments are not copied, because neither the callable nor a function in `where` changes them.
    With `native`, outputs are passed as models or dataclasses where annotations ask for them (see `NativeOutputs`).

    Raises `BindingError` if a parameter without a default is not a field of a case and is not mapped.
    """
    paths = {argument: _compile_path(argument, path) for argument, path in (where or {}).items()}
    required: list[tuple[str, Getter]] = []
    optional: list[tuple[str, Getter]] = []
    positional: list[str] = []
    misspelt: list[tuple[str, str]] = []
    for parameter in _signature_parameters(function):
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            named = {known for known, _ in (*required, *optional)}
            getters = {**{field: get for field, get in FIELDS.items() if field != "case"}, **paths}
            optional += [(field, get) for field, get in getters.items() if field not in named]
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
        getter = paths.get(parameter.name) or FIELDS.get(PLURALS.get(parameter.name, parameter.name))
        if native and parameter.annotation is not parameter.empty and _is_whole_outputs(getter):
            getter = make_native_getter(function, parameter.name) or getter
        if parameter.default is not parameter.empty:
            if getter is not None:
                optional.append((parameter.name, getter))
            elif not shares and prepare_data is None and (field := closest_field(parameter.name)):
                misspelt.append((parameter.name, field))
        elif getter is not None:
            required.append((parameter.name, getter))
        elif prepare_data is not None:
            required.append((parameter.name, lambda case: None))
        else:
            raise _make_unknown_parameter_error(name or getattr(function, "__name__", repr(function)), parameter.name)
    _check_map(function, paths)
    prepare = _compile_prepare(prepare_data, {name for name, _ in (*required, *optional)})
    requested = {PLURALS.get(name, name) for name, _ in (*required, *optional)}
    views = not shares and (not requested.isdisjoint(_RECORD_FIELDS) or any(map(callable, (where or {}).values())))
    # a callable that requires both `run` and `example` gets `example` in LangSmith's form, with the reference in
    # `example.outputs`
    required_fields = {PLURALS.get(name, name) for name, _ in required}
    if "example" in required_fields and not required_fields.isdisjoint({"run", "root_run"}):
        required = [(name, make_langsmith_example if get is FIELDS["example"] else get) for name, get in required]
    return Binding(
        required=tuple(required),
        optional=tuple(optional),
        positional=tuple(positional),
        prepare=prepare,
        paths=tuple(paths.items()),
        copy=(lambda value: value) if shares or views else copy_value,
        views=views,
        shares=shares,
        misspelt=tuple(misspelt),
    )


def closest_field(name: str) -> str | None:
    """Return the field of a case that the user probably means by a name: another product's name, or a misspelling. None
    if no field is close.
    """
    if name in SYNONYMS:
        return SYNONYMS[name]
    from difflib import get_close_matches  # imported here because it takes 6 ms

    return next(
        iter(get_close_matches(name, [field for field in FIELDS if field != "case"], 1, _SIMILARITY_CUTOFF)), None
    )


def _check_map(function: Callable[..., Any], paths: Mapping[str, Getter]) -> None:
    """Raise `BindingError` for unknown names in a map.

    Fields of a case are allowed even if the evaluator does not use them, because users share one map between
    evaluators.
    """
    parameters = _signature_parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = {parameter.name for parameter in parameters}
    if unknown := [name for name in paths if name not in names and name not in FIELDS]:
        raise BindingError(f"map: the evaluator has no argument {unknown[0]!r}; it has {', '.join(sorted(names))}")


def get_case_field(case: Case, name: str) -> Any:
    """Return the value of a field of a case. Return None if the case lacks it, or if no case has a field of this
    name.
    """
    return FIELDS[name](case) if name in FIELDS else None


def is_set_level(function: Callable[..., Any]) -> bool:
    """Return whether a callable asks for all cases at once: `cases`, or LangSmith's `runs` and `examples`."""
    return any(parameter.name in PLURALS for parameter in _signature_parameters(function))


def read_call_fields(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the parameters of a class's `__call__`. Return the fields of a case that it requires, and the optional
    ones.
    """
    call = list(inspect.signature(kind.__call__).parameters.values())[1:]  # without self
    fields = [parameter for parameter in call if parameter.name in FIELDS and parameter.name != "case"]
    needs = tuple(parameter.name for parameter in fields if parameter.default is parameter.empty)
    return needs, tuple(parameter.name for parameter in fields if parameter.default is not parameter.empty)


def _signature_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BindingError(f"cannot read the parameters of {function!r}: wrap it in a function ({error})") from error


def _compile_prepare(
    prepare_data: Callable[..., Mapping[str, Any]] | None, requested: Collection[str]
) -> Callable[[Case], Mapping[str, Any]] | None:
    """Return a function that prepares the arguments of a case, or None.

    LangSmith's `prediction`, `reference` and `input` become fields of a case. Fields that the callable does not ask
    for are left out.
    """
    if prepare_data is None:
        return None
    names = {name: field if field in requested else "" for name, field in SYNONYMS.items() if name not in requested}
    binding = bind(prepare_data, name="prepare_data")

    def prepare(case: Case) -> Mapping[str, Any]:
        arguments, missing = binding.arguments(case)
        if missing:
            return {}
        prepared = prepare_data(*[arguments.pop(name) for name in binding.positional], **arguments)
        return {names.get(name, name): value for name, value in prepared.items() if names.get(name, name) != ""}

    return prepare


def _compile_path(argument: str, path: str | Callable[[Case], Any]) -> Getter:
    if callable(path):
        return path
    first, *steps = path.split(".")
    if first not in FIELDS:
        if argument not in FIELDS:
            raise BindingError(f"map: the path {path!r} must begin with one of: {', '.join(FIELDS)}")
        first, steps = argument, [first, *steps]
    if first == "outputs":
        return _OutputsPath(steps)
    field = FIELDS[first]
    return lambda case: _resolve_path(field(case), steps)


@dataclass(frozen=True, slots=True)
class _OutputsPath:
    """Path into outputs. If the path exists and ends at None, that None is the task's answer and not a missing
    value.
    """

    steps: list[str]

    def __call__(self, case: Case) -> Any:
        return _resolve_path(case.outputs, self.steps)

    def is_none(self, case: Case) -> bool:
        """Return whether the path exists in the outputs and ends at None."""
        if case.outputs is None:
            return has_null_output(case)
        *parents, last = self.steps
        parent = _resolve_path(case.outputs, parents)
        return isinstance(parent, Mapping) and last in parent and parent[last] is None


def _is_null_answer(get: Getter, case: Case) -> bool:
    """Return whether the None from a getter is an answer, rather than a missing value."""
    if isinstance(get, _OutputsPath):
        return get.is_none(case)
    if isinstance(get, NativeOutputs):
        return get.accepts_none and has_null_output(case)
    return get is _outputs and has_null_output(case)


def _is_whole_outputs(get: Getter | None) -> bool:
    return get is _outputs or (isinstance(get, _OutputsPath) and not get.steps)


def _resolve_path(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list | tuple) and step.lstrip("-").isdigit():
            value = value[int(step)] if -len(value) <= int(step) < len(value) else None
        else:
            value = getattr(value, step, None)
        if value is None:
            return None
    return value


def _make_unknown_parameter_error(name: str, parameter: str) -> BindingError:
    known = ", ".join(known for known in FIELDS if known != "case")
    close = closest_field(parameter)
    hint = f" (did you mean {close!r}?)" if close else ""
    return BindingError(
        f"evaluator {name!r} has the parameter {parameter!r}, which is not a field of a case ({known}){hint}; "
        f"give it a default, or map it: map={{{parameter!r}: 'outputs.{parameter}'}}"
    )


def check_parameter_types(id: str, kind: type, parameters: Mapping[str, Any]) -> None:
    """Check that parameters match the annotations of the class. Raises `ValueError`."""
    hints = _get_type_hints(kind)
    for name, value in parameters.items():
        if not is_of_type(value, hints[name]):
            raise ValueError(f"evaluator {id!r}: {name} must be {_describe_type(hints[name])}, got {value!r:.200}")


def decode_infinite_parameters(kind: type, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with the texts "Infinity" and "-Infinity" converted to numbers, where the class expects a
    number.
    """
    hints, decoded = _get_type_hints(kind), dict(parameters)
    for name, value in parameters.items():
        number, hint = decode_infinity(value), hints.get(name, Any)
        if number is not value and not is_of_type(value, hint) and is_of_type(number, hint):
            decoded[name] = number
    return decoded


def is_of_type(value: Any, hint: Any) -> bool:
    """Return whether a value matches an annotation. A string is not accepted as a sequence of strings, nor a bool as a
    number.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(is_of_type(value, choice) for choice in inner)
    if origin is Literal:
        return value in inner
    if origin in (Sequence, tuple):
        return isinstance(value, list | tuple) and all(is_of_type(member, inner[0]) for member in value)
    if origin is Callable:
        return callable(value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return hint is Any or isinstance(value, origin or hint)


@cache
def _get_type_hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _describe_type(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_describe_type, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Sequence, tuple):
        item = _describe_type(inner[0])
        return "a list of " + {"a string": "strings", "a dict": "dicts"}.get(item, item)
    simple = {str: "a string", int: "an integer", float: "a number", bool: "True or False", types.NoneType: "None"}
    return simple.get(hint, "a function" if origin is Callable else "a dict" if origin is Mapping else str(hint))
