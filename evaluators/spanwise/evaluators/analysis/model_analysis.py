"""Analysis of experiments by model: display in terminal and notebook, report as a file or archive."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Store
from spanwise.evaluators.analysis.analysis_report import AnalysisData, TradeOff, format_cell, render_report
from spanwise.evaluators.analysis.model_findings import MAPPING_NOTE, BooleanLeaderboard, format_ranks
from spanwise.evaluators.experiments import (
    Experiment,
    Row,
    format_number,
    make_text_table,
    read_attached_example,
    render_text,
)
from spanwise.evaluators.interface import StoreLocation, resolve_store

# Report of an analysis as a file: HTML, or an archive with all results as JSON and Parquet or CSV.

_TRACE_PAGE = 200


def write_report(analysis: AnalysisData, path: Path) -> Path:
    """Write the report: HTML, or an archive (H2O's `work-dir-archive`) if the path ends in ".zip".

    Raises `ValueError` for another ending.
    """
    if path.suffix.lower() in (".html", ".htm"):
        path.write_bytes(render_report(analysis).encode("utf-8", "replace"))
    elif path.suffix.lower() == ".zip":
        _write_archive(analysis, path)
    else:
        raise ValueError(f"a report must end in .html or .zip, got {str(path)!r}")
    return path


def _write_archive(analysis: AnalysisData, path: Path) -> None:
    files: dict[str, bytes] = {"report.html": render_report(analysis).encode("utf-8", "replace")}
    results = list_results(analysis)
    files["llm-eval-results.json"] = _dump(results)
    files |= _tabulate(results)
    board = analysis.leaderboard
    files["llm-heatmap-leaderboard.json"] = _dump(
        {
            "models": board.models,
            "keys": board.keys,
            "ranks": board.ranks,
            "cells": list(board.cells.values()),
            "prompts": {
                key: [
                    {"model": model, "example_id": example_id, "score": score}
                    for (model, example_id), score in analysis.prompts(key).scores.items()
                ]
                for key in board.keys
            },
        }
    )
    files["llm-bool-leaderboard.json"] = _dump(analysis.boolean_leaderboards)
    files["problems.json"] = _dump([{**_encode(each), "severe": each.severe} for each in analysis.problems])
    files["unusable-thresholds.json"] = _dump(analysis.unusable_thresholds)
    files["insights.json"] = _dump(analysis.insights)
    files["compliance.json"] = _dump({"note": MAPPING_NOTE, "standards": analysis.compliance})
    files["trade-offs.json"] = _dump(analysis.trade_offs)
    files["perturbations.json"] = _dump(
        [
            {"model": model, **_encode(each), "share": each.share, "interval": each.interval}
            for model, robustness in analysis.robustness.items()
            for each in robustness.values()
        ]
    )
    files["experiments.json"] = _dump(analysis.records)
    manifest = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    files["manifest.json"] = _dump(manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def list_results(analysis: AnalysisData) -> list[dict[str, Any]]:
    """Return one dict per run: model, example, inputs, outputs, references, error, and one entry per key."""
    results = analysis.results
    position = {id: place for place, id in enumerate(results.examples)}
    rows = []
    for (store, record), by_model in zip(results.sides, results.runs_by_side, strict=True):
        models = {run.trace_id: model for model, runs in by_model.items() for run in runs}
        runs = sorted(
            (run for runs in by_model.values() for run in runs),
            key=lambda run: (position.get(run.example_id or "", len(position)), run.repetition),
        )
        ids = [run.trace_id for run in runs]
        for start in range(0, len(ids), _TRACE_PAGE):
            for trace in store.many(ids[start : start + _TRACE_PAGE]):
                example = read_attached_example(trace.root) or results.examples.get(trace.root.example_id or "")
                row = Row(example, trace)
                rows.append({"model": models[trace.trace_id], "experiment": record.name, **row.to_dict()})
    return rows


def _dump(value: Any) -> bytes:
    """Return JSON with one line per item of a list, or per entry of a dict."""

    def encode(each: Any) -> str:
        return json.dumps(each, ensure_ascii=False, default=_encode)

    if isinstance(value, Mapping):
        text = "{\n" + ",\n".join(f"{encode(key)}: {encode(each)}" for key, each in value.items()) + "\n}"
    else:
        text = "[\n" + ",\n".join(map(encode, value)) + "\n]"
    return text.encode("utf-8", "replace")


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _tabulate(rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the results as Parquet, or as CSV without pyarrow. Values that are no scalars become JSON text."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    plain = [
        {
            name: value
            if (value := row.get(name)) is None or isinstance(value, str | int | float | bool)
            else json.dumps(value, ensure_ascii=False, default=repr)
            for name in columns
        }
        for row in rows
    ]
    try:
        import pandas
        import pyarrow  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(plain)
        return {"llm-eval-results.csv": text.getvalue().encode("utf-8", "replace")}
    data = io.BytesIO()
    frame = pandas.DataFrame(plain, columns=columns)
    for name in columns:  # a column of several types is text
        if len({type(value) for value in frame[name] if value is not None and value == value}) > 1:
            frame[name] = [None if value is None else str(value) for value in frame[name]]
    frame.to_parquet(data)
    return {"llm-eval-results.parquet": data.getvalue()}


# Analysis of experiments by model: its display in terminal and notebook, and its report.

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
