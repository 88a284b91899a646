"""Report of an analysis as a file: HTML, or an archive with all results as JSON and Parquet or CSV."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from spanwise.evaluators.analysis.analysis_report import render_report
from spanwise.evaluators.analysis.compliance import MAPPING_NOTE
from spanwise.evaluators.analysis.result_analysis import AnalysisData
from spanwise.evaluators.experiments import Row, read_attached_example

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
