"""Result files: the dataset of an experiment with all metrics of one evaluator, as JSON Lines.

H2O Eval Studio calls this file the LLM result. Each line is a run: the fields of its example, the answer, the retrieved
documents, and the metrics. The lines have the form of a dataset file, so `evaluate()` and `spanwise datasets` read them.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from spanwise.collector.records import JSON, Feedback
from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Store
from spanwise.evaluators.datasets import to_row
from spanwise.evaluators.experiments.experiment_rows import Row
from spanwise.evaluators.interface import PARAMETERS_KEY, Metric, to_plain
from spanwise.evaluators.scoring import make_case

RESULTS_FOLDER = "spanwise-results"
_MAX_NAME_BYTES = 200  # file systems allow 255


def get_results_path(store: Store, experiment_id: str, evaluator: str) -> Path:
    """Return the path of the file that `save_llm_result=True` writes: `spanwise-results/EXPERIMENT/EVALUATOR.jsonl`.

    The folder is next to the store's file. For any other store, such as one over HTTP, it is in the current directory.
    """
    where = store.where
    is_file = "://" not in where and Path(where).is_file()
    parent = Path(where).resolve().parent if is_file else Path.cwd()
    name = quote(evaluator, safe=" ")
    if len(name) > _MAX_NAME_BYTES:
        name = f"{name[:_MAX_NAME_BYTES]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return parent / RESULTS_FOLDER / experiment_id / f"{name}.jsonl"


def list_saving_evaluators(record: Record) -> list[str]:
    """Return the keys of the recorded evaluators that were made with `save_llm_result=True`."""
    return [
        str(evaluator["key"])
        for evaluator in record.evaluators
        if ((evaluator.get("origin") or {}).get("init_parameters") or {}).get("save_llm_result") is True
    ]


def write_results(
    path: Path, rows: Iterable[Row], overall: Mapping[str, Feedback], record: Record, evaluator: str | None
) -> int:
    """Write the results of one evaluator, or of all for None, and return the number of runs.

    The file replaces an existing one after all lines are written. Only its owner can read it.

    Set-level scores (`overall`) are repeated in each line. Raises `ValueError` for an unknown evaluator.
    """
    belongs = _make_filter(record, evaluator)
    metrics = {
        metric["key"]: Metric.from_dict(metric) for each in record.evaluators for metric in each.get("metrics", ())
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = 0
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".jsonl", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for row in rows:
                runs += 1
                feedback = {**row.feedback, **overall}
                chosen = {key: each for key, each in feedback.items() if belongs(each)}
                file.write(_encode({**_describe_run(row), "results": dict(_describe_results(chosen, metrics))}))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return runs


def _make_filter(record: Record, evaluator: str | None) -> Callable[[Feedback], bool]:
    """Return the function that tells whether feedback is by the evaluator.

    Keys that it returned without declaring them have its version.
    """
    if evaluator is None:
        return lambda feedback: True
    recorded = {str(each["key"]): each for each in record.evaluators}
    if evaluator not in recorded:
        known = ", ".join(recorded) or "none"
        raise ValueError(f"experiment {record.name!r} has no evaluator {evaluator!r:.100}; it has: {known}")
    owners = {metric["key"]: key for key, each in recorded.items() for metric in each.get("metrics", ())}
    version = recorded[evaluator].get("version")
    return lambda feedback: owners[feedback.key] == evaluator if feedback.key in owners else feedback.version == version


def _describe_run(row: Row) -> dict[str, JSON]:
    """Return the fields of the example with the answer and the retrieved documents, and those of the run."""
    case = make_case(row.trace, row.known_example)
    example = replace(row.known_example, outputs=row.outputs, documents=case.documents)
    run = {
        "trace_id": row.trace.trace_id,
        "repetition": row.repetition,
        "error": row.error,
        "duration_ms": row.trace.root.duration_ns / 1e6,
    }
    return {**to_row(example), "run": run}


def _describe_results(
    feedback: Mapping[str, Feedback], metrics: Mapping[str, Metric]
) -> Iterator[tuple[str, dict[str, JSON]]]:
    """Yield each key with its score, without the fields that are empty."""
    for key, each in feedback.items():
        metric = metrics.get(key) or Metric(key)
        values: dict[str, Any] = {
            "display_name": metric.display_name,
            "outcome": each.outcome,
            "score": each.score,
            "label": each.label,
            "passed": None if each.score is None else metric.passes(each.score),
            "comment": each.comment,
            "error": each.error,
            "metadata": {name: value for name, value in each.metadata.items() if name != PARAMETERS_KEY},
        }
        yield key, {name: value for name, value in values.items() if value not in (None, "", {})}


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # values that JSON does not have, such as lone surrogates
        return orjson.dumps(to_plain(line), option=orjson.OPT_APPEND_NEWLINE)
