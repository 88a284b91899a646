"""pydantic-evals' evaluators: `LLMJudge(rubric=…)`, `EqualsExpected()`, and people's own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from spanwise.evaluators.protocol.adapters._common import Adapted, Values, derives, version_of

_REFERENCE = frozenset({"EqualsExpected"})  # of theirs, those that can do nothing without
_TRACE = frozenset({"MaxDuration"})


def adapted(evaluator: Any) -> Adapted | None:
    """An evaluator; of a mapping of results each is feedback under its own key."""
    if not derives(evaluator, "pydantic_evals", "Evaluator"):
        return None
    kind = type(evaluator).__name__
    needs = ["outputs", *(["reference_outputs"] if kind in _REFERENCE else []), *(["trace"] if kind in _TRACE else [])]

    async def ask(values: Values) -> Any:
        return _read(await evaluator.evaluate_async(_context(values)))

    return Adapted(
        name=evaluator.get_default_evaluation_name(),
        ask=ask,
        needs=tuple(needs),
        uses=("inputs", "reference_outputs", "metadata", "trace", "example"),
        range=None,
        source="model" if derives(evaluator, "pydantic_evals", "LLMJudge", "GEval") else "code",
        version=evaluator.get_evaluator_version() or version_of("pydantic-evals"),
        versioned=bool(evaluator.get_evaluator_version()),
    )


def _context(values: Values) -> Any:
    trace, example = values.get("trace"), values.get("example")
    no_tree = import_module("pydantic_evals.otel._errors").SpanTreeRecordingError
    return import_module("pydantic_evals.evaluators").EvaluatorContext(
        name=None if example is None else example.id,
        inputs=values.get("inputs"),
        metadata=dict(values.get("metadata") or {}) or None,
        expected_output=values.get("reference_outputs"),
        output=values.get("outputs"),
        duration=float("nan") if trace is None else trace.root.duration_ns / 1e9,
        _span_tree=no_tree("the runs of a trace are no tree of spans here: ask for `trace` in a function of your own"),
        attributes={},
        metrics={},
    )


def _read(output: Any) -> Any:
    if isinstance(output, Mapping):
        return [{"key": str(name), **_one(value)} for name, value in output.items()]
    return _one(output)


def _one(output: Any) -> dict[str, Any]:
    """A value, or a value with its reason: a text is a label."""
    if hasattr(output, "reason") and hasattr(output, "value"):
        return {**_one(output.value), "comment": output.reason}
    return {"value": output}
