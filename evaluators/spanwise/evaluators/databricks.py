"""Databricks' agent evaluation under its own names: choice of judges, the experiment, metrics and tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from spanwise.collector.records import Example, Trace
from spanwise.collector.statistics import databricks_table
from spanwise.evaluators import datasets, experiments
from spanwise.evaluators.experiments import EvaluateOptions
from spanwise.evaluators.interface import Evaluator, as_evaluator, get_evaluator
from spanwise.evaluators.scoring import make_case
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    import pandas

__all__ = [
    "AgentEvaluation",
    "evaluate",
]


# Agent evaluation: choice of judges for an evaluation set, the experiment, metrics and tables.

MODEL_TYPE = "databricks-agent"
EVAL_RESULTS = "eval_results"  # name of the table with one row per request


@dataclass(frozen=True, slots=True)
class _BuiltinMetric:
    """Metric of Databricks: the evaluator that gives it, and the columns of an evaluation set that it needs.

    A model returns `response`, and may retrieve `retrieved_context`.
    """

    evaluator: str
    columns: tuple[str, ...]


BUILTIN_METRICS: Mapping[str, _BuiltinMetric] = {
    "correctness": _BuiltinMetric("correctness", ("request", "response", "expected_response")),
    "relevance_to_query": _BuiltinMetric("relevance_to_query", ("request", "response")),
    "groundedness": _BuiltinMetric("groundedness_judge", ("request", "response", "retrieved_context")),
    "safety": _BuiltinMetric("safety", ("request", "response")),
    "guideline_adherence": _BuiltinMetric("guideline_adherence", ("request", "response", "guidelines")),
    "global_guideline_adherence": _BuiltinMetric(
        "global_guideline_adherence", ("request", "response", "global_guidelines")
    ),
    "chunk_relevance": _BuiltinMetric("chunk_relevance", ("request", "retrieved_context")),
    "document_recall": _BuiltinMetric("document_recall", ("retrieved_context", "expected_retrieved_context")),
    "context_sufficiency": _BuiltinMetric("context_sufficiency", ("request", "retrieved_context", "expected_response")),
}
MODEL_COLUMNS = ("response", "retrieved_context")  # columns that a model's runs may supply
REQUEST_COLUMNS = frozenset({"request", "inputs", "input", "messages"})
CONFIG_NAMES = ("metrics", "global_guidelines")


class AgentEvaluation(experiments.Experiment):
    """Experiment whose results have Databricks' names."""

    _chosen: frozenset[str] = frozenset()

    @classmethod
    def from_experiment(cls, experiment: experiments.Experiment, chosen: Iterable[str]) -> Self:
        """Return the experiment as an agent evaluation. `chosen` are the metrics that the caller named."""
        evaluation = cls(
            experiment.record,
            experiment._store,
            experiment._tally,
            unstored=experiment.unstored,
            examples=experiment._examples,
        )
        evaluation._chosen = frozenset(chosen)
        return evaluation

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return the aggregates by Databricks' names, such as `response/llm_judged/correctness/rating/percentage`.

        An aggregate is None if the judge gave no rating.
        """
        results = self._results[0]
        return {name: value for name, value in results.items() if not isinstance(value, list)}

    @property
    def tables(self) -> dict[str, pandas.DataFrame]:
        """Return the table `eval_results`: one row per request, with the columns of the evaluation set and one column
        per field of a judge, such as `response/llm_judged/correctness/rating`.
        """
        import pandas

        results, rows = self._results
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        columns |= {name: values for name, values in results.items() if isinstance(values, list)}
        return {EVAL_RESULTS: pandas.DataFrame({name: _make_series(values) for name, values in columns.items()})}

    @cached_property
    def _results(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the results by Databricks' names, and the evaluation set with the answers. Reads all rows."""
        feedback, rows = [], []
        for row in self.rows():
            case = make_case(row.trace, row.known_example)
            shown = Example(
                id=row.example_id,
                inputs=row.inputs,
                outputs=row.outputs,
                reference_outputs=row.reference_outputs,
                documents=case.documents,
                expected_documents=case.expected_documents,
                guidelines=case.guidelines,
            )
            rows.append(datasets.to_databricks(shown))
            feedback.append(row.trace.feedback)
        results = databricks_table(feedback)
        given = {_get_judge_name(name) for name, value in results.items() if _is_result(value)} | self._chosen
        return {name: value for name, value in results.items() if _get_judge_name(name) in given}, rows


