"""What an experiment was made with: code, versions, parameters. And whether a later run is made with the same."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from assay.collector.records import JSON, Experiment
from assay.evaluators._evaluator import Evaluator
from assay.evaluators.engine._task import Task, code_of
from assay.tracer._runtime import SCOPE

# What must be the same for a run to count as done: anything else may change between an interruption and `resume`.
_DECIDES = ("dataset", "dataset_version", "task", "task_code", "repetitions", "seed", "split", "limit")


def setup_of(
    task: Task | None, parameters: Mapping[str, JSON], *, dataset: str, dataset_version: int | None
) -> dict[str, JSON]:
    """Plain values that describe how an experiment is made; what takes time to find out comes from `surroundings`."""
    return {
        "dataset": dataset,
        "dataset_version": dataset_version,
        "task": task.name if task else None,
        "task_code": code_of(task.function) if task else None,
        **parameters,
    }


def described(evaluators: Sequence[Evaluator]) -> tuple[Mapping[str, JSON], ...]:
    """Evaluators as they are kept with an experiment."""
    return tuple(
        {
            "key": one.key,
            "version": one.version,
            "summary": one.summary,
            "metrics": [metric.to_dict() for metric in one.metrics],
            "origin": dict(one.origin),
            "standards": list(one.standards),
        }
        for one in evaluators
    )


def changes(record: Experiment, setup: Mapping[str, JSON]) -> list[str]:
    """What is different now from when the experiment began, in words; [] when its runs still count."""
    then: Mapping[str, Any] = record.metadata.get("setup") or {}
    return [
        f"{name} was {then.get(name)!r} and is {setup.get(name)!r}"
        for name in _DECIDES
        if then.get(name) != setup.get(name)
    ]


def surroundings() -> Future[dict[str, JSON]]:
    """Versions, the commit of the working directory, whether files were changed since: found out in the background."""
    pool = ThreadPoolExecutor(1, "assay-setup")
    future = pool.submit(_surroundings)
    pool.shutdown(wait=False)
    return future


def _surroundings() -> dict[str, JSON]:
    found: dict[str, JSON] = {"assay": SCOPE.version, "python": platform.python_version()}
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        found |= {"git_commit": commit, "git_changed": bool(changed)}
    return found


def _git(*arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
