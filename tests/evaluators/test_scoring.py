"""Evaluators over cases and targets, apart from any experiment: batches, who looks at what, how often."""

import asyncio
from dataclasses import replace

import pytest

from spanwise.collector.records import Case, Target
from spanwise.evaluators import as_evaluator, evaluator
from spanwise.evaluators.interface import make_loop_waiter
from spanwise.evaluators.scoring import CaseBatcher, CaseScorer

CASES = [Case(outputs=n) for n in range(5)]
TARGET = Target(trace_id="1" * 32)


class Sizes:
    """A model that notes how many cases it got at once."""

    def __init__(self):
        self.sizes = []

    def __call__(self, outputs):
        raise AssertionError("batch is there")

    def batch(self, cases):
        self.sizes.append(len(cases))
        return [case.outputs for case in cases]


class Broken:
    """Stands where an evaluator stands, and breaks its promise to give outcomes."""

    async def evaluate_batch(self, cases, targets):
        raise LookupError("gone")


def batched(judge, size, cases=CASES):
    async def main():
        batcher = CaseBatcher(judge, size)
        return await asyncio.gather(*(batcher.score(case, TARGET) for case in cases))

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (32, [5])])
def test_batches_are_full_or_what_came_in_time(size, sizes):
    model = Sizes()
    outcomes = batched(as_evaluator(model), size)
    assert ([one.score for (one,) in outcomes], model.sizes) == ([0.0, 1.0, 2.0, 3.0, 4.0], sizes)


def test_nobody_waits_for_a_batch_that_was_not_scored():
    with pytest.raises(asyncio.CancelledError, match="the batch was not scored: LookupError"):
        batched(Broken(), 2)


class CancelsItself(Sizes):
    """A model whose first batch cancels the asyncio task that runs it."""

    async def batch(self, cases):
        if not self.sizes:
            asyncio.current_task().cancel()
        values = super().batch(cases)
        await asyncio.sleep(0)
        return values


def test_a_batch_that_is_cancelled_leaves_nobody_waiting():
    async def main():
        batcher = CaseBatcher(as_evaluator(CancelsItself()), 2)
        scoring = (batcher.score(case, TARGET) for case in CASES)
        return await asyncio.wait_for(asyncio.gather(*scoring, return_exceptions=True), 60)

    outcomes = asyncio.run(main())
    assert [type(one).__name__ for one in outcomes] == ["CancelledError"] * 2 + ["list"] * 3


def test_a_batch_that_is_cancelled_while_it_waits_for_its_turn_is_made_up_for():
    async def main():
        batcher = CaseBatcher(as_evaluator(Sizes()), 1)
        await batcher._batch_lock.acquire()
        scoring = asyncio.gather(*(batcher.score(case, TARGET) for case in CASES))
        await asyncio.sleep(0.001)
        for task in batcher._running:
            task.cancel()
        batcher._batch_lock.release()
        return [one.score for (one,) in await asyncio.wait_for(scoring, 60)]

    assert asyncio.run(main()) == [0.0, 1.0, 2.0, 3.0, 4.0]


def scored(evaluators, cases=CASES, **options):
    async def main():
        scoring, feedback = CaseScorer([*map(as_evaluator, evaluators)]), []
        for case in cases:
            feedback += await scoring.score_on_loop(case, TARGET, **options) + await scoring.score_concurrently(
                case, TARGET, **options
            )
        return feedback

    return asyncio.run(main())


def first(outputs):
    return outputs == 0


async def second(outputs):
    return outputs == 1


def test_plain_and_other_evaluators_look_at_every_case():
    said = [(one.key, one.score) for one in scored([first, second], CASES[:2])]
    assert said == [("first", True), ("second", False), ("first", False), ("second", True)]


def test_only_those_look_that_are_asked_to():
    judges = [as_evaluator(first), as_evaluator(second)]
    assert [one.key for one in scored(judges, CASES[:1], only=judges[1:])] == ["second"]
    assert scored(judges, only=()) == []


def test_an_evaluator_that_may_look_at_few_cases_skips_the_rest():
    said = scored([replace(evaluator(key="few")(first), max_cases=2)])
    assert [one.outcome for one in said] == ["score", "score", "skip", "skip", "skip"]
    assert said[-1].comment == "it has looked at 2 cases (max_dataset_rows)"


def test_on_a_thread_an_awaitable_is_waited_for_on_the_loop():
    async def main():
        loops = []

        async def inner():
            loops.append(asyncio.get_running_loop())
            return True

        scoring = CaseScorer([as_evaluator(lambda outputs: inner())])
        wait = make_loop_waiter(asyncio.get_running_loop())
        (feedback,) = await asyncio.to_thread(scoring.score_on_thread, CASES[0], TARGET, wait)
        return feedback.score, loops == [asyncio.get_running_loop()], scoring.has_concurrent

    assert asyncio.run(main()) == (True, True, False)
