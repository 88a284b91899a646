"""Plan of an experiment: options of `evaluate()`, planned runs, evaluators per example, early stop."""

from __future__ import annotations

import hashlib
import inspect
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from math import isfinite
from os import PathLike
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

from spanwise.collector.records import JSON, Case, Example, Feedback, Run, Target, Trace
from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.task_call import AbandonedTasks, RunFixture, TaskFunction, ValueCopier
from spanwise.evaluators.interface import (
    Evaluator,
    RetryOn,
    check_keys,
    compile_retry_on,
    find_by_name,
    get_evaluator,
    list_evaluators,
)
from spanwise.evaluators.scoring import get_parts
from spanwise.tracer.suggestions import did_you_mean, make_unknown_option_error

# Options of `evaluate()`: defaults, validation, and hints for option names of other products.

NameFilter: TypeAlias = "str | Iterable[str] | None"
StoreArgument: TypeAlias = "Store | str | PathLike[str] | None"
_LIMITS = {
    "timeout": "a number of seconds > 0",
    "max_failures": "an integer >= 1, a share of the runs such as 0.2",
    "max_usd": "a number of US dollars > 0",
}
_STOP_OPTIONS = ("fail_fast", "max_failures", "max_usd")
F = TypeVar("F", bound=Callable[..., Any])


class EvaluateOptions(TypedDict, total=False):
    """Keyword options of `evaluate()` for type checkers; defaults are those of `ExperimentSettings`."""

    name: str | None
    concurrency: int
    repetitions: int
    metadata: Mapping[str, JSON] | None
    split: NameFilter
    limit: int | None
    only: NameFilter
    timeout: float | None
    retries: int
    retry_on: RetryOn | None
    fail_fast: bool
    max_failures: float | None
    max_usd: float | None
    raise_errors: bool
    attach: bool
    seed: int | None
    resume: bool | str | None
    summary_evaluators: Iterable[Any]
    store: StoreArgument
    progress: bool | None
    fixture: Callable[..., Any] | None
    span_wait: float
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """Validated options of `evaluate()` with their defaults; see `evaluate` for their meaning.

    Raises `ValueError` for invalid values.
    """

    name: str | None = None
    concurrency: int = 8
    repetitions: int = 1
    metadata: Mapping[str, JSON] | None = None
    split: NameFilter = None
    limit: int | None = None
    only: NameFilter = None
    timeout: float | None = None
    retries: int = 0
    retry_on: RetryOn | None = None
    fail_fast: bool = False
    max_failures: float | None = None
    max_usd: float | None = None
    raise_errors: bool = False
    attach: bool = False
    seed: int | None = None
    resume: bool | str | None = None
    summary_evaluators: Iterable[Any] = ()
    store: StoreArgument = None
    progress: bool | None = None
    fixture: Callable[..., Any] | None = None
    span_wait: float = 1.0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name in ("concurrency", "repetitions", "batch_size", "limit"):
            value = getattr(self, name)
            if not (value is None and name == "limit") and not (_is_integer(value) and value >= 1):
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
        if not _is_integer(self.retries) or self.retries < 0:
            raise ValueError(f"retries must be an integer >= 0, got {self.retries!r}")
        if not _is_number(self.span_wait) or self.span_wait < 0:
            raise ValueError(f"span_wait must be a number of seconds >= 0, got {self.span_wait!r}")
        for name, expected in _LIMITS.items():
            value = getattr(self, name)
            is_limit = _is_number(value) and value > 0
            is_no_share = name == "max_failures" and isinstance(value, float) and value > 1
            if value is not None and (not is_limit or is_no_share):
                raise ValueError(f"{name} must be {expected}, or None for no limit, got {value!r}")
        for name in ("fail_fast", "raise_errors", "attach"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        compile_retry_on(self.retry_on)
        for name in ("split", "only"):
            object.__setattr__(self, name, _check_name_filter(name, getattr(self, name)))

    @property
    def splits(self) -> Sequence[str] | None:
        """Return the selected splits; None for all."""
        return _to_list(self.split)

    @property
    def ids(self) -> Sequence[str] | None:
        """Return the selected example ids or their prefixes; None for all examples."""
        return _to_list(self.only)

    @property
    def parameters(self) -> dict[str, JSON]:
        """Return the options that are recorded with the experiment."""
        names = ("concurrency", "repetitions", "split", "limit", "only", "timeout", "retries", "seed", *_STOP_OPTIONS)
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None and value is not False}


