"""Cases from stored traces, and by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from assay.collector.records import Case, Example, Trace
from assay.evaluators.protocol import documents_of

_FIELDS = {field.name for field in fields(Case)}


def case_of(trace: Trace, example: Example | None = None, **fields: Any) -> Case:
    """What evaluators see of a finished trace; `fields` take precedence over what the trace and the example hold."""
    root = trace.root
    known: dict[str, Any] = {
        "inputs": root.inputs,
        "outputs": root.outputs,
        "documents": trace.documents or None,
        "metadata": root.metadata,
    }
    return Case(trace=trace, example=example, **{**known, **_given(fields)})


def case_from(example: Example | None = None, **fields: Any) -> Case:
    """A case by hand: any field of `Case`; documents may be strings or dicts."""
    return Case(example=example, **_given(fields))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := sorted(set(given) - _FIELDS):
        raise TypeError(f"a case has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
    for name in ("documents", "expected_documents"):
        if name in given:
            given[name] = documents_of(given[name])
    return given
