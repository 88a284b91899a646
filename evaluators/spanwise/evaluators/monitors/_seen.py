"""A hash of what evaluators see of a case: if it stays the same, there is nothing to be scored anew."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from spanwise.collector.former_names import former_names
from spanwise.collector.records import Case, Run, canonical
from spanwise.evaluators.protocol import Evaluator

_PLAIN = ("inputs", "outputs", "documents", "reference_outputs", "history", "metadata")
_FIELDS = frozenset((*_PLAIN, "expected_documents", "conditions", "guidelines"))


def hash_of(case: Case, evaluators: Sequence[Evaluator]) -> str:
    """32 hex digits. Over the values of the case, where that is all that they ask for; else over all of its runs."""
    asked = {name for evaluator in evaluators for name in (*evaluator.needs, *evaluator.uses)}
    seen: dict[str, Any] = {name: getattr(case, name) for name in _PLAIN}
    seen["root"] = None if case.run is None else (case.run.status, case.run.error)
    if not asked <= _FIELDS and case.trace is not None:
        seen["runs"] = [_plain(run) for run in case.trace.runs]
    return hashlib.sha256(canonical(seen)).hexdigest()[:32]


def _plain(run: Run) -> dict[str, Any]:
    fields = {name: getattr(run, name) for name in Run.__slots__}
    return {**fields, "attributes": former_names(run.attributes), "resource": former_names(run.resource)}
