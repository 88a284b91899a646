"""Native outputs: the objects that a task returned, for evaluators that ask for them by annotation.

An evaluator asks with the annotation of its outputs: a pydantic model, a dataclass, or a type that contains one, such as
`Answer | None` or `list[Answer]`. The outputs of stored runs are JSON, from which pydantic rebuilds the object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import cached_property, partial
from typing import Any, get_args, get_origin, get_type_hints

import orjson

from spanwise.collector.records import Case
from spanwise.evaluators.interface.outcomes import Skip

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