def evaluate(
    *,
    data: Any,
    model: Callable[..., Any] | None = None,
    model_type: str = MODEL_TYPE,
    evaluator_config: Mapping[str, Any] | None = None,
    extra_metrics: Iterable[Any] = (),
    judge: Any = None,
    **options: Unpack[EvaluateOptions],
) -> AgentEvaluation:
    """Evaluate an agent with Databricks' judges, and return the experiment with `metrics` and `tables`.

    - `data` is a DataFrame or a list of dicts with the columns `request`, `response`, `expected_response`,
      `retrieved_context`, `expected_retrieved_context`, `guidelines`, `request_id` and `trace` (a `Trace`).
    - `model` is called with each request: the text, or the whole dict. Without a model, the column `response` or
      `trace` holds the answers.
    - `evaluator_config={"databricks-agent": {"metrics": […], "global_guidelines": […]}}` names the metrics, and the
      guidelines that apply to all requests. By default, all metrics are computed for which the data suffice. A metric
      in the list whose columns are missing is an error.
    - `extra_metrics` are further evaluators, such as `get_evaluator("custom_judge", …)`.
    - `judge` is the judge of all metrics; None is the judge of the environment.
    - `options` are those of `spanwise.evaluators.evaluate`.

    Raises `ValueError` for an unknown model type, setting or metric, and for data without the required columns.
    """
    if model_type != MODEL_TYPE:
        raise ValueError(f"unknown model_type {model_type!r}; expected {MODEL_TYPE!r}")
    config = _read_config(evaluator_config)
    guidelines = config.get("global_guidelines")
    examples = _read_examples(data)
    columns = _find_columns(examples, has_model=model is not None, has_guidelines=bool(guidelines))
    further = [as_evaluator(each) for each in extra_metrics]
    names = _choose_metrics(config.get("metrics"), columns)
    evaluators = [*_make_evaluators(names, columns, guidelines, judge), *further]
    if not evaluators:
        raise ValueError(f"no metric can be computed from the columns of the data: {', '.join(sorted(columns))}")
    task = None if model is None else _make_task(model, examples)
    experiment = experiments.evaluate(examples, task, evaluators, **options)
    chosen = [*(config.get("metrics") or ()), *(each.key for each in further)]
    return AgentEvaluation.from_experiment(experiment, chosen)


