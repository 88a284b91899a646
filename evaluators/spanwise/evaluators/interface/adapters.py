"""Adapters for metric objects of autoevals, deepeval, pydantic-evals and ragas."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

import orjson

from spanwise.collector.records import Document, Trace
from spanwise.evaluators.interface.case_views import ToolCall, extract_tool_calls
from spanwise.evaluators.interface.outcomes import Skip, to_messages, unwrap_single_value
from spanwise.evaluators.interface.sync_bridge import run_in_thread

__all__ = [
    "AdaptedMetric",
    "adapt_autoevals_scorer",
    "adapt_deepeval_metric",
    "adapt_pydantic_evaluator",
    "adapt_ragas_metric",
]


# Base of the adapters: calls a metric object as an evaluator function, and converts case values to text.

CaseValues = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedMetric:
    """Metric object wrapped as an evaluator function: the fields of a case that it needs and uses, and the call."""

    # Replaces module path and source text in the versions of rules, which stay the same if either changes. Changes
    # that affect results are part of the evaluator's own version.
    RULE_IDENTITY: ClassVar = ("assay.evaluators.protocol.adapters._common:Adapted", "49e433eb1e38")

    name: str
    ask: Callable[[CaseValues], Awaitable[Any]]
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    threshold: float | None = None
    range: tuple[float, float] | None = (0.0, 1.0)
    higher_is_better: bool = True
    source: Literal["code", "model"] = "code"
    version: str = "1"
    versioned: bool = False  # True: the metric's author set `version`; False: it is the library's version

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        needed = [inspect.Parameter(name, kind) for name in self.needs]
        used = [inspect.Parameter(name, kind, default=None) for name in self.uses if name not in self.needs]
        return inspect.Signature([*needed, *used])

    async def __call__(self, **values: Any) -> Any:
        return await self.ask(values)


def is_derived_from(metric: Any, library: str, *names: str) -> bool:
    """Return whether a metric's class derives from a class of the library with one of those names."""
    return any(kind.__name__ in names and kind.__module__.partition(".")[0] == library for kind in type(metric).__mro__)


def get_library_version(library: str) -> str:
    """Return the library's name with its installed version, for the evaluator's version: results may differ between
    releases.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return library


def to_text(value: Any) -> str | None:
    """Return a value as text: the only value of a dict, or the content of the last message. Other values become
    JSON.
    """
    value = unwrap_single_value(value)
    if value is None or isinstance(value, str):
        return value
    messages = to_messages(value)
    if messages and isinstance(messages[-1].get("content"), str):
        return str(messages[-1]["content"])
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def list_contents(documents: Iterable[Document] | None) -> list[str] | None:
    """Return the contents of documents."""
    return None if documents is None else [document.content for document in documents]


def list_document_ids(documents: Iterable[Document] | None) -> list[str] | None:
    """Return the ids of documents; None if none has one."""
    return [document.id for document in documents or () if document.id is not None] or None


# Adapter for autoevals scorers.

_FIELD_BY_ARGUMENT = {"output": "outputs", "expected": "reference_outputs", "input": "inputs", "context": "documents"}
_AUTOEVALS_NEEDS = {  # required arguments besides the output, by scorer; only the scorers' code reveals them
    "AnswerCorrectness": ("input", "expected"),
    "AnswerRelevancy": ("input", "context"),
    "AnswerSimilarity": ("expected",),
    "ContextEntityRecall": ("expected", "context"),
    "ContextPrecision": ("input", "expected", "context"),
    "ContextRecall": ("input", "expected", "context"),
    "ContextRelevancy": ("input", "context"),
    "EmbeddingSimilarity": ("expected",),
    "ExactMatch": ("expected",),
    "Faithfulness": ("input", "context"),
    "JSONDiff": ("expected",),
    "Levenshtein": ("expected",),
    "ListContains": ("expected",),
    "NumericDiff": ("expected",),
}
_VARIABLE = re.compile(r"\{\{[{&#^]?\s*(\w+)")
# scorers that accept any value, so that values are not converted to text
_UNCONVERTED = frozenset({"ExactMatch", "JSONDiff", "ListContains", "NumericDiff", "ValidJSON"})


def adapt_autoevals_scorer(scorer: Any) -> AdaptedMetric | None:
    """Return the adapter of a scorer, or None for other objects.

    A score of None becomes a skip, and the rationale becomes the comment.
    """
    if not is_derived_from(scorer, "autoevals", "Scorer"):
        return None
    # arguments that `Scorer.partial(…)` or a prompt has fixed
    given = {**getattr(type(scorer), "_partial_args", dict)(), **(getattr(scorer, "render_args", None) or {})}
    needed = [name for name in ("output", *_list_needed_arguments(scorer)) if name not in given]
    fields = tuple(field for name, field in _FIELD_BY_ARGUMENT.items() if name in needed)
    others = tuple(field for name, field in _FIELD_BY_ARGUMENT.items() if name not in given and field not in fields)

    unconverted = any(kind.__name__ in _UNCONVERTED for kind in type(scorer).__mro__)

    async def ask(values: CaseValues) -> Any:
        arguments = {}
        for name, field in _FIELD_BY_ARGUMENT.items():
            if (value := values.get(field)) is not None:
                converted = value if unconverted else to_text(value)
                arguments[name] = list_contents(value) if name == "context" else converted
        score = await _call_scorer(scorer, arguments)
        if score.error is not None:
            raise score.error
        metadata = dict(score.metadata or {})
        rationale = metadata.get("rationale")
        return {"score": score.score, "comment": None if rationale is None else str(rationale), "metadata": metadata}

    return AdaptedMetric(
        name=scorer._name(),
        ask=ask,
        needs=fields,
        uses=others,
        source="model" if is_derived_from(scorer, "autoevals", "OpenAIScorer") else "code",
        version=get_library_version("autoevals"),
    )


def _list_needed_arguments(scorer: Any) -> tuple[str, ...]:
    for kind in type(scorer).__mro__:
        if kind.__name__ in _AUTOEVALS_NEEDS:
            return _AUTOEVALS_NEEDS[kind.__name__]
    prompts = [message.get("content") for message in getattr(scorer, "messages", None) or ()]
    named = {name for prompt in prompts if isinstance(prompt, str) for name in _VARIABLE.findall(prompt)}
    return tuple(name for name in ("input", "expected", "context") if name in named)


async def _call_scorer(scorer: Any, arguments: dict[str, Any]) -> Any:
    """Call the scorer on a thread, because most scorers are synchronous. Await it instead if its client is
    asynchronous.
    """
    output = arguments.pop("output", None)
    # the scorer's own client, else the one set by `autoevals.init`
    shared = getattr(sys.modules.get("autoevals.oai"), "_client_var", None)
    client = getattr(scorer, "client", None) or (shared.get(None) if shared is not None else None)
    if type(getattr(client, "openai", client)).__name__.startswith("Async"):
        return await scorer.eval_async(output, **arguments)
    return await run_in_thread(lambda: scorer.eval(output, **arguments))


# Adapter for pydantic-evals evaluators.

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


# Adapter for deepeval metrics of single turns and conversations.

_DEEPEVAL_NEEDS = {
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
        needs = tuple(_DEEPEVAL_NEEDS[name] for name in names if name in _DEEPEVAL_NEEDS)
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


# Adapter for ragas metrics, for those that take a sample and those that take arguments.

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
