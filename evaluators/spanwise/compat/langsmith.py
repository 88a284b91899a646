"""LangSmith's `evaluate` and `aevaluate`, with results in a Spanwise store.

    from spanwise.compat.langsmith import evaluate  # instead of: from langsmith import evaluate

Targets, datasets, evaluators and summary evaluators work as in LangSmith. Runs and examples are plain objects with
LangSmith's attributes; the package `langsmith` is not needed.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from spanwise.collector import default_location
from spanwise.collector.records import JSON, Case, Feedback, Run
from spanwise.collector.records import Example as StoredExample
from spanwise.evaluators import Experiment, datasets
from spanwise.evaluators import aevaluate as evaluate_async
from spanwise.evaluators import evaluate as evaluate_sync
from spanwise.evaluators.experiments import Row
from spanwise.evaluators.interface import (
    Evaluator,
    StoreLocation,
    as_evaluator,
    evaluator,
    open_store_location,
    to_plain,
)

if TYPE_CHECKING:
    import pandas

__all__ = ["ExperimentResults", "aevaluate", "evaluate"]

_ARGUMENTS = ("run", "example", "inputs", "outputs", "reference_outputs", "attachments")
_SUMMARY_ARGUMENTS = ("runs", "examples", "inputs", "outputs", "reference_outputs")
_TARGET_ARGUMENTS = ("inputs", "attachments", "metadata")
_UNLIMITED = 100  # concurrency for max_concurrency=None
_WITHOUT_EFFECT = {
    "client": "use store=… for the place of the results",
    "upload_results": "results are always stored; use store=… for another place",
    "blocking": "the call returns when the experiment is finished",
    "experiment": "use experiment_prefix=… for the name",
    "disable_evaluator_tracing": "evaluators are not traced",
    "error_handling": "failed runs are part of the experiment",
}
_DEFAULTS: Mapping[str, Any] = {"blocking": True, "error_handling": "log", "disable_evaluator_tracing": False}


@dataclass
class LangSmithExample:
    """Example as evaluators of LangSmith get it: `inputs` and `outputs` (the reference) are dicts."""

    id: uuid.UUID
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None
    metadata: dict[str, Any] = field(default_factory=dict)
    attachments: dict[str, Any] = field(default_factory=dict)
    dataset_id: uuid.UUID | None = None


@dataclass
class LangSmithRun:
    """Run as evaluators of LangSmith get it. Outputs that are no dict are `{"output": …}`."""

    id: uuid.UUID
    name: str
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None
    error: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    run_type: str = "chain"
    trace_id: uuid.UUID | None = None
    parent_run_id: uuid.UUID | None = None
    reference_example_id: uuid.UUID | None = None
    child_runs: list[LangSmithRun] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the run."""
        metadata: dict[str, Any] = self.extra.setdefault("metadata", {})
        return metadata


@dataclass
class LangSmithResult:
    """Result of an evaluator: a number in `score`, a text in `value`."""

    key: str
    score: float | bool | None = None
    value: str | None = None
    comment: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class EvaluationResults(TypedDict):
    """Results of all evaluators on one run."""

    results: list[LangSmithResult]


class ResultRow(TypedDict):
    """One run with its example and the results of the evaluators."""

    run: LangSmithRun
    example: LangSmithExample
    evaluation_results: EvaluationResults


class ExperimentResults:
    """Results of `evaluate`: an iterable of rows with "run", "example" and "evaluation_results".

    `experiment` is the Spanwise experiment, with its summary, comparison and export.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._rows = [_make_result_row(row) for row in experiment.rows()]

    @property
    def experiment_name(self) -> str:
        """Return the name of the experiment, which begins with the prefix."""
        return self.experiment.name

    @property
    def experiment_id(self) -> uuid.UUID:
        """Return the id of the experiment."""
        return uuid.UUID(self.experiment.id)

    def __iter__(self) -> Iterator[ResultRow]:
        return iter(self._rows)

    async def __aiter__(self) -> Any:
        for row in self._rows:
            yield row

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<ExperimentResults {self.experiment_name}>"

    def _repr_html_(self) -> str:
        return self.experiment._repr_html_()

    def wait(self) -> None:
        """Return at once, because the experiment is finished."""

    @property
    def summary_results(self) -> EvaluationResults:
        """Return the results of the summary evaluators."""
        return {"results": [_make_result(each) for each in self.experiment.summary().overall.values()]}

    def to_pandas(self, start: int | None = 0, end: int | None = None) -> pandas.DataFrame:
        """Return a DataFrame with LangSmith's columns: `inputs.…`, `outputs.…`, `reference.…`, `feedback.…`."""
        import pandas

        return pandas.DataFrame([_flatten(row) for row in self._rows[start:end]])


