"""Set-level evaluators: they judge all runs of an experiment at once, read back from the store.

Runs come page by page, and of each only what an evaluator asks for is held: its columns, not the cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from spanwise.collector.records import Case, Target
from spanwise.collector.stores import Store
from spanwise.evaluators.engine._experiment import Experiment
from spanwise.evaluators.engine._tally import Tallies
from spanwise.evaluators.protocol import Evaluator, Judgements, judging
from spanwise.evaluators.scoring import case_of


async def score_set(experiment: Experiment, evaluators: Sequence[Evaluator], store: Store, tally: Tallies) -> None:
    """Let set-level evaluators judge an experiment, store what they say, and note it in the tally."""
    judgements, target = Judgements(), Target(experiment_id=experiment.id)
    for evaluator in evaluators:
        named = {"evaluator": evaluator.make.name, "version": evaluator.version, "target": target}
        with judging(judgements=judgements, inside=None, **named):
            feedback = await evaluator.evaluate_set(_cases(experiment, store), target)
        tally.overall.update({outcome.key: outcome for outcome in feedback})
        tally.add_judgements(feedback)
        await asyncio.to_thread(store.append, judgements.take(), feedback)


def _cases(experiment: Experiment, store: Store) -> Iterator[Case]:
    record = experiment.record
    kind = store.dataset(record.dataset, record.dataset_version).kind if record.dataset_version is not None else "kv"
    return (case_of(row.trace, row.known_example, kind) for row in experiment.rows())
