"""Set-level evaluators: they judge all runs of an experiment at once, read back from the store.

Runs come page by page, and of each only what an evaluator asks for is held: its columns, not the cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from assay.collector.records import Case, Target
from assay.collector.stores import Store
from assay.evaluators.datasets._kinds import view, view_outputs
from assay.evaluators.engine._experiment import Experiment, Row
from assay.evaluators.engine._tally import Tallies
from assay.evaluators.protocol._evaluator import Evaluator

_WHOLE_TRACE = frozenset({"run", "runs", "trace", "case", "cases"})


async def score_set(experiment: Experiment, evaluators: Sequence[Evaluator], store: Store, tally: Tallies) -> None:
    """Let set-level evaluators judge an experiment, store what they say, and note it in the tally."""
    for evaluator in evaluators:
        cases = _cases(experiment, store, (*evaluator.needs, *evaluator.uses))
        feedback = await evaluator.evaluate_set(cases, Target(experiment_id=experiment.id))
        tally.overall.update({one.key: one for one in feedback})
        await asyncio.to_thread(store.add_feedback, feedback)


def _cases(experiment: Experiment, store: Store, needs: Sequence[str]) -> Iterator[Case]:
    """The runs as cases that hold what is needed: without their spans, unless those are asked for."""
    record = experiment.record
    kind = store.dataset(record.dataset, record.dataset_version).kind if record.dataset_version is not None else "kv"
    whole = bool(_WHOLE_TRACE & set(needs))
    return (_case(row, kind, whole) for row in experiment.rows())


def _case(row: Row, kind: str, whole: bool) -> Case:
    example = row.known_example
    fields = view(example, kind)
    return Case(
        example=example,
        trace=row.trace if whole else None,
        inputs=fields["inputs"],
        outputs=view_outputs(row.outputs, kind),
        reference_outputs=fields["reference_outputs"],
        documents=row.trace.documents or example.documents,
        expected_documents=example.expected_documents,
        conditions=example.conditions,
        guidelines=example.guidelines,
        history=fields["history"],
        metadata=example.metadata,
    )
