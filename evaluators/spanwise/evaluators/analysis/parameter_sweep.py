"""Sweep: one experiment per combination of parameters, or per variant of the task, analyzed together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from spanwise.collector import connect
from spanwise.collector.errors import NotFound
from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import ComparisonOptions, Store
from spanwise.evaluators.analysis.experiment_comparison import Comparison
from spanwise.evaluators.analysis.model_analysis import Analysis
from spanwise.evaluators.experiments import Experiment, evaluate, render_text
from spanwise.evaluators.interface import StoreLocation, resolve_store

MAX_CELLS = 1_000
USD_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One cell of a sweep: its name, its parameters, and its experiment; None if the budget was spent before it."""

    name: str
    parameters: Mapping[str, Any]
    experiment: Experiment | None


class Sweep:
    """Experiments of a sweep, in the order of the cells. `print` shows the leaderboard and the conclusions."""

    def __init__(self, name: str, cells: Sequence[SweepCell], options: ComparisonOptions) -> None:
        self.name = name
        self.cells = cells
        self._options = options

    @property
    def experiments(self) -> dict[str, Experiment]:
        """Return the experiments by the name of their cell, without cells that were not run."""
        return {cell.name: cell.experiment for cell in self.cells if cell.experiment is not None}

    @property
    def left_out(self) -> list[str]:
        """Return the names of the cells that were not run, because the budget was spent."""
        return [cell.name for cell in self.cells if cell.experiment is None]

    @property
    def _sides(self) -> list[tuple[Store, Record]]:
        return [(experiment.store, experiment.record) for experiment in self.experiments.values()]

    @cached_property
    def analysis(self) -> Analysis:
        """Return leaderboards, problems and insights, with the cells as models."""
        return Analysis(self._sides, models=list(self.experiments))

    @cached_property
    def comparison(self) -> Comparison:
        """Return the comparison of the cells with the baseline, or of each with each. Raises `ValueError` for one cell."""
        if len(self._sides) < 2:
            raise ValueError(f"a comparison requires two or more experiments, got {len(self._sides)}")
        return Comparison(self._sides, self._options)

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.analysis
        if len(self._sides) > 1:
            yield Text("\nConclusions")
            for baseline, other in self.comparison.comparisons:
                yield Text(f"  {self.comparison.describe(other, baseline)}")
        for name in self.left_out:
            yield Text(f"  {name}: not run, the budget was spent")


def sweep(
    dataset: Any,
    task: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    parameters: Mapping[str, Sequence[Any]] | None = None,
    evaluators: Iterable[Any] = (),
    *,
    name: str = "sweep",
    baseline: str | Mapping[str, Any] | None = None,
    all_pairs: bool = False,
    store: StoreLocation | None = None,
    max_usd: float | None = None,
    **options: Any,
) -> Sweep:
    """Run one experiment per combination of parameters, or per variant of the task.

    - `task` with `parameters={"k": [1, 5], "model": ["a", "b"]}`: the task is called with `k=` and `model=` in addition
      to its inputs. Or `task={"short": …, "long": …}`: a mapping of names to tasks, without `parameters`.
    - The experiments are named "sweep k=1 model=a", with the parameters in their metadata.
    - `baseline` names the cell with which the others are compared, by its name or its parameters; the first one by
      default. `all_pairs` compares each with each.
    - `max_usd` is the budget of all cells together. The cell that spends it stops, and later cells do not run.
    - `resume=True` continues a sweep: finished runs are not repeated, and what they cost counts towards `max_usd`.
    - Other options are those of `evaluate()`.

    Raises `ValueError` for an empty or too large sweep, an unknown baseline, and parameters without a task that takes
    them.
    """
    cells = _list_cells(task, parameters, name)
    names = [cell for cell, _, _ in cells]
    first = _find_baseline(baseline, cells)
    evaluator_list = [evaluators] if isinstance(evaluators, str) else list(evaluators)
    rows = dataset if isinstance(dataset, str | Sequence) or hasattr(dataset, "columns") else list(dataset)
    with_store = connect() if store is None else resolve_store(store)
    metadata = dict(options.pop("metadata", None) or {})
    earlier: dict[str, Experiment] = {}
    for cell in names if options.get("resume") else ():
        with suppress(NotFound):
            earlier[cell] = Experiment.load(with_store, cell)
    costs = {cell: _get_cost(experiment) for cell, experiment in earlier.items()}
    done: dict[str, Experiment] = {}
    for cell, variant, values in cells:
        # what the current cell has cost earlier is counted by `evaluate()`
        left = None if max_usd is None else max_usd - sum(cost for name, cost in costs.items() if name != cell)
        if left is not None and left <= USD_TOLERANCE:
            if cell in earlier:
                done[cell] = earlier[cell]
            continue
        done[cell] = evaluate(
            rows,
            variant,
            evaluator_list,
            name=cell,
            store=with_store,
            metadata={**metadata, **_to_plain(values), "sweep": name},
            max_usd=left,
            **options,
        )
        costs[cell] = _get_cost(done[cell])
    ordered = sorted(names, key=lambda cell: (cell != names[first], names.index(cell)))
    values_of = {cell: values for cell, _, values in cells}
    return Sweep(
        name,
        [SweepCell(name=cell, parameters=values_of[cell], experiment=done.get(cell)) for cell in ordered],
        ComparisonOptions(all_pairs=all_pairs),
    )


