"""Analysis of experiments by model: its display in terminal and notebook, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Store
from spanwise.evaluators.analysis.leaderboards import BooleanLeaderboard, format_ranks
from spanwise.evaluators.analysis.report_archive import write_report
from spanwise.evaluators.analysis.result_analysis import AnalysisData, TradeOff, format_cell
from spanwise.evaluators.experiments import Experiment, format_number, make_text_table, render_text
from spanwise.evaluators.interface import StoreLocation, resolve_store

SHOWN = 10  # problems, insights and prompts in the terminal
PROMPT_CHARACTERS = 60  # characters of a prompt in the terminal
SHOWN_MODELS = 5  # models in the terminal, the best first


class Analysis(AnalysisData):
    """Analysis of one or more experiments by model. `print` shows it; `report` writes it to a file."""

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the report to a path that ends in ".html" (one self-contained file) or ".zip" (all results).

        Return the path. Raises `ValueError` for another ending.
        """
        return write_report(self, Path(path))

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline)
        board = self.leaderboard
        shown = board.models[:SHOWN_MODELS]
        head = ["key", *shown]
        rows = [
            [
                Text(key),
                *(
                    _color(format_cell(board.cells[model, key], board.ranks[key].get(model)), board.warmth[model, key])
                    for model in shown
                ),
            ]
            for key in board.keys
        ]
        more = len(board.models) - len(shown)
        title = "Leaderboard: mean with its 95 % interval, number of scores, ranks"
        yield make_text_table(f"{title}; {more} more models" if more else title, head, rows)
        for boolean in self.boolean_leaderboards:
            yield make_text_table(f"{boolean.key}: test cases that succeeded", *_boolean_cells(boolean))
        yield from _make_robustness_table(self, shown)
        yield from _make_prompt_table(self, shown)
        for trade_off in self.trade_offs:
            yield make_text_table(f"{trade_off.key} against {trade_off.measure}", *_trade_off_cells(trade_off))
        yield from _list_lines("Problems", [f"{'severe: ' * each.severe}{each.text}" for each in self.problems])
        yield from _list_lines(
            "Thresholds that raise no problem",
            [f"{each.key} {each.threshold:g}: {each.reason}" for each in self.unusable_thresholds],
        )
        yield from _list_lines("Insights", [each.text for each in self.insights])


def analyze(*experiments: Experiment | str, store: StoreLocation | None = None) -> Analysis:
    """Analyze one or more experiments by model; with a `store` they may also be given by id or name.

    Raises `ValueError` without experiments, or for names without a store.
    """
    if not experiments:
        raise ValueError("analyze() requires one or more experiments")
    opened = resolve_store(store) if store is not None else None

    def find(experiment: Experiment | str) -> tuple[Store, Record]:
        if isinstance(experiment, Experiment):
            return experiment.store, experiment.record
        if opened is None:
            raise ValueError(f"experiment {experiment!r} is a name: pass its store, analyze(…, store=…)")
        return opened, opened.experiment(experiment)

    return Analysis([find(experiment) for experiment in experiments])


def _color(text: str, warmth: float | None) -> Text:
    """Return a cell in red, yellow or green, from the worst to the best third."""
    return Text(text, "" if warmth is None else ("red", "yellow", "green", "green")[int(warmth * 3)])


def _boolean_cells(board: BooleanLeaderboard) -> tuple[list[str], list[list[str]]]:
    names = ("passes", "failures", "retrieval_failures", "generation_failures", "parse_failures")
    head = ["model", "rank", "succeeded", "cases", *(name.replace("_", " ") for name in names)]
    rows = [
        [row.model, format_ranks(row.ranks), str(row.succeeded), str(row.cases)]
        + ["" if (value := getattr(row, name)) is None else f"{value:.1%}" for name in names]
        for row in board.rows
    ]
    return head, rows


def _make_robustness_table(analysis: AnalysisData, models: Sequence[str]) -> Iterator[Table]:
    """Yield the share of stable base cases per metric, kind of perturbation and model; nothing without perturbations."""
    kinds = dict.fromkeys(pair for robustness in analysis.robustness.values() for pair in robustness)
    rows = []
    for kind, key in kinds:
        cells = []
        for model in models:
            robustness = analysis.robustness.get(model)
            result = robustness.get((kind, key)) if robustness else None
            share = None if result is None else result.share
            if result is None or share is None or result.interval is None:
                cells.append("–")
            else:
                interval = "[{:.1%}, {:.1%}]".format(*result.interval)
                flips = f"{len(result.flips)} flip{'s' * (len(result.flips) != 1)}"
                cells.append(f"{share:.1%} {interval} n={result.cases}\n{flips}")
        rows.append([key, kind, *cells])
    if rows:
        title = "Robustness: base cases that pass or fail alike in all their perturbations of a kind"
        yield make_text_table(title, ["key", "perturbation", *models], rows)


def _make_prompt_table(analysis: AnalysisData, models: Sequence[str]) -> Iterator[Table]:
    """Yield models × prompts for the first metric with scores of single cases, the worst prompts first."""
    for key in analysis.leaderboard.keys:
        board = analysis.prompts(key)
        shown = board.example_ids[:SHOWN]
        rows = []
        for id in shown:
            scores = [board.scores.get((model, id)) for model in models]
            cells = [
                _color("–" if score is None else format_number(score), board.warmth.get((model, id)))
                for model, score in zip(models, scores, strict=True)
            ]
            rows.append([Text(analysis.results.describe_example(id, PROMPT_CHARACTERS)), *cells])
        if rows:
            total = len(board.example_ids) + board.left_out
            yield make_text_table(f"{key}: the {len(rows)} worst of {total:,} prompts", ["prompt", *models], rows)
            return


def _trade_off_cells(trade_off: TradeOff) -> tuple[list[str], list[list[str]]]:
    rows = [
        [model, format_number(effort), format_number(quality), "yes" if model in trade_off.front else ""]
        for model, (effort, quality) in sorted(trade_off.points.items(), key=lambda point: point[1])
    ]
    return ["model", trade_off.measure, trade_off.key, "Pareto front"], rows


def _list_lines(title: str, lines: Sequence[str]) -> Iterator[Text]:
    if lines:
        yield Text(f"\n{title}")
        yield from (Text(f"  {line}") for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield Text(f"  … and {len(lines) - SHOWN} more")