def _to_list(names: NameFilter) -> list[str] | None:
    return [names] if isinstance(names, str) else None if names is None else list(names)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_name_filter(option: str, given: NameFilter) -> str | list[str] | None:
    """Return one name, or a list of names made from any iterable, so that it can be iterated repeatedly. Raises
    `ValueError`.
    """
    if given is None or isinstance(given, str):
        return given
    listed = list(given) if isinstance(given, Iterable) else []
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{option} must be a name or a list of names, got {given!r}")
    return listed


OPTION_NAMES = tuple(field.name for field in fields(ExperimentSettings))
POSITIONAL_NAMES = ("dataset", "task", "evaluators")  # parameters that are also accepted by position
_ACCEPTED_NAMES = frozenset((*POSITIONAL_NAMES, *OPTION_NAMES))
# Option names of LangSmith, Langfuse, MLflow, Phoenix, Braintrust and DeepEval → the Spanwise spelling
_FOREIGN_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("data", "eval_dataset", "examples", "dataset_name", "test_cases", "goldens"), "dataset=…"),
    **dict.fromkeys(("predict_fn", "target", "model", "pipeline"), "task=…"),
    **dict.fromkeys(("scorers", "scores", "scoring_functions", "metrics", "scoring_metrics"), "evaluators=…"),
    **dict.fromkeys(("run_evaluators", "summary_scores", "composite_evaluator"), "summary_evaluators=…"),
    **dict.fromkeys(("experiment_prefix", "experiment_name", "experiment", "run_name"), "name=…"),
    **dict.fromkeys(("num_repetitions", "trial_count", "trials", "epochs"), "repetitions=…"),
    **dict.fromkeys(("max_concurrency", "task_threads", "num_threads", "max_workers"), "concurrency=…"),
    **dict.fromkeys(("description", "experiment_description"), "metadata={'description': …}"),
    "experiment_metadata": "metadata=…",
    "nb_samples": "limit=…",
    "error_handling": "raise_errors=True, or the errors of the experiment that is returned",
    "dry_run": "limit=3, or `spanwise eval FILE.py --dry-run`",
    "client": "store=…",
    **dict.fromkeys(("setup", "teardown", "around", "lifecycle", "before_each", "after_each"), "fixture=…"),
}


def make_settings(options: Mapping[str, Any], caller: str) -> ExperimentSettings:
    """Return the settings made of keyword options. Raises `TypeError` for an unknown option."""
    for name in options:
        if name not in OPTION_NAMES:
            raise make_unknown_option_error(f"{caller}()", name, OPTION_NAMES, _FOREIGN_NAMES)
    return ExperimentSettings(**options)


def accept_options(function: F) -> F:
    """Show every option with its default in the function's signature, for `help`, `inspect.signature` and notebooks.

    If a call uses option names of another product, the error gives the names in Spanwise, even if required arguments
    are missing.
    """
    called: Any
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def called(*args: Any, **options: Any) -> Any:
            _check_foreign_names(options, function.__name__, args)
            return await function(*args, **options)
    else:

        @wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            _check_foreign_names(options, function.__name__, args)
            return function(*args, **options)

    signature = inspect.signature(function)
    own_parameters = [
        parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
    ]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(ExperimentSettings)
    ]
    called.__signature__ = signature.replace(parameters=[*own_parameters, *options])
    return cast(F, called)


def _check_foreign_names(options: Mapping[str, Any], caller: str, args: Sequence[Any]) -> None:
    """Raise `TypeError` that lists all options with names of other products.

    It is called before Python itself complains about the first missing argument.
    """
    foreign = [name for name in options if name in _FOREIGN_NAMES and name not in _ACCEPTED_NAMES]
    target_first = bool(args) and callable(args[0])  # the task comes first, as in LangSmith's evaluate(target, data=…)
    if len(foreign) == 1 and not target_first:
        raise make_unknown_option_error(f"{caller}()", foreign[0], (*POSITIONAL_NAMES, *OPTION_NAMES), _FOREIGN_NAMES)
    if foreign:
        renamed = ", ".join(f"{name!r} (here it is {_FOREIGN_NAMES[name]})" for name in foreign)
        first = "; the dataset is the first argument, and the task the second" if target_first else ""
        plural = "s" if len(foreign) > 1 else ""
        known = ", ".join((*POSITIONAL_NAMES, *OPTION_NAMES))
        raise TypeError(f"{caller}() has no option{plural} {renamed}{first}; it takes {known}")


