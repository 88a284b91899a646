"""What an experiment was made with: code, versions, parameters. And whether a later run is made with the same."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import orjson

from spanwise.collector.records import JSON, Experiment
from spanwise.evaluators.engine._growth import shrunk
from spanwise.evaluators.engine._task import Task
from spanwise.evaluators.protocol import Evaluator, code_of, in_json
from spanwise.tracer.spans import SCOPE

# What must be the same for a run to count as done, with the task's code and what the caller gave as metadata; `_growth`
# says what may be more. Anything else may change between an interruption and `resume`: concurrency, timeout, retries,
# the commit, installed packages.
_DECIDES = ("task", "seed", "split")
_NAMED = 5  # changes that are listed


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
            "key": evaluator.key,
            "version": evaluator.version,
            "source": evaluator.make.source,
            "summary": evaluator.summary,
            "metrics": [metric.to_dict() for metric in evaluator.metrics],
            "origin": in_json(_origin(evaluator)),
            "code": {} if evaluator.spec else code_of(evaluator.function),
            "standards": list(evaluator.standards),
            **({"min_cases": evaluator.min_cases} if evaluator.min_cases else {}),
        }
        for evaluator in evaluators
    )


def _origin(evaluator: Evaluator) -> Mapping[str, Any]:
    """Where it comes from, with judges as what makes them others: the same in every process, and without keys."""
    parameters = evaluator.origin.get("init_parameters") or {}
    judges = getattr(evaluator.asking, "judges", ())
    if "judge" not in parameters or not judges:
        return dict(evaluator.origin)
    identities = [dict(judge.identity) for judge in judges]
    return {**evaluator.origin, "init_parameters": {**parameters, "judge": identities}}


def changes(record: Experiment, setup: Mapping[str, JSON], metadata: Mapping[str, JSON]) -> list[str]:
    """What is different now from when the experiment began, in words; [] when its runs still count. Not of examples."""
    then: Mapping[str, Any] = record.metadata.get("setup") or {}
    differences = [
        _was(name, then.get(name), setup.get(name)) for name in _DECIDES if then.get(name) != setup.get(name)
    ]
    differences += shrunk(then, setup)
    if changed := _changed(then.get("task_code") or {}, setup.get("task_code") or {}):
        differences.append(f"the task's code changed: {_listed(changed)}")
    given = plain(metadata)
    known = {name: value for name, value in record.metadata.items() if name not in ("setup", "totals")}
    if given:
        differences += [_was(f"metadata {n!r}", known.get(n), given.get(n)) for n in _changed(known, given)]
    return differences


def merged(before: Sequence[Mapping[str, JSON]], now: Sequence[Mapping[str, JSON]]) -> tuple[Mapping[str, JSON], ...]:
    """The evaluators of an experiment with those that are added. One that has changed since (its version, parameters
    or code) gets a `since_ns`: what it said before does not count any more.
    """
    known = {record["key"]: record for record in before}
    added = {record["key"]: _since(known.get(record["key"]), record) for record in now}
    return tuple({**known, **added}.values())


def _since(before: Mapping[str, JSON] | None, now: Mapping[str, JSON]) -> Mapping[str, JSON]:
    if before is None:
        return now
    same = all(plain(before.get(name)) == plain(now[name]) for name in ("version", "code"))
    since = before.get("since_ns") if same else time.time_ns()
    return {**now, "since_ns": since} if since else now


def _changed(then: Mapping[str, JSON], now: Mapping[str, JSON]) -> list[str]:
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _was(name: str, then: JSON, now: JSON) -> str:
    return f"{name} was {then!r} and is {now!r}"


def plain(value: Any) -> Any:
    """A value as it is read back from a store; what JSON does not have is its text."""
    return orjson.loads(orjson.dumps(value, default=_in_json, option=orjson.OPT_NON_STR_KEYS))


def _in_json(value: Any) -> Any:
    """Return numbers and lists for scalars and arrays of numpy and its like, else a text."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    return str(value)


def surroundings() -> Future[dict[str, JSON]]:
    """Versions, the commit of the working directory, whether files were changed since: found out in the background."""
    pool = ThreadPoolExecutor(1, "spanwise-setup")
    future = pool.submit(_surroundings)
    pool.shutdown(wait=False)
    return future


def _surroundings() -> dict[str, JSON]:
    versions: dict[str, JSON] = {"spanwise": SCOPE.version, "python": platform.python_version()}
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        versions |= {"git_commit": commit, "git_changed": bool(changed)}
    return versions


def _git(*arguments: str) -> str | None:
    try:
        finished = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()
