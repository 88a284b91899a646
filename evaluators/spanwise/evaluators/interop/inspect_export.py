"""Export of an experiment to an Inspect log (`.eval`).

The archive has the members that Inspect writes: header, samples and summaries. An experiment that was imported from
Inspect keeps its ids and the values of its scores.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Feedback, Run
from spanwise.collector.records import Experiment as Record
from spanwise.evaluators.experiments import Experiment, Row
from spanwise.evaluators.interface import StoreLocation
from spanwise.evaluators.interop.inspect_import import HEADER, SAMPLES, START

LOG_VERSION = 2
_ROLES = ("system", "user", "assistant")
_STATUSES: Mapping[str, str] = {"finished": "success", "interrupted": "cancelled", "running": "started"}
_SUMMARY_FIELDS = ("id", "epoch", "input", "target", "metadata", "scores", "model_usage", "started_at", "completed_at")


def export_inspect_log(store: StoreLocation, experiment: str, path: str | os.PathLike[str]) -> int:
    """Write an experiment, given by id or name, as an Inspect log, and return the number of runs.

    Outputs and inputs that are no texts are written as JSON. Scores are values of Inspect's scorers; errors and skips of
    evaluators are in the metadata of their sample. The file has a temporary name until it is complete. Raises `Refused`
    if the file exists or has another extension than `.eval`, and `NotFound`.
    """
    return write_inspect_log(Experiment.load(store, experiment), Path(path))


def write_inspect_log(experiment: Experiment, path: Path) -> int:
    """Write a loaded experiment as an Inspect log; see `export_inspect_log`."""
    if path.suffix.lower() != ".eval":
        raise Refused(f"the name of an Inspect log must end with .eval, got {path.name!r}")
    if path.exists():
        raise Refused(f"file {str(path)!r} already exists: choose another name")
    temporary = path.with_name(f"{path.name}.part")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            count = _write_members(archive, experiment)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write_members(archive: zipfile.ZipFile, experiment: Experiment) -> int:
    log = _LogTotals(experiment.record)
    head = {"version": LOG_VERSION, "eval": log.make_spec(), "plan": {}}
    archive.writestr(START, _encode(head))
    summaries: list[JSON] = []
    names = set[str]()
    for row in experiment.rows():
        sample = _make_sample(row)
        name = f"{SAMPLES}{quote(str(sample['id']), safe=' ')[:150]}_epoch_{sample['epoch']}.json"
        if name in names:  # another sample with this id and epoch, or with an id that is equal when shortened
            sample["id"] = f"{sample['id']} {row.trace.trace_id}"
            name = f"{SAMPLES}{row.trace.trace_id}_epoch_{sample['epoch']}.json"
        names.add(name)
        archive.writestr(name, _encode(sample))
        summary = {field: sample[field] for field in _SUMMARY_FIELDS if field in sample}
        error = sample.get("error")
        summaries.append({**summary, "completed": True, **({"error": error["message"]} if error else {})})
        log.add(sample, row)
    archive.writestr("summaries.json", _encode(summaries))
    archive.writestr(HEADER, _encode({**head, "eval": log.make_spec(), **log.make_end()}))
    return log.count


def _make_sample(row: Row) -> dict[str, Any]:
    """Return a run as a sample of Inspect."""
    root, example = row.trace.root, row.known_example
    known = example.metadata.get("inspect")
    origin: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    given = row.inputs["input"] if isinstance(row.inputs, Mapping) and set(row.inputs) == {"input"} else row.inputs
    messages, reference = _find_messages(row.trace.runs, given), row.reference_outputs
    target: str | list[str] = "" if reference is None else _to_text(reference)
    if isinstance(reference, list) and reference and all(isinstance(each, str) for each in reference):
        target = reference
    model, usages = _sum_usage(row.trace.runs)
    scores, failures = _make_scores(row.feedback.values())
    metadata = {name: value for name, value in example.metadata.items() if name != "inspect"}
    sample: dict[str, Any] = {
        "id": origin.get("sample_id") if isinstance(origin.get("sample_id"), str | int) else row.example_id,
        "epoch": row.repetition + 1,
        "input": given if isinstance(given, str) or _is_chat(given) else _to_text(given),
        "target": target,
        "messages": messages,
        "output": {"model": model or "", "choices": [], "completion": ""},
        "scores": scores,
        "metadata": {**metadata, **({"spanwise_errors": failures} if failures else {})},
        "store": {},
        "events": [],
        "model_usage": usages,
        "started_at": _to_iso(root.start_ns),
        "completed_at": _to_iso(root.end_ns),
        "total_time": root.duration_ns / 1e9,
        "uuid": row.trace.trace_id,
    }
    sample |= {name: origin[name] for name in ("choices", "files", "setup") if origin.get(name)}
    if row.error is not None:
        traces = [
            str(event.attributes.get("exception.stacktrace", "")) for event in root.events if event.name == "exception"
        ]
        stack = traces[-1] if traces else ""
        sample["error"] = {"message": row.error, "traceback": stack, "traceback_ansi": stack}
    elif row.outputs is not None:
        reply = {"role": "assistant", "content": _to_text(row.outputs)}
        usage = usages.get(model) if model else None
        choice = {"message": reply, "stop_reason": "stop"}
        sample["messages"] = [*messages, reply]
        sample["output"] |= {"choices": [choice], "completion": reply["content"], **({"usage": usage} if usage else {})}
    return sample


def _find_messages(runs: Sequence[Run], given: JSON) -> list[JSON]:
    """Return the messages of the first model run that are valid in Inspect, else the inputs as a user's message."""
    for run in runs:
        messages = run.inputs.get("messages") if run.kind == "llm" and isinstance(run.inputs, Mapping) else None
        if isinstance(messages, list) and _is_chat(messages):
            return [{"role": each["role"], "content": each["content"]} for each in messages]
    if _is_chat(given):
        return list(given)
    return [{"role": "user", "content": _to_text(given)}]


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(each, Mapping) and each.get("role") in _ROLES and isinstance(each.get("content"), str)
            for each in value
        )
    )


