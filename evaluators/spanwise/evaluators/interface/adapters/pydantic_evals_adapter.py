"""Adapter for pydantic-evals evaluators."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from spanwise.evaluators.interface.adapters.adapted_metric import (
    AdaptedMetric,
    CaseValues,
    get_library_version,
    is_derived_from,
)

# arguments that some evaluators of pydantic-evals require besides the outputs
_MORE_NEEDS: Mapping[str, tuple[str, ...]] = {"EqualsExpected": ("reference_outputs",), "MaxDuration": ("trace",)}


def adapt_pydantic_evaluator(evaluator: Any) -> AdaptedMetric | None:
    """Return the adapter of an evaluator, or None for other objects.

    If the evaluator returns a mapping, each of its results becomes feedback under its own key.
    """
    if not is_derived_from(evaluator, "pydantic_evals", "Evaluator"):
        return None
    needs = ("outputs", *_MORE_NEEDS.get(type(evaluator).__name__, ()))

    async def ask(values: CaseValues) -> Any:
        output = await evaluator.evaluate_async(_make_context(values))
        if isinstance(output, Mapping):
            return [{"key": str(name), **_read_value(value)} for name, value in output.items()]
        return _read_value(output)

    return AdaptedMetric(
        name=evaluator.get_default_evaluation_name(),
        ask=ask,
        needs=needs,
        uses=("inputs", "reference_outputs", "metadata", "trace", "example"),
        range=None,
        source="model" if is_derived_from(evaluator, "pydantic_evals", "LLMJudge", "GEval") else "code",
        version=evaluator.get_evaluator_version() or get_library_version("pydantic-evals"),
        versioned=bool(evaluator.get_evaluator_version()),
    )


def _make_context(values: CaseValues) -> Any:
    trace, example = values.get("trace"), values.get("example")
    no_tree = import_module("pydantic_evals.otel._errors").SpanTreeRecordingError
    return import_module("pydantic_evals.evaluators").EvaluatorContext(
        name=None if example is None else example.id,
        inputs=values.get("inputs"),
        metadata=dict(values.get("metadata") or {}) or None,
        expected_output=values.get("reference_outputs"),
        output=values.get("outputs"),
        duration=float("nan") if trace is None else trace.root.duration_ns / 1e9,
        _span_tree=no_tree(
            "Spanwise provides no span tree: write an evaluator function with the parameter `trace` instead"
        ),
        attributes={},
        metrics={},
    )


def _read_value(output: Any) -> dict[str, Any]:
    """Return a result dict for a value, with or without a reason. A text becomes a label."""
    if hasattr(output, "reason") and hasattr(output, "value"):
        return {**_read_value(output.value), "comment": output.reason}
    return {"value": output}
