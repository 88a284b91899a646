"""Options of `evaluate()`: defaults, validation, and hints for option names of other products."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from math import isfinite
from os import PathLike
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

from spanwise.collector.records import JSON
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import RetryOn, compile_retry_on
from spanwise.tracer.suggestions import make_unknown_option_error

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