def _sum_usage(runs: Sequence[Run]) -> tuple[str | None, dict[str, dict[str, int]]]:
    """Return the first model of a trace, and the tokens by model. Cached tokens are counted apart, as in Inspect."""
    first: str | None = None
    usages: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        if run.model is None:
            continue
        first = first or run.model
        if (usage := run.usage) is None:
            continue
        read, write = usage.details.get("cache_read", 0), usage.details.get("cache_creation", 0)
        counts = {
            "input_tokens": max(0, usage.input_tokens - read - write),
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        extra = {"input_tokens_cache_read": read, "input_tokens_cache_write": write}
        extra["reasoning_tokens"] = usage.details.get("reasoning", 0)
        usages[run.model].update({**counts, **{name: count for name, count in extra.items() if count}})
    return first, {model: dict(counts) for model, counts in usages.items()}


def _make_scores(feedback: Iterable[Feedback]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the scores by scorer, and the errors and skips by key. Values of one imported score are joined again."""
    scores: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for each in feedback:
        if each.outcome != "score":
            failures[each.key] = each.error or f"skipped: {each.comment}"
            continue
        known = each.metadata.get("inspect")
        origin: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
        value = origin.get("value", each.label if each.score is None else each.score)
        name, part = str(origin.get("scorer", each.key)), origin.get("part")
        fields = {"answer": origin.get("answer"), "explanation": each.comment, "metadata": origin.get("metadata")}
        if "value" not in origin and each.score is not None and each.label is not None:
            fields["metadata"] = {"label": each.label}
        score = scores.setdefault(name, {name: field for name, field in fields.items() if field is not None})
        if part is None:
            score["value"] = value
        else:
            score.setdefault("value", {})[str(part)] = value
    return scores, failures


class _LogTotals:
    """Totals of a log that is being written: models, samples, scores."""

    def __init__(self, record: Record) -> None:
        self._record = record
        known = record.metadata.get("inspect")
        self._origin: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
        self.count = self._completed = 0
        self._epochs = 1
        self._sample_ids: dict[str | int, None] = {}
        self._usages: dict[str, Counter[str]] = defaultdict(Counter)
        self._sums: dict[str, list[float]] = {}

    def add(self, sample: Mapping[str, Any], row: Row) -> None:
        self.count += 1
        self._completed += "error" not in sample
        self._epochs = max(self._epochs, sample["epoch"])
        self._sample_ids[sample["id"]] = None
        for model, counts in sample["model_usage"].items():
            self._usages[model].update(counts)
        for key, each in row.feedback.items():
            if each.score is not None:
                self._sums.setdefault(key, []).append(float(each.score))

    def make_spec(self) -> dict[str, JSON]:
        """Return the facts about the evaluation, as known so far."""
        setup = self._record.metadata.get("setup") or {}
        model = self._origin.get("model") or next(iter(self._usages), None) or setup.get("task") or "unknown"
        return {
            "eval_id": str(self._origin.get("eval_id") or self._record.id),
            "run_id": self._record.id,
            "created": _to_iso(self._record.started_ns),
            "task": self._record.name,
            "task_id": str(self._origin.get("task_id") or self._record.dataset),
            "task_version": 0,
            "dataset": {
                "name": self._record.dataset,
                "samples": len(self._sample_ids),
                "sample_ids": list(self._sample_ids),
            },
            "model": str(model),
            "config": {"epochs": self._epochs},
            "metadata": {"spanwise_experiment": self._record.id},
        }

    def make_end(self) -> dict[str, JSON]:
        """Return status, results and statistics."""
        scores = [
            {
                "name": key,
                "scorer": key,
                "scored_samples": len(values),
                "metrics": {"mean": {"name": "mean", "value": sum(values) / len(values)}},
            }
            for key, values in self._sums.items()
        ]
        ended_ns = self._record.ended_ns or self._record.started_ns
        return {
            "status": _STATUSES[self._record.status],
            "results": {"total_samples": self.count, "completed_samples": self._completed, "scores": scores},
            "stats": {
                "started_at": _to_iso(self._record.started_ns),
                "completed_at": _to_iso(ended_ns),
                "model_usage": {model: dict(counts) for model, counts in self._usages.items()},
            },
        }


def _to_text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _to_iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat()


def _encode(value: JSON) -> bytes:
    return json.dumps(value, ensure_ascii=True, default=str).encode()
