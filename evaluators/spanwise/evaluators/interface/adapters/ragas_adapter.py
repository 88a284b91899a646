"""Adapter for ragas metrics, for those that take a sample and those that take arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from spanwise.evaluators.interface.adapters.adapted_metric import (
    AdaptedMetric,
    CaseValues,
    get_library_version,
    is_derived_from,
    list_contents,
    list_document_ids,
    to_text,
)
from spanwise.evaluators.interface.outcomes import Skip
from spanwise.evaluators.interface.value_conversion import to_messages

# ragas column → field of a case, and the function that converts it
_COLUMNS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "user_input": ("inputs", to_text),
    "response": ("outputs", to_text),
    "reference": ("reference_outputs", to_text),
    "retrieved_contexts": ("documents", list_contents),
    "reference_contexts": ("expected_documents", list_contents),
    "retrieved_context_ids": ("documents", list_document_ids),
    "reference_context_ids": ("expected_documents", list_document_ids),
}
_MODEL_ATTRIBUTES = ("llm", "embeddings")


def adapt_ragas_metric(metric: Any) -> AdaptedMetric | None:
    """Return the adapter of a metric of single turns or conversations, or None for other objects.

    Raises `ValueError` for a metric that takes its model as an argument.
    """
    if is_derived_from(metric, "ragas", "SimpleBaseMetric"):
        return _adapt_argument_metric(metric)
    if not is_derived_from(metric, "ragas", "Metric"):
        return None
    adapt = _adapt_sample_metric if hasattr(metric, "single_turn_ascore") else _adapt_conversation_metric
    return adapt(metric)


def _adapt_sample_metric(metric: Any) -> AdaptedMetric:
    required = sorted(metric.required_columns.get("SINGLE_TURN", ()))
    columns = metric.get_required_columns(with_optional=True).get("SINGLE_TURN", set())

    async def ask(values: CaseValues) -> Any:
        sample = import_module("ragas.dataset_schema").SingleTurnSample(**_select_columns(columns, values))
        return await metric.single_turn_ascore(sample)

    return _make_adapted(metric, ask, required, tuple(columns))


def _adapt_conversation_metric(metric: Any) -> AdaptedMetric:
    async def ask(values: CaseValues) -> Any:
        sample = import_module("ragas.dataset_schema").MultiTurnSample
        reference = to_text(values.get("reference_outputs"))
        return await metric.multi_turn_ascore(sample(user_input=_make_turns(values), reference=reference))

    return _make_adapted(metric, ask, [], ("user_input", "response", "reference"), ("history",))


def _adapt_argument_metric(metric: Any) -> AdaptedMetric:
    parameters = inspect.signature(getattr(metric, "_func", None) or metric.ascore).parameters
    named = {name: given for name, given in parameters.items() if given.kind is not given.VAR_KEYWORD}
    required = [name for name, given in named.items() if given.default is given.empty]
    unknown = [name for name in required if name not in _COLUMNS]
    if unknown or not named:
        problem = f"requires {', '.join(unknown)}" if unknown else "takes its model as an argument"
        raise ValueError(
            f"ragas' {metric.name!r} {problem}: call it in an evaluator function of your own that passes {', '.join(_COLUMNS)}"
        )

    async def ask(values: CaseValues) -> Any:
        result = await metric.ascore(**_select_columns(named, values))
        if result.value is None:  # its reason is an error message
            return {"error": result.reason or "ragas gave no value"}
        return {"score": result.value, "comment": result.reason}

    return _make_adapted(metric, ask, required, tuple(named))


def _make_adapted(
    metric: Any,
    ask: Callable[[CaseValues], Any],
    required: list[str],
    columns: tuple[str, ...],
    more: tuple[str, ...] = (),
) -> AdaptedMetric:
    fields = tuple(dict.fromkeys(_COLUMNS[name][0] for name in required if name in _COLUMNS))
    used = dict.fromkeys(_COLUMNS[name][0] for name in columns if name in _COLUMNS)
    allowed = getattr(metric, "allowed_values", None)
    return AdaptedMetric(
        name=str(metric.name),
        ask=ask,
        needs=fields,
        uses=(*used, *more),
        range=(float(allowed[0]), float(allowed[1])) if isinstance(allowed, tuple) and len(allowed) == 2 else None,
        source="model" if any(getattr(metric, name, None) is not None for name in _MODEL_ATTRIBUTES) else "code",
        version=get_library_version("ragas"),
    )


def _select_columns(names: Any, values: CaseValues) -> dict[str, Any]:
    known = ((name, *_COLUMNS[name]) for name in names if name in _COLUMNS)
    given = {name: read(values.get(field)) for name, field, read in known}
    return {name: value for name, value in given.items() if value is not None}


def _make_turns(values: CaseValues) -> list[Any]:
    kinds = import_module("ragas.messages")
    messages = to_messages(values.get("history")) or to_messages(values.get("inputs"))
    if not messages and (question := to_text(values.get("inputs"))) is not None:
        messages = [{"role": "user", "content": question}]
    answer = to_text(values.get("outputs"))
    if answer is not None and (not messages or messages[-1] != {"role": "assistant", "content": answer}):
        messages = [*messages, {"role": "assistant", "content": answer}]
    by_role = {"user": kinds.HumanMessage, "assistant": kinds.AIMessage}
    turns = [
        by_role[turn["role"]](content=to_text(turn.get("content")) or "")
        for turn in messages
        if turn["role"] in by_role
    ]
    if not turns:
        raise Skip("needs history; the case has none")
    return turns