# Plan of an experiment: its planned and finished runs, and the conditions that stop it early.

MAX_REMARKS = 20
_USD_TOLERANCE = 1e-9  # rounding error of sums of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """Plan of one experiment: its task, evaluators and settings."""

    experiment_id: str
    name: str
    task: TaskFunction | None
    evaluators: tuple[Evaluator, ...]
    settings: ExperimentSettings
    kind: str = "kv"
    keep_examples: bool = False  # store examples with the runs, because no stored dataset has them
    # remarks to be shown below the summary table, without repetitions
    remarks: dict[str, None] = field(default_factory=dict)
    fixture: RunFixture | None = None  # set-up and tear-down around each attempt of the task
    teardown_failures: list[str] = field(default_factory=list)  # one text for each failed tear-down
    abandoned: AbandonedTasks = field(default_factory=AbandonedTasks)  # tasks that continued to run after their timeout

    def remark(self, text: str) -> None:
        """Add a remark to be shown below the summary table. Repetitions are ignored; at most `MAX_REMARKS` are kept."""
        if len(self.remarks) < MAX_REMARKS:
            self.remarks[text] = None

    @property
    def copies(self) -> ValueCopier:
        """Return the copier that makes a separate copy of the inputs for each attempt."""
        return ValueCopier(self.remark)

    def seed_of(self, example: Example, repetition: int) -> int | None:
        """Return the random seed for one run, derived from the experiment's seed; None if the experiment has none.

        It depends only on that seed, the example and the repetition, so every experiment gets the same one.
        """
        if self.settings.seed is None:
            return None
        digest = hashlib.sha256(f"{self.settings.seed}|{example.id}|{repetition}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


@dataclass(slots=True)
class PlannedRun:
    """Planned run: one example in one repetition. `slot` is its position in the results.

    With `trace` the task is not run, because the run exists already; `evaluators` still have to score it. `stored`
    means that the trace is in the store under this experiment. `replaces` holds the trace ids of earlier failed runs
    that this run replaces. `errors` holds the ids of error feedback from evaluators that run again.
    """

    slot: int
    example: Example
    repetition: int = 0
    trace: Trace | None = None
    evaluators: tuple[Evaluator, ...] | None = None
    stored: bool = False
    known: tuple[Feedback, ...] = ()  # earlier feedback on the trace; it is not stored again
    replaces: Sequence[str] = ()
    errors: Sequence[str] = ()


@dataclass(slots=True)
class FinishedRun:
    """Finished run before it is stored: its spans, the case that evaluators receive, and their feedback."""

    item: PlannedRun
    case: Case
    target: Target
    runs: Sequence[Run]
    feedback: list[Feedback] = field(default_factory=list)
    open_spans: int = 0
    raised: BaseException | None = None  # error of the task, for `evaluate()` to raise

    @property
    def trace(self) -> Trace:
        """Return its trace."""
        if self.case.trace is None:
            raise ValueError("a run without a trace")  # unreachable: every case here has a trace
        return self.case.trace

    @property
    def error(self) -> str | None:
        """Return the error of the task, or None."""
        root = self.trace.root
        return root.error or "error" if root.status == "error" else None


class StopConditions:
    """Stop conditions, checked after every finished run.

    Once a condition is met, `reason` names it and no new run starts. Running ones finish.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        total: int | None,
        remark: Callable[[str], None],
        spent_usd: float = 0.0,
    ) -> None:
        """Set the conditions for an experiment of `total` runs (None: unknown).

        `spent_usd` is the cost of the tasks in earlier parts of a resumed experiment. Raises `ValueError` if a
        condition is a share of the runs and `total` is None.
        """
        self.reason = ""
        self.raised: BaseException | None = None  # error of a task, for `evaluate()` to raise
        self._settings = settings
        self._remark = remark
        self._max_failed, self._failure_option = _compute_failure_limit(settings, total)
        self._lock = threading.Lock()
        self._failed = self._finished = 0
        self._spent_before = self._usd = spent_usd

    @property
    def spent_usd(self) -> float:
        """Return the cost of all attempts of the task, those of earlier parts of the experiment included."""
        return self._usd

    def skip_unaffordable(self, items: Iterator[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield the planned runs; if earlier parts have spent `max_usd`, only those that exist and need scores."""
        max_usd = self._settings.max_usd
        if max_usd is None or self._spent_before < max_usd:
            yield from items
            return
        skipped = 0
        for item in items:
            if item.trace is not None:
                yield item
            else:
                skipped += 1
        if skipped:
            self._stop(
                f"earlier parts of the experiment have cost ${self._spent_before:,.4f}, so none of the {skipped} "
                f"missing runs was started (max_usd={max_usd!r}; raise it to continue)"
            )

    def check(self, finished: FinishedRun) -> None:
        """Check the conditions after a finished run; may be called from any thread."""
        # an existing run was scored: the conditions concern only runs of the task
        if finished.item.trace is not None:
            return
        with self._lock:
            self._finished += 1
            self._failed += finished.error is not None
            self.raised = self.raised or finished.raised
            if self._max_failed is not None and self._failed >= self._max_failed:
                self._stop(f"{self._failed} of {self._finished} runs failed ({self._failure_option})")
            self._add_cost(finished, self._settings.max_usd)

    def _add_cost(self, finished: FinishedRun, max_usd: float | None) -> None:
        for run in finished.runs:
            known = run.cost is not None and math.isfinite(run.cost)
            self._usd += max(0.0, run.cost or 0.0) if known else 0.0
            if max_usd is not None and not known and (run.model or run.usage):
                unknown = (
                    f"max_usd does not count calls of {run.model or 'a model without a name'}, whose price is unknown"
                )
                self._remark(f"{unknown} (report it with set_usage(cost=…))")
        if max_usd is not None and self._usd >= max_usd - _USD_TOLERANCE:
            earlier = " and earlier parts of the experiment" if self._spent_before else ""
            self._stop(f"{self._finished} runs{earlier} have cost ${self._usd:,.4f} (max_usd={max_usd!r})")

    def _stop(self, reason: str) -> None:
        self.reason = self.reason or reason


def _compute_failure_limit(settings: ExperimentSettings, total: int | None) -> tuple[int | None, str]:
    """Return the number of failed runs that stops the experiment, and the option that sets it."""
    if settings.raise_errors:
        return 1, "raise_errors"
    if settings.fail_fast:
        return 1, "fail_fast"
    limit = settings.max_failures
    if limit is None:
        return None, ""
    option = f"max_failures={limit!r}"
    if not isinstance(limit, float):
        return limit, option
    if total is None:
        raise ValueError(
            f"{option} is a share of the runs, but their number is not known in advance: pass a number of runs, such as 5"
        )
    return max(1, math.ceil(limit * total)), option


# Evaluators per example: which evaluators score an example, and how many examples each of them scores.


class ExampleEvaluators:
    """Evaluators of an experiment, and the choice of those that score an example.

    An example that names evaluators is scored by these. An example that names none is scored by all evaluators of the
    call. `all` holds the evaluators of the call, and those that `add` has created for names in the examples.
    """

    def __init__(self, evaluators: Sequence[Evaluator], set_evaluators: Sequence[Evaluator] = ()) -> None:
        self.all = tuple(evaluators)
        self._of_call = tuple(evaluators)
        self._set_evaluators = tuple(set_evaluators)
        self._selections: dict[tuple[str, ...], tuple[Evaluator, ...]] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()  # number of examples by the names that they have

    def add(self, examples: Iterable[Example]) -> None:
        """Count the examples, and create from the registry the evaluators that only they name.

        Raises `ValueError`, which names the example, for a name that is neither a key of the call nor a usable id.
        """
        for example in examples:
            if example.evaluators not in self._selections:
                self._add_names(example)
            self._counts[example.evaluators] += 1
        self._selections.clear()
        for names in filter(None, self._counts):
            self.select(Example(inputs=None, evaluators=names))
        check_keys((*self.all, *self._set_evaluators))

    def select(self, example: Example) -> tuple[Evaluator, ...] | None:
        """Return the evaluators that score an example; None for all.

        Raises `ValueError`, which names the example, for an unknown name.
        """
        names = example.evaluators
        if not names:
            return None if len(self.all) == len(self._of_call) else self._of_call
        selected = self._selections.get(names)
        if selected is None:
            found = [each for name in names for each in self._find(name, example)]
            selected = self._selections[names] = self._in_order(found)
        return selected

    def _in_order(self, found: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
        """Return evaluators in the order of the call, with the parts of composites among them."""
        keys, waiting = set[str](), list(found)
        while waiting:
            evaluator = waiting.pop()
            if evaluator.key not in keys:
                keys.add(evaluator.key)
                waiting += [each for part in get_parts(evaluator) for each in find_by_name(self.all, part)]
        return tuple(each for each in self.all if each.key in keys)

    def select_known(self, example: Example, *, count: bool) -> tuple[Evaluator, ...]:
        """Return the evaluators that score an example, without an error for names of other evaluators.

        Those have scored the example in an earlier call. With `count`, count the example.
        """
        self._counts[example.evaluators] += count
        selected = self._selections.get(example.evaluators)
        if selected is None:
            found = [each for name in example.evaluators for each in find_by_name(self.all, name)]
            selected = self._in_order(found) if example.evaluators else self.all
            self._selections[example.evaluators] = selected
        return selected

    def name_all(self, case: Example | Trace) -> Example | Trace:
        """Return an example with the keys of all evaluators that score it; a trace unchanged."""
        if isinstance(case, Trace) or (selected := self.select(case)) is None:
            return case
        return replace(case, evaluators=tuple(each.key for each in selected))

    def assign(self, items: Iterable[PlannedRun], *, counting: bool) -> Iterator[PlannedRun]:
        """Yield planned runs with the evaluators of their examples. With `counting`, count the examples, too."""
        for item in items:
            names = item.example.evaluators
            if counting and item.repetition == 0:
                self._counts[names] += 1
            selected = self.select(item.example)
            yield item if selected is None else replace(item, evaluators=selected)

    def describe(self, recorded: Sequence[Mapping[str, JSON]]) -> tuple[Mapping[str, JSON], ...]:
        """Return the recorded evaluators. Those that score only some examples have the numbers of these examples and of
        all, as `examples`.
        """
        if not any(self._counts) and len(self.all) == len(self._of_call):
            return tuple(recorded)
        total, counted = self._counts.total(), Counter[str]()
        for names, count in self._counts.items():
            selected = self._selections.get(names, ()) if names else self._of_call
            counted.update({evaluator.key: count for evaluator in selected})
        keys = {evaluator.key for evaluator in self.all}
        return tuple(
            {**record, "examples": [counted[record["key"]], total]}
            if record["key"] in keys and counted[record["key"]] < total
            else record
            for record in recorded
        )

    def _add_names(self, example: Example) -> None:
        for name in example.evaluators:
            if not find_by_name(self.all, name):
                self._check_not_set_level(name, example)
                try:
                    created = get_evaluator(name)
                    if created.asking is not None and not created.summary:
                        created.asking.ready()
                except Exception as error:  # the constructor of an evaluator may raise anything
                    raise ValueError(self._describe_unknown(name, example, str(error))) from error
                if created.summary:
                    raise ValueError(_describe_set_level(name, example))
                self.all = (*self.all, created)
        self._selections[example.evaluators] = ()

    def _find(self, name: str, example: Example) -> Sequence[Evaluator]:
        found = find_by_name(self.all, name)
        if not found:
            self._check_not_set_level(name, example)
            raise ValueError(self._describe_unknown(name, example, "pass it in evaluators=[…]"))
        return found

    def _check_not_set_level(self, name: str, example: Example) -> None:
        if any(name in (each.key, each.make.name, *each.make.keys) for each in self._set_evaluators):
            raise ValueError(_describe_set_level(name, example))

    def _describe_unknown(self, name: str, example: Example, reason: str) -> str:
        keys = [key for each in self.all for key in (each.key, *each.make.keys)]
        hint = "" if "did you mean" in reason else did_you_mean(name, [*keys, *list_evaluators()], 3)
        return (
            f"example {example.id} names the evaluator {name!r}, which is not among the evaluators of the call: "
            f"{reason}{hint}"
        )


def _describe_set_level(name: str, example: Example) -> str:
    return (
        f"example {example.id} names the evaluator {name!r}, which scores all examples together: remove the name, and "
        "pass the evaluator in evaluators=[…]"
    )
