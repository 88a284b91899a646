"""Report of an analysis as a file: HTML, or an archive with all results as JSON and Parquet or CSV."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spanwise.evaluators.analysis.analysis_report import render_report
from spanwise.evaluators.analysis.compliance import MAPPING_NOTE
from spanwise.evaluators.analysis.leaderboards import PromptHeatmap
from spanwise.evaluators.analysis.result_analysis import AnalysisData
from spanwise.evaluators.experiments import Experiment


def write_report(analysis: AnalysisData, path: Path) -> Path:
    """Write the report: HTML, or an archive (H2O's `work-dir-archive`) if the path ends in ".zip".

    Raises `ValueError` for another ending.
    """
    if path.suffix.lower() in (".html", ".htm"):
        path.write_text(render_report(analysis), "utf-8")
    elif path.suffix.lower() == ".zip":
        _write_archive(analysis, path)
    else:
        raise ValueError(f"a report must end in .html or .zip, got {str(path)!r}")
    return path


def _write_archive(analysis: AnalysisData, path: Path) -> None:
    files: dict[str, bytes] = {"report.html": render_report(analysis).encode()}
    results = list_results(analysis)
    files["llm-eval-results.json"] = _dump(results)
    files |= _tabulate(results)
    board = analysis.leaderboard
    files["llm-heatmap-leaderboard.json"] = _dump(
        {
            "models": board.models,
            "keys": board.keys,
            "ranks": board.ranks,
            "cells": [asdict(cell) for cell in board.cells.values()],
            "prompts": {key: _list_prompt_scores(analysis.prompts(key)) for key in board.keys},
        }
    )
    files["llm-bool-leaderboard.json"] = _dump([asdict(each) for each in analysis.boolean_leaderboards])
    files["problems.json"] = _dump([{**asdict(each), "severe": each.severe} for each in analysis.problems])
    files["unusable-thresholds.json"] = _dump([asdict(each) for each in analysis.unusable_thresholds])
    files["insights.json"] = _dump([asdict(each) for each in analysis.insights])
    files["compliance.json"] = _dump(
        {"note": MAPPING_NOTE, "standards": [asdict(each) for each in analysis.compliance]}
    )
    files["trade-offs.json"] = _dump([asdict(each) for each in analysis.trade_offs])
    files["perturbations.json"] = _dump(_list_robustness(analysis))
    files["experiments.json"] = _dump([asdict(record) for record in analysis.records])
    manifest = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    files["manifest.json"] = _dump(manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def list_results(analysis: AnalysisData) -> list[dict[str, Any]]:
    """Return one dict per run: model, example, inputs, outputs, references, error, and one entry per key."""
    models = {run.trace_id: model for model, runs in analysis.results.runs.items() for run in runs}
    rows = []
    for store, record in analysis.results.sides:
        rows += [
            {"model": model, "experiment": record.name, **row.to_dict()}
            for row in Experiment.load(store, record.id).rows()
            if (model := models.get(row.trace.trace_id)) is not None
        ]
    return rows


def _list_robustness(analysis: AnalysisData) -> list[dict[str, Any]]:
    """Return per model, kind of perturbation and key the share of stable base cases, and the flips."""
    return [
        {"model": model, **asdict(each), "share": each.share, "interval": each.interval}
        for model, robustness in analysis.robustness.items()
        for each in robustness.values()
    ]


def _list_prompt_scores(board: PromptHeatmap) -> list[dict[str, Any]]:
    return [
        {"model": model, "example_id": example_id, "score": score}
        for (model, example_id), score in board.scores.items()
    ]


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1, default=_encode).encode("utf-8", "replace")


def _encode(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else repr(value)


def _tabulate(rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the results as Parquet, or as CSV without pyarrow. Values that are no scalars become JSON text."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    plain = [{name: _flatten(row.get(name)) for name in columns} for row in rows]
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


def _flatten(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)
