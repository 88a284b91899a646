"""Adapter for deepeval metrics of single turns and conversations."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from spanwise.collector.records import Trace
from spanwise.evaluators.interface.adapters.adapted_metric import (
    AdaptedMetric,
    CaseValues,
    get_library_version,
    is_derived_from,
    list_contents,
    to_text,
)
from spanwise.evaluators.interface.outcomes import Skip
from spanwise.evaluators.interface.sync_bridge import run_in_thread
from spanwise.evaluators.interface.tool_calls import ToolCall, extract_tool_calls
from spanwise.evaluators.interface.value_conversion import to_messages

_NEEDS = {
    "input": "inputs",
    "actual_output": "outputs",
    "expected_output": "reference_outputs",
    "retrieval_context": "documents",
    "tools_called": "trace",
}
_USES = ("inputs", "outputs", "reference_outputs", "documents", "expected_documents", "trace", "metadata", "history")


def adapt_deepeval_metric(metric: Any) -> AdaptedMetric | None:
    """Return the adapter of a metric of single turns or conversations, or None for other objects.

    If the metric skips a case, the result is a skip. Raises `ValueError` for an arena metric, and for one that reads
    deepeval's own traces.
    """
    if is_derived_from(metric, "deepeval", "BaseArenaMetric"):
        raise ValueError(f"{type(metric).__name__} compares several answers and cannot score a single one")
    is_conversational = is_derived_from(metric, "deepeval", "BaseConversationalMetric")
    if not is_conversational and not is_derived_from(metric, "deepeval", "BaseMetric"):
        return None
    if getattr(metric, "requires_trace", False):
        raise ValueError(
            f"{type(metric).__name__} requires traces that deepeval recorded, which Spanwise does not have"
        )
    needs: tuple[str, ...] = ()
    if not is_conversational:
        declared = getattr(metric, "evaluation_params", None) or getattr(metric, "_required_params", None)
        names = [str(getattr(name, "value", name)) for name in declared] if isinstance(declared, list | tuple) else []
        needs = tuple(_NEEDS[name] for name in names if name in _NEEDS)
    make_case = _make_conversation if is_conversational else _make_test_case

    async def ask(values: CaseValues) -> Any:
        return await _call_metric(metric, make_case(values))

    return AdaptedMetric(
        name=str(metric.__name__),
        ask=ask,
        needs=needs,
        uses=_USES,
        threshold=metric.threshold if isinstance(metric.threshold, int | float) else None,
        range=None,
        higher_is_better=_higher_is_better(metric),
        source="code" if getattr(metric, "model", None) is None else "model",
        version=get_library_version("deepeval"),
    )


def _higher_is_better(metric: Any) -> bool:
    """Return whether higher scores are better for the metric. False if it accepts a score of 0 and not a score of 1."""
    probe = copy.copy(metric)
    try:
        probe.error = None
        probe.score = 0.0
        accepts_lowest = probe.is_successful()
        probe.score = 1.0
        return bool(probe.is_successful()) or not accepts_lowest
    except Exception:  # `is_successful` of a custom metric may need more than a score
        return True


def _make_test_case(values: CaseValues) -> Any:
    kinds = import_module("deepeval.test_case")
    trace: Trace | None = values.get("trace")
    calls = None if trace is None else extract_tool_calls(trace)  # None if they are unknown
    return kinds.LLMTestCase(
        input=to_text(values.get("inputs")) or "",
        actual_output=to_text(values.get("outputs")),
        expected_output=to_text(values.get("reference_outputs")),
        retrieval_context=list_contents(values.get("documents")),
        context=list_contents(values.get("expected_documents") or values.get("documents")),
        tools_called=None if calls is None else [_make_tool_call(call, kinds.ToolCall) for call in calls],
        metadata=dict(values.get("metadata") or {}) or None,
    )


def _make_tool_call(call: ToolCall, kind: Callable[..., Any]) -> Any:
    given = call.arguments[0]
    return kind(
        name=call.name,
        input_parameters=dict(given) if isinstance(given, Mapping) else {"input": given},
        output=call.run.outputs if call.run.kind == "tool" else None,
    )


def _make_conversation(values: CaseValues) -> Any:
    kinds = import_module("deepeval.test_case")
    messages = [message for message in to_messages(values.get("history")) if message["role"] in ("user", "assistant")]
    ends = (("user", to_text(values.get("inputs"))), ("assistant", to_text(values.get("outputs"))))
    last = [{"role": role, "content": content} for role, content in ends if content is not None]
    # do not add these messages if a session's history already ends with them
    if last and messages[-len(last) :] == last:
        last = []
    turns = [kinds.Turn(role=turn["role"], content=to_text(turn.get("content")) or "") for turn in (*messages, *last)]
    if not turns:
        raise Skip("needs history; the case has none")
    return kinds.ConversationalTestCase(turns=turns, expected_outcome=to_text(values.get("reference_outputs")))


async def _call_metric(metric: Any, case: Any) -> dict[str, Any]:
    """Call a copy of the metric. A metric stores its result in itself, and cases are scored concurrently."""
    copied = copy.copy(metric)
    try:
        if getattr(copied, "async_mode", True):
            await copied.a_measure(case, **_progress_options(copied.a_measure))
        else:
            await run_in_thread(lambda: copied.measure(case, **_progress_options(copied.measure)))
    except Exception as error:
        if type(error).__name__ == "MissingTestCaseParamsError":
            raise Skip(str(error)) from error
        raise
    return _read_result(copied)


def _progress_options(measure: Callable[..., Any]) -> dict[str, bool]:
    """Return options that disable the progress bar, if the method has them."""
    return {"_show_indicator": False} if "_show_indicator" in inspect.signature(measure).parameters else {}


def _read_result(metric: Any) -> dict[str, Any]:
    if metric.error is not None:
        return {"error": str(metric.error), "comment": metric.reason}
    if metric.skipped:
        raise Skip(metric.reason or "deepeval skipped it")
    names = ("success", "threshold", "score_breakdown", "evaluation_model", "evaluation_cost", "input_tokens")
    values = {name: getattr(metric, name, None) for name in (*names, "output_tokens")}
    metadata = {name: value for name, value in values.items() if value is not None}
    return {"score": metric.score, "comment": metric.reason, "metadata": metadata}
