"""Baseline of `spanwise eval`: the earlier experiment named by --baseline, and its comparison with the new one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.collector.errors import Refused
from spanwise.collector.formatting import date_and_time
from spanwise.collector.operations import MAX_LIST_SIZE
from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Store
from spanwise.tracer.process_runtime import get_runtime

if TYPE_CHECKING:
    from spanwise.evaluators import Experiment
    from spanwise.evaluators.analysis import Comparison

LATEST, GIT = "latest", "git:"
_GIT_TIMEOUT_S = 10
_MAX_NAMED = 5  # experiments or commits that an error lists


@dataclass(frozen=True, slots=True)
class Baseline:
    """Experiment that a new one is compared with. `origin` tells how it was selected."""

    record: Record
    origin: str

    def __str__(self) -> str:
        started = date_and_time(self.record.started_ns)
        return f"baseline: {self.record.name} ({self.record.id[:8]}) of {started}, {self.origin}"

    def describe_dataset(self, record: Record) -> str:
        """Return whether the dataset of a later experiment is that of the baseline."""
        before, now = (
            each.dataset if each.dataset_version is None else f"{each.dataset}@{each.dataset_version}"
            for each in (self.record, record)
        )
        if before != now:
            return f"the dataset has changed since the baseline: it was {before} and is {now}"
        if record.dataset_version is None:
            return f"the dataset {now} is not stored, so it may have changed since the baseline"
        return f"the dataset has not changed since the baseline: {now}"


def resolve_baseline(store: Store, text: str, name: str, *, resume: bool = False) -> Baseline:
    """Return the baseline for a new experiment called `name`: `latest`, `git:REVISION`, or an experiment's id or name.

    Only finished experiments over all examples are baselines. With `resume`, the experiment that will be resumed is
    none. Raises `Refused` with the existing candidates.
    """
    if not text.strip():
        raise Refused(f"--baseline must be an experiment, latest or git:REVISION, got {text!r}")
    records = store.experiments(limit=MAX_LIST_SIZE)
    project = get_runtime().settings.project
    resumed = (record for record in records if record.name == name and record.project == project)
    if resume and (newest := next(resumed, None)):
        records = [record for record in records if record.id != newest.id]
    if text != LATEST and not text.startswith(GIT):
        return _find_named(records, text, project)
    same_name = [record for record in records if record.name == name and record.project == project]
    usable = [record for record in same_name if is_usable(record)]
    if not usable:
        unfinished = f" ({len(same_name)} unfinished)" if same_name else ""
        raise Refused(
            f"--baseline {text}: there is no finished experiment {name!r} in {store.where}{unfinished}; run the "
            f"evaluation once without --baseline, or name one of: {_list_names(records)}"
        )
    if text == LATEST:
        return Baseline(usable[0], _describe_newest(len(usable)))
    return _find_at_revision(usable, text, name)


def is_usable(record: Record) -> bool:
    """Return whether an experiment can be a baseline: it is finished, and was not limited to some examples by `only`."""
    return record.status == "finished" and not (record.metadata.get("setup") or {}).get("only")


def _find_named(records: Sequence[Record], text: str, project: str) -> Baseline:
    """Return the baseline with an id or a name; a name is looked up in the project first."""
    matches: Sequence[tuple[Callable[[Record], bool], str]] = (
        (lambda record: record.id == text, "named by its id"),
        (lambda record: record.name == text and record.project == project, ""),
        (lambda record: record.name == text, "the newest of this name in another project"),
        (lambda record: record.id.startswith(text), "named by its id"),
    )
    for is_match, origin in matches:
        if matching := [record for record in records if is_match(record)]:
            if usable := [record for record in matching if is_usable(record)]:
                return Baseline(usable[0], origin or _describe_newest(len(usable)))
            record = matching[0]
            state = "covers only some examples (--only)" if record.status == "finished" else f"is {record.status}"
            raise Refused(
                f"--baseline {text}: experiment {record.name!r} ({record.id[:8]}) {state}; a baseline must be a finished "
                f"run over all examples, such as: {_list_names(records)}"
            )
    raise Refused(f"--baseline {text}: there is no such experiment; known are: {_list_names(records)}")


def _describe_newest(count: int) -> str:
    if count == 1:
        return "the only finished experiment of this name"
    return f"the newest of {count} finished experiments of this name"


def _list_names(records: Sequence[Record]) -> str:
    names = list(dict.fromkeys(record.name for record in records if is_usable(record)))
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more if names else "none"


def _find_at_revision(records: Sequence[Record], text: str, name: str) -> Baseline:
    commit = _resolve_revision(text)
    at_commit = [record for record in records if _get_setup(record).get("git_commit") == commit]
    if not at_commit:
        known = dict.fromkeys(
            f"{str(found)[:8]} ({date_and_time(record.started_ns)})"
            for record in records
            if (found := _get_setup(record).get("git_commit"))
        )
        raise Refused(
            f"--baseline {text}: there is no finished experiment {name!r} at commit {commit[:8]}; run the evaluation at "
            f"that commit, or use another baseline; commits with one: {', '.join([*known][:_MAX_NAMED]) or 'none'}"
        )
    clean = [record for record in at_commit if not _get_setup(record).get("git_changed")]
    changed = len(at_commit) - len(clean)
    which = "the newest" if not clean or not changed else "the newest without uncommitted changes"
    if len(at_commit) == 1:
        origin = f"the only finished experiment at commit {commit[:8]}"
    else:
        origin = f"{which} of {len(at_commit)} finished experiments at commit {commit[:8]}"
    if changed:
        origin += f" ({changed} with uncommitted changes)"
    return Baseline((clean or at_commit)[0], origin)


def _get_setup(record: Record) -> Mapping[str, Any]:
    return record.metadata.get("setup") or {}


def _resolve_revision(text: str) -> str:
    """Return the commit of a git revision in the current folder. Raises `Refused`."""
    revision = text.removeprefix(GIT)
    command = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Refused(f"--baseline {text}: git cannot be run: {error}") from None
    if found.returncode != 0 or not revision or revision.startswith("-"):
        raise Refused(
            f"--baseline {text}: git knows no revision {revision!r} in this folder; fetch it, for example with "
            "`git fetch origin main` and git:origin/main, or check out with the full history"
        )
    return found.stdout.strip()


def compare_with_baseline(
    baseline: Baseline, experiment: Experiment, *, margin: Mapping[str, float], primary: Sequence[str] | None
) -> Comparison:
    """Return the comparison of an experiment with its baseline. Options for keys without any score are left out."""
    from spanwise.evaluators import compare

    if experiment.id == baseline.record.id:
        raise Refused(f"the baseline {baseline.record.name!r} is the experiment itself; name an earlier one")
    sides = baseline.record.id, experiment
    comparison = compare(*sides, store=experiment.store)
    if not margin and primary is None:
        return comparison
    known = {*comparison.keys}
    return compare(
        *sides,
        store=experiment.store,
        margin={key: value for key, value in margin.items() if key in known},
        primary=None if primary is None else [key for key in primary if key in known],
    )