def evaluate(
    target: Callable[..., Any] | Any,
    /,
    data: Any = None,
    evaluators: Sequence[Any] | None = None,
    summary_evaluators: Sequence[Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    experiment_prefix: str | None = None,
    description: str | None = None,
    max_concurrency: int | None = 0,
    num_repetitions: int = 1,
    *,
    store: StoreLocation | None = None,
    **options: Any,
) -> ExperimentResults:
    """Evaluate a target over a dataset as `langsmith.evaluate` does, and store the experiment.

    - `target` is a function of `inputs` (a dict), or of `inputs`, `attachments` and `metadata` by name; or a Runnable.
    - `data` is the name or id of a stored dataset, or an iterable of examples: LangSmith's `Example`s, dicts with
      `inputs` and `outputs`, or Spanwise's.
    - `evaluators` take `(run, example)`, or any of `inputs`, `outputs`, `reference_outputs`, `attachments`, `run`,
      `example` by name. They return a bool, a number, a text, a dict, an `EvaluationResult`, or several of them.
      Evaluators and ids of Spanwise are accepted, too.
    - `summary_evaluators` take lists: `(runs, examples)`, or `inputs`, `outputs`, `reference_outputs` by name.
    - `max_concurrency`: 0 runs one example after another, None up to 100 at a time.
    - `store`: see `spanwise.collector.connect` for None.

    Other options of LangSmith have no effect, which one warning says. Raises `ValueError` for an evaluator whose
    arguments LangSmith does not know, and `TypeError` for an unknown option.
    """
    settings = _make_settings(target, data, evaluators, summary_evaluators, max_concurrency, options)
    settings |= _describe(target, experiment_prefix, description, metadata)
    experiment = evaluate_sync(_resolve_data(data, store), repetitions=num_repetitions, store=store, **settings)
    return ExperimentResults(experiment)


async def aevaluate(
    target: Callable[..., Any] | Any,
    /,
    data: Any = None,
    evaluators: Sequence[Any] | None = None,
    summary_evaluators: Sequence[Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    experiment_prefix: str | None = None,
    description: str | None = None,
    max_concurrency: int | None = 0,
    num_repetitions: int = 1,
    *,
    store: StoreLocation | None = None,
    **options: Any,
) -> ExperimentResults:
    """Evaluate as `evaluate` does, from async code, as `langsmith.aevaluate`."""
    settings = _make_settings(target, data, evaluators, summary_evaluators, max_concurrency, options)
    settings |= _describe(target, experiment_prefix, description, metadata)
    experiment = await evaluate_async(
        await asyncio.to_thread(_resolve_data, data, store), repetitions=num_repetitions, store=store, **settings
    )
    return await asyncio.to_thread(ExperimentResults, experiment)


def _make_settings(
    target: Any,
    data: Any,
    evaluators: Sequence[Any] | None,
    summary_evaluators: Sequence[Any] | None,
    max_concurrency: int | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the validated arguments as Spanwise's `evaluate` takes them."""
    for name in options:
        if name not in _WITHOUT_EFFECT:
            raise TypeError(f"evaluate() has no option {name!r}")
    ignored = [name for name, value in options.items() if value is not None and value != _DEFAULTS.get(name)]
    if ignored:
        remarks = "; ".join(f"{name} ({_WITHOUT_EFFECT[name]})" for name in ignored)
        warnings.warn(f"these options of LangSmith have no effect: {remarks}", UserWarning, stacklevel=3)
    if data is None:
        raise ValueError("data must be the name of a dataset, its id, or an iterable of examples, got None")
    if max_concurrency is not None and (not isinstance(max_concurrency, int) or max_concurrency < 0):
        raise ValueError(f"max_concurrency must be an integer >= 0 or None, got {max_concurrency!r}")
    return {
        "task": _adapt_target(target),
        "evaluators": [_adapt_evaluator(each) for each in evaluators or ()],
        "summary_evaluators": [_adapt_summary_evaluator(each) for each in summary_evaluators or ()],
        "concurrency": _UNLIMITED if max_concurrency is None else max(1, max_concurrency),
    }


def _describe(
    target: Any, prefix: str | None, description: str | None, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return name and metadata of the experiment."""
    name = prefix or getattr(target, "__name__", None) or type(target).__name__
    return {
        "name": f"{name}-{secrets.token_hex(4)}",
        "metadata": {**(metadata or {}), **({"description": description} if description else {})},
    }


def _resolve_data(data: Any, store: Any) -> Any:
    """Return the dataset for Spanwise: a name, or examples whose outputs are the reference, as in LangSmith."""
    if hasattr(data, "inputs_schema_definition"):  # LangSmith's record of a dataset
        data = data.name
    if isinstance(data, str | uuid.UUID):
        return _find_dataset(str(data), store)
    if not isinstance(data, Iterable):
        raise ValueError(f"data must be the name of a dataset, its id, or an iterable of examples, got {data!r:.100}")
    return datasets.iterate(data, outputs_are_references=True)


def _find_dataset(name: str, store: Any) -> str:
    """Return the name of a dataset that is given by its name, or by an id in its metadata."""
    try:
        uuid.UUID(name)
    except ValueError:
        return name
    with open_store_location(default_location() if store is None else store) as opened:
        for dataset in opened.datasets():
            if name in map(str, (dataset.metadata.get("id"), dataset.metadata.get("dataset_id"))):
                return dataset.name
    return name


def _adapt_target(target: Any) -> Callable[..., Any]:
    """Return a task that calls the target with dicts, as LangSmith does. Raises `ValueError` for other targets."""
    function = target if inspect.isroutine(target) else getattr(target, "invoke", target)
    if not callable(function):
        raise ValueError(f"target must be a function of inputs or a Runnable, got {target!r:.100}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = [each.name for each in positional if each.default is each.empty]
    named = [each.name for each in positional if each.name in _TARGET_ARGUMENTS]
    names = named if len(required) > 1 or len(named) > 1 else ["inputs"]
    if len(required) > 1 and not set(required) <= set(_TARGET_ARGUMENTS):
        raise ValueError(
            f"target must take one dict, or {', '.join(_TARGET_ARGUMENTS)}; it takes {', '.join(required)}"
        )

    if names == ["inputs"]:
        return _copy_name(target, _take_inputs(function))

    def arguments(example: Any) -> list[Any]:
        if not isinstance(example, StoredExample):
            raise ValueError("a target with attachments or metadata cannot have an input named 'example': rename it")
        given = _make_example(example)
        return [getattr(given, name) for name in names]

    if _is_async(function):

        async def call_async(example: Any) -> Any:
            return await function(*arguments(example))

        return _copy_name(target, call_async)

    def call(example: Any) -> Any:
        return function(*arguments(example))

    return _copy_name(target, call)


def _take_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a task that takes all inputs by name, and passes them to a function as one dict.

    A task with a parameter `inputs` would not get the dict if one of its keys is "inputs".
    """
    if _is_async(function):

        async def call_async(value: Any = None, /, **inputs: Any) -> Any:
            return await function(inputs if value is None else {"input": value})

        return call_async

    def call(value: Any = None, /, **inputs: Any) -> Any:
        return function(inputs if value is None else {"input": value})

    return call


def _copy_name(target: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = getattr(target, "__name__", None) or type(target).__name__
    return call


def _is_async(function: Any) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _adapt_evaluator(given: Any) -> Evaluator:
    """Return an evaluator for one with LangSmith's conventions. Raises `ValueError` for unknown arguments."""
    if isinstance(given, str | Evaluator):
        return as_evaluator(given)
    run_method = getattr(given, "aevaluate_run" if getattr(given, "is_async", False) else "evaluate_run", None)
    function = run_method or given
    if not callable(function):
        raise ValueError(f"an evaluator must be a function or a RunEvaluator, got {given!r:.100}")
    names = ["run", "example"] if run_method is not None else _choose_arguments(function, _ARGUMENTS)
    key = getattr(given, "__name__", None) or getattr(given, "_name", None) or type(given).__name__

    def arguments(case: Case) -> list[Any]:
        run, example = _make_case_run(case), _make_case_example(case)
        values = {
            "run": run,
            "example": example,
            "inputs": example.inputs,
            "outputs": run.outputs or {},
            "reference_outputs": example.outputs or {},
            "attachments": example.attachments,
        }
        return [values[name] for name in names]

    # `run` is required, because evaluators of LangSmith also score failed runs
    call: Any
    if _is_async(function):

        async def call(case: Case, run: Any) -> Any:
            return _convert_result(await function(*arguments(case)), key)
    else:

        def call(case: Case, run: Any) -> Any:
            return _convert_result(function(*arguments(case)), key)

    made: Evaluator = evaluator(call, key=key)
    return made


def _adapt_summary_evaluator(given: Any) -> Evaluator:
    if isinstance(given, str | Evaluator):
        return as_evaluator(given)
    if not callable(given):
        raise ValueError(f"a summary evaluator must be a function, got {given!r:.100}")
    names = _choose_arguments(given, _SUMMARY_ARGUMENTS)
    key = getattr(given, "__name__", None) or type(given).__name__

    def call(cases: list[Case]) -> Any:
        runs, examples = [_make_case_run(case) for case in cases], [_make_case_example(case) for case in cases]
        values = {
            "runs": runs,
            "examples": examples,
            "inputs": [example.inputs for example in examples],
            "outputs": [run.outputs or {} for run in runs],
            "reference_outputs": [example.outputs or {} for example in examples],
        }
        return _convert_result(given(*(values[name] for name in names)), key)

    return evaluator(call, key=key, summary=True)


def _choose_arguments(function: Callable[..., Any], known: Sequence[str]) -> list[str]:
    """Return what a function gets by position: the known names that it has, or run and example for two other names.

    Raises `ValueError` for other arguments.
    """
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    names = [each.name for each in parameters]
    required = [each.name for each in parameters if each.default is each.empty]
    if names and all(name in known for name in required):
        return [name for name in names if name in known]
    if len(required) == 2:
        return list(known[:2])
    raise ValueError(
        f"evaluator {getattr(function, '__name__', function)!r} must take two arguments (run and example), or some of "
        f"{', '.join(known)}; it takes {', '.join(names) or 'none'}"
    )


def _convert_result(result: Any, key: str) -> Any:
    """Return a result of LangSmith's kinds as Spanwise's evaluators return it. Raises `ValueError` for others."""
    if hasattr(result, "model_dump"):
        result = result.model_dump()
    if isinstance(result, bool | int | float):
        return result
    if isinstance(result, Mapping) and "results" in result:
        result = list(result["results"])
    if isinstance(result, list):
        rows = [_convert_result(each, key) for each in result]
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"an evaluator must return a non-empty list of dicts, got {result!r:.200}")
        return rows
    if isinstance(result, str) and result:
        return {"key": key, "label": result}
    if not isinstance(result, Mapping) or not any(name in result for name in ("score", "value", "comment")):
        raise ValueError(
            f"an evaluator must return a bool, a number, a text, a dict with score or value, or a list of dicts, got {result!r:.200}"
        )
    score, value = result.get("score"), result.get("value")
    if score is None and isinstance(value, bool | int | float):
        score, value = value, None
    row = {"key": result.get("key") or key, "score": score, "comment": result.get("comment")}
    if value is not None:
        row["label"] = value if isinstance(value, str) else str(to_plain(value))
    if result.get("metadata"):
        row["metadata"] = dict(result["metadata"])
    return {name: each for name, each in row.items() if each is not None}


def _make_case_example(case: Case) -> LangSmithExample:
    return _make_example(case.example or StoredExample(inputs=case.inputs, reference_outputs=case.reference_outputs))


def _make_example(example: StoredExample) -> LangSmithExample:
    return LangSmithExample(
        id=_to_uuid(example.id),
        inputs=_to_dict(example.inputs, "input") or {},
        outputs=_to_dict(example.reference_outputs, "output"),
        metadata=dict(example.metadata),
        attachments=dict(example.metadata.get("attachments") or {}),
    )


def _make_case_run(case: Case) -> LangSmithRun:
    if case.trace is None:
        return LangSmithRun(uuid.uuid4(), "run", _to_dict(case.inputs, "input") or {}, _wrap_outputs(case.outputs))
    run = _make_run(case.trace.root, case.trace.runs)
    return replace(run, inputs=_make_case_example(case).inputs, outputs=_wrap_outputs(case.outputs))


def _make_run(root: Run, runs: Sequence[Run]) -> LangSmithRun:
    """Return a run with the runs below it."""
    children: dict[str | None, list[Run]] = {}
    for run in runs:
        if run is not root:
            children.setdefault(run.parent_id, []).append(run)

    def convert(run: Run) -> LangSmithRun:
        return LangSmithRun(
            id=uuid.uuid5(uuid.UUID(run.trace_id), run.span_id),
            name=run.name,
            inputs=_to_dict(run.inputs, "input") or {},
            outputs=_to_dict(run.outputs, "output"),
            error=run.error,
            start_time=_to_time(run.start_ns),
            end_time=_to_time(run.end_ns),
            run_type=run.kind,
            trace_id=uuid.UUID(run.trace_id),
            reference_example_id=_to_uuid(run.example_id) if run.example_id else None,
            child_runs=[convert(child) for child in children.pop(run.span_id, ())],
            tags=list(run.tags),
            extra={"metadata": dict(run.metadata)},
        )

    return convert(root)


def _to_dict(value: JSON, name: str) -> dict[str, Any] | None:
    """Return a dict as it is, and any other value as `{name: value}`."""
    return None if value is None else dict(value) if isinstance(value, Mapping) else {name: value}


def _wrap_outputs(value: JSON) -> dict[str, Any]:
    """Return the outputs of a target. Those of a failed one are `{"output": None}`, as in LangSmith."""
    return dict(value) if isinstance(value, Mapping) else {"output": value}


def _to_uuid(id: str) -> uuid.UUID:
    try:
        return uuid.UUID(id)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, id)


def _to_time(time_ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)


def _make_result(feedback: Feedback) -> LangSmithResult:
    comment = feedback.error if feedback.outcome == "error" else feedback.comment
    return LangSmithResult(feedback.key, feedback.score, feedback.label, comment, dict(feedback.metadata))


def _make_result_row(row: Row) -> ResultRow:
    example = _make_example(row.known_example)
    run = replace(
        _make_run(row.trace.root, row.trace.runs),
        inputs=example.inputs,
        outputs=_wrap_outputs(row.outputs),
        reference_example_id=example.id,
    )
    results = [_make_result(each) for each in row.feedback.values() if each.outcome != "skip"]
    return {"run": run, "example": example, "evaluation_results": {"results": results}}


def _flatten(row: ResultRow) -> dict[str, Any]:
    run, example = row["run"], row["example"]
    results = row["evaluation_results"]["results"]
    duration = (run.end_time - run.start_time).total_seconds() if run.end_time and run.start_time else None
    return {
        **{f"inputs.{name}": value for name, value in example.inputs.items()},
        **{f"outputs.{name}": value for name, value in (run.outputs or {}).items()},
        "error": run.error,
        **{f"reference.{name}": value for name, value in (example.outputs or {}).items()},
        **{f"feedback.{each.key}": each.score if each.score is not None else each.value for each in results},
        "execution_time": duration,
        "example_id": example.id,
        "id": run.id,
    }
