"""ragas' metrics: those with samples (`ragas.metrics`), and those with arguments (`ragas.metrics.collections`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from spanwise.evaluators.protocol._messages import messages
from spanwise.evaluators.protocol._outcomes import Skip
from spanwise.evaluators.protocol.adapters._common import Adapted, Values, contents, derives, ids, text, version_of

_COLUMNS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {  # of ragas → the field of a case, and how it is read
    "user_input": ("inputs", text),
    "response": ("outputs", text),
    "reference": ("reference_outputs", text),
    "retrieved_contexts": ("documents", contents),
    "reference_contexts": ("expected_documents", contents),
    "retrieved_context_ids": ("documents", ids),
    "reference_context_ids": ("expected_documents", ids),
}
_MODELS = ("llm", "embeddings")


def adapted(metric: Any) -> Adapted | None:
    """A metric of single turns or of conversations. Raises `ValueError` for one that must be handed its model."""
    if derives(metric, "ragas", "SimpleBaseMetric"):
        return _with_arguments(metric)
    if not derives(metric, "ragas", "Metric"):
        return None
    return _of_turns(metric) if not hasattr(metric, "single_turn_ascore") else _with_sample(metric)


def _with_sample(metric: Any) -> Adapted:
    required = sorted(metric.required_columns.get("SINGLE_TURN", ()))
    taken = metric.get_required_columns(with_optional=True).get("SINGLE_TURN", set())

    async def ask(values: Values) -> Any:
        sample = import_module("ragas.dataset_schema").SingleTurnSample(**_columns(taken, values))
        return await metric.single_turn_ascore(sample)

    return _made(metric, ask, required, tuple(taken))


def _of_turns(metric: Any) -> Adapted:
    async def ask(values: Values) -> Any:
        sample = import_module("ragas.dataset_schema").MultiTurnSample
        reference = text(values.get("reference_outputs"))
        return await metric.multi_turn_ascore(sample(user_input=_turns(values), reference=reference))

    return _made(metric, ask, [], ("user_input", "response", "reference"), ("history",))


def _with_arguments(metric: Any) -> Adapted:
    parameters = inspect.signature(getattr(metric, "_func", None) or metric.ascore).parameters
    asked = {name: given for name, given in parameters.items() if given.kind is not given.VAR_KEYWORD}
    required = [name for name, given in asked.items() if given.default is given.empty]
    unknown = [name for name in required if name not in _COLUMNS]
    if unknown or not asked:
        told = f"asks for {', '.join(unknown)}" if unknown else "is handed its model when it is asked"
        raise ValueError(f"ragas' {metric.name!r} {told}: put it into a function that hands it {', '.join(_COLUMNS)}")

    async def ask(values: Values) -> Any:
        return _read(await metric.ascore(**_columns(asked, values)))

    return _made(metric, ask, required, tuple(asked))


def _made(
    metric: Any, ask: Callable[[Values], Any], required: list[str], taken: tuple[str, ...], more: tuple[str, ...] = ()
) -> Adapted:
    fields = tuple(dict.fromkeys(_COLUMNS[name][0] for name in required if name in _COLUMNS))
    used = dict.fromkeys(_COLUMNS[name][0] for name in taken if name in _COLUMNS)
    allowed = getattr(metric, "allowed_values", None)
    return Adapted(
        name=str(metric.name),
        ask=ask,
        needs=fields,
        uses=(*used, *more),
        range=(float(allowed[0]), float(allowed[1])) if isinstance(allowed, tuple) and len(allowed) == 2 else None,
        source="model" if any(getattr(metric, name, None) is not None for name in _MODELS) else "code",
        version=version_of("ragas"),
    )


def _columns(names: Any, values: Values) -> dict[str, Any]:
    known = ((name, *_COLUMNS[name]) for name in names if name in _COLUMNS)
    given = {name: read(values.get(field)) for name, field, read in known}
    return {name: value for name, value in given.items() if value is not None}


def _turns(values: Values) -> list[Any]:
    kinds = import_module("ragas.messages")
    spoken = messages(values.get("history")) or messages(values.get("inputs"))
    if not spoken and (asked := text(values.get("inputs"))) is not None:
        spoken = [{"role": "user", "content": asked}]
    answer = text(values.get("outputs"))
    if answer is not None and (not spoken or spoken[-1] != {"role": "assistant", "content": answer}):
        spoken = [*spoken, {"role": "assistant", "content": answer}]
    by_role = {"user": kinds.HumanMessage, "assistant": kinds.AIMessage}
    turns = [
        by_role[turn["role"]](content=text(turn.get("content")) or "") for turn in spoken if turn["role"] in by_role
    ]
    if not turns:
        raise Skip("needs history; the case has none")
    return turns


def _read(result: Any) -> dict[str, Any]:
    """A `MetricResult`; with a value of None it says in its reason what went wrong."""
    if result.value is None:
        return {"error": result.reason or "ragas gave no value"}
    return {"score": result.value, "comment": result.reason}
