"""Set-level evaluators: they judge all runs of an experiment at once, read back from the store.

Runs come page by page, and of each only what an evaluator asks for is held: its columns, not the cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from assay.collector.records import Case, Target
from assay.collector.stores import Store
from assay.evaluators.engine._experiment import Experiment
from assay.evaluators.engine._tally import Tallies
from assay.evaluators.protocol import Evaluator
from assay.evaluators.scoring import case_of


async def score_set(experiment: Experiment, evaluators: Sequence[Evaluator], store: Store, tally: Tallies) -> None:
    """Let set-level evaluators judge an experiment, store what they say, and note it in the tally."""
    for evaluator in evaluators:
        feedback = await evaluator.evaluate_set(_cases(experiment, store), Target(experiment_id=experiment.id))
        tally.overall.update({outcome.key: outcome for outcome in feedback})
        await asyncio.to_thread(store.add_feedback, feedback)


def _cases(experiment: Experiment, store: Store) -> Iterator[Case]:
    record = experiment.record
    kind = store.dataset(record.dataset, record.dataset_version).kind if record.dataset_version is not None else "kv"
    return (case_of(row.trace, row.known_example, kind) for row in experiment.rows())