Cells = list[tuple[str, Callable[..., Any], Mapping[str, Any]]]


def _list_cells(
    task: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    parameters: Mapping[str, Sequence[Any]] | None,
    name: str,
) -> Cells:
    """Return name, task and parameters of each cell. Raises `ValueError`."""
    if isinstance(task, Mapping):
        if parameters:
            raise ValueError("a sweep takes either a mapping of tasks or parameters for one task, got both")
        cells: Cells = [(f"{name} {label}", variant, {"variant": label}) for label, variant in task.items()]
    else:
        if not parameters:
            raise ValueError("a sweep of one task requires parameters, such as {'k': [1, 5]}")
        for parameter, values in parameters.items():
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise ValueError(f"the values of {parameter!r} must be a list, got {values!r:.100}")
        combinations = [dict(zip(parameters, values, strict=True)) for values in product(*parameters.values())]
        cells = [
            (
                " ".join([name, *(f"{key}={value}" for key, value in _to_plain(values).items())]),
                partial(task, **values),
                values,
            )
            for values in combinations
        ]
    if not cells or len(cells) > MAX_CELLS:
        raise ValueError(f"a sweep must have 1 to {MAX_CELLS:,} cells, got {len(cells):,}")
    if len({cell for cell, _, _ in cells}) < len(cells):
        raise ValueError("two cells of the sweep have the same name: remove equal values of the parameters")
    return cells


def _to_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON values. Functions and classes are represented by their names."""

    def plain(value: Any) -> Any:
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            return getattr(value, "__name__", None) or repr(value)[:100]
        return value

    return {name: plain(value) for name, value in values.items()}


def _find_baseline(baseline: str | Mapping[str, Any] | None, cells: Cells) -> int:
    """Return the position of the baseline. Raises `ValueError`."""
    if baseline is None:
        return 0
    for place, (cell, _, values) in enumerate(cells):
        matches = values == baseline if isinstance(baseline, Mapping) else baseline in (cell, cell.partition(" ")[2])
        if matches or (isinstance(baseline, str) and baseline == values.get("variant")):
            return place
    raise ValueError(f"baseline {baseline!r} is no cell of the sweep; cells: {', '.join(cell for cell, _, _ in cells)}")


def _get_cost(experiment: Experiment) -> float:
    """Return what the tasks of an experiment have cost, including failed runs that later ones have replaced."""
    recorded = (experiment.record.metadata.get("totals") or {}).get("spent_usd")
    return max(experiment.summary().cost or 0.0, recorded if isinstance(recorded, int | float) else 0.0)