def _read_config(evaluator_config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings of the agent evaluation. Raises `ValueError` for unknown ones."""
    evaluator_config = evaluator_config or {}
    _check_names("evaluator_config", evaluator_config, (MODEL_TYPE,))
    config = evaluator_config.get(MODEL_TYPE) or {}
    _check_names(f"evaluator_config[{MODEL_TYPE!r}]", config, CONFIG_NAMES)
    metrics = config.get("metrics")
    if metrics is not None:
        if isinstance(metrics, str) or not isinstance(metrics, Sequence):
            raise ValueError(f"metrics must be a list of names, got {metrics!r:.200}")
        _check_names("metrics", metrics, tuple(BUILTIN_METRICS))
    return config


def _check_names(what: str, given: Any, known: Sequence[str]) -> None:
    if not isinstance(given, Mapping | Sequence):
        raise ValueError(f"{what} must be a dict with {', '.join(map(repr, known))}, got {given!r:.200}")
    for name in given:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise ValueError(f"unknown name {name!r} in {what}{hint}; expected one of: {', '.join(known)}")


def _read_examples(data: Any) -> list[Example]:
    """Return the examples of a DataFrame or a list of dicts. Without requests, their inputs are "".

    Raises `ValueError` for other data, and if only some rows have a request.
    """
    rows = data.to_dict("records") if hasattr(data, "to_dict") and hasattr(data, "columns") else data
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise ValueError(f"data must be a DataFrame or a list of dicts, got {data!r:.200}")
    merged: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"data must be a DataFrame or a list of dicts; row {number} is {row!r:.200}")
        merged.append(_merge_trace(row, number))
    if not merged:
        raise ValueError("data has no rows")
    absent = [number for number, row in enumerate(merged, 1) if not row.keys() & REQUEST_COLUMNS]
    if absent and len(absent) < len(merged):
        raise ValueError(f"row {absent[0]} of the data has no request")
    return datasets.read([{"request": "", **row} for row in merged] if absent else merged)


def _merge_trace(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a row in which request, response and retrieved context of its trace fill the missing columns."""
    known = {name: value for name, value in row.items() if not _is_missing(value)}
    trace = known.pop("trace", None)
    if trace is None:
        return known
    if not isinstance(trace, Trace):
        raise ValueError(
            f"the trace of row {number} must be a spanwise.collector.records.Trace, as a store returns it, "
            f"got {trace!r:.200}"
        )
    case = make_case(trace)
    recorded = {"request": case.inputs, "response": case.outputs, "retrieved_context": case.documents}
    return {**{name: value for name, value in recorded.items() if value is not None}, **known}


def _is_missing(value: Any) -> bool:
    """Return whether a value is None or one of pandas' missing values."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _find_columns(examples: Sequence[Example], *, has_model: bool, has_guidelines: bool) -> frozenset[str]:
    """Return the columns that at least one example has, or that the runs of the model may supply."""
    columns = {name for example in examples for name in datasets.to_databricks(example)}
    if all(example.inputs == "" for example in examples):
        columns.discard("request")
    columns |= set(MODEL_COLUMNS) if has_model else set()
    return frozenset(columns | ({"global_guidelines"} if has_guidelines else set()))


def _choose_metrics(metrics: Sequence[str] | None, columns: frozenset[str]) -> list[str]:
    """Return the metrics to compute. Raises `ValueError` if a metric of the list lacks a column."""
    missing = {
        name: [each for each in metric.columns if each not in columns] for name, metric in BUILTIN_METRICS.items()
    }
    if "global_guidelines" in columns:
        # the document's judge of guidelines reports both kinds of guidelines
        missing["guideline_adherence"] = [each for each in missing["guideline_adherence"] if each != "guidelines"]
    if metrics is None:
        return [name for name, absent in missing.items() if not absent]
    for name in metrics:
        if missing[name]:
            raise ValueError(f"the metric {name!r} needs {' and '.join(missing[name])}, which the data do not have")
    return list(dict.fromkeys(metrics))


def _make_evaluators(names: Sequence[str], columns: frozenset[str], guidelines: Any, judge: Any) -> list[Evaluator]:
    """Return the evaluators of the metrics. `guideline_adherence` gives both keys if there are guidelines of both kinds."""
    wanted = set(names)
    if "guideline_adherence" in wanted and guidelines:
        wanted.add("global_guideline_adherence")
    if "guidelines" not in columns:
        wanted.discard("guideline_adherence")
    if "guideline_adherence" in wanted:
        wanted.discard("global_guideline_adherence")
    made = []
    for name in (name for name in BUILTIN_METRICS if name in wanted):
        parameters: dict[str, Any] = {} if judge is None or name == "document_recall" else {"judge": judge}
        if name in ("guideline_adherence", "global_guideline_adherence") and guidelines:
            parameters["global_guidelines"] = guidelines
        made.append(get_evaluator(BUILTIN_METRICS[name].evaluator, **parameters))
    return made


def _make_task(model: Callable[..., Any], examples: Sequence[Example]) -> Callable[..., Any]:
    """Return a task that calls the model with the whole request. A model that gets texts is the task itself."""
    if not callable(model):
        raise ValueError(f"model must be a function of the request, got {model!r:.200}")
    if not any(isinstance(example.inputs, Mapping) for example in examples):
        return model
    call: Any
    if any(map(inspect.iscoroutinefunction, (model, getattr(model, "__call__", None)))):  # noqa: B004

        async def call(inputs: Any) -> Any:
            return await model(inputs)
    else:

        def call(inputs: Any) -> Any:
            return model(inputs)

    call = update_wrapper(call, model)
    call.__signature__ = inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    return cast(Callable[..., Any], call)


def _make_series(values: list[Any]) -> pandas.Series[Any]:
    """Return a column of floats, or of objects in which missing values stay None."""
    import pandas

    is_numeric = any(isinstance(value, float) for value in values)
    return pandas.Series(values, dtype=float if is_numeric else object)


def _get_judge_name(name: str) -> str:
    """Return the judge in a name such as `response/llm_judged/correctness/rating`."""
    return name.split("/")[2]


def _is_result(value: Any) -> bool:
    """Return whether a column has a value, or an aggregate is known."""
    return any(each is not None for each in value) if isinstance(value, list) else value is not None
