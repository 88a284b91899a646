"""Whatever an evaluator raises is an outcome: no hang, no lost row, and nobody else's score is lost for it."""

import asyncio
import gc
import threading
import time

import pytest

from spanwise.evaluators import aevaluate, ascore, evaluate, evaluator, score

DATA = [{"inputs": str(n)} for n in range(6)]


class Odd(BaseException):
    """Derives from none of the usual ones."""


class Mute(BaseException):
    """Cannot say what it is."""

    def __str__(self):
        raise Odd

    __repr__ = __str__


def fails():
    pytest.fail("no")


def cancels():
    raise asyncio.CancelledError


def ends():
    raise GeneratorExit


def stops():
    raise StopIteration(1)


def leaves():
    raise SystemExit(3)


def is_odd():
    raise Odd("odd")


def is_mute():
    raise Mute


RAISING = [fails, cancels, ends, stops, leaves, is_odd, is_mute]


DEADLINE = 60  # seconds


def in_time(call):
    """What a call returns or raises; a failure when it hangs."""
    ended = []

    def work():
        try:
            ended.append((call(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert ended, "it hangs"
    returned, error = ended[0]
    if error is not None:
        raise error
    return returned


def fine(outputs):
    return True


async def wait_task(inputs):
    return inputs


def plain_task(inputs):
    return inputs


def on_three(raising, value):
    if value == "3":
        raising()
    return True


class Model:
    """Scores in batches: `at` says whether it fails for the whole batch, or hands the exception over as a value."""

    def __init__(self, raising, *, whole):
        self.raising, self.whole = raising, whole

    def __call__(self, outputs):
        raise AssertionError("batch is there")

    def batch(self, cases):
        return [self.one(case) for case in cases]

    def one(self, case):
        try:
            return on_three(self.raising, case.outputs)
        except BaseException as error:
            if self.whole:
                raise
            return error


def judges(raising):
    """Every way in which an evaluator can be written."""

    def slow(outputs):
        time.sleep(0.012)
        return on_three(raising, outputs)

    async def later(outputs):
        return on_three(raising, outputs)

    def returns_awaitable(outputs):
        return later(outputs)

    def prepared(outputs):
        return True

    def check(outputs):
        return on_three(raising, outputs)

    def where(case):
        return on_three(raising, case.outputs)

    return [
        evaluator(key="plain")(check),
        evaluator(key="slow")(slow),
        evaluator(key="async")(later),
        evaluator(key="awaitable")(returns_awaitable),
        evaluator(key="limited", timeout=60)(check),
        evaluator(key="prepared", prepare_data=lambda outputs: {"outputs": on_three(raising, outputs)})(prepared),
        evaluator(key="mapped", map={"outputs": where})(prepared),
        evaluator(key="batch")(Model(raising, whole=True)),
        evaluator(key="values")(Model(raising, whole=False)),
        evaluator(key="mapped_batch", map={"outputs": where})(Model(raising, whole=False)),
    ]


@pytest.mark.process
@pytest.mark.parametrize("task", [wait_task, plain_task])
@pytest.mark.parametrize("raising", RAISING, ids=lambda raising: raising.__name__)
def test_every_row_gets_every_outcome(store, raising, task):
    summary = in_time(lambda: evaluate(DATA, task, [*judges(raising), fine], store=store, progress=False).summary())
    assert (summary.runs, summary.failed, summary["fine"].n) == (6, 0, 6)
    keys = [judge.key for judge in judges(raising)]
    assert {key: (summary[key].n, summary[key].failed) for key in keys} == dict.fromkeys(keys, (5, 1))


@pytest.mark.process
@pytest.mark.parametrize("raising", RAISING, ids=lambda raising: raising.__name__)
def test_every_row_gets_every_outcome_when_it_is_scored_later_and_from_async_code(store, raising):
    async def main():
        experiment = await aevaluate(DATA, wait_task, store=store, progress=False)
        return (await aevaluate(experiment, None, [*judges(raising), fine], store=store, progress=False)).summary()

    summary = in_time(lambda: asyncio.run(main()))
    keys = [judge.key for judge in judges(raising)]
    assert (summary.runs, summary["fine"].n) == (6, 6)
    assert {key: (summary[key].n, summary[key].failed) for key in keys} == dict.fromkeys(keys, (5, 1))


@pytest.mark.parametrize("raising", RAISING, ids=lambda raising: raising.__name__)
def test_set_level_evaluators_and_evaluators_by_hand_give_outcomes_too(store, raising):
    whole = evaluator(key="whole", summary=True)(lambda outputs: raising())
    experiment = evaluate(DATA, plain_task, summary_evaluators=[whole], store=store, progress=False)
    assert (experiment.summary().runs, experiment.summary().overall["whole"].outcome) == (6, "error")
    for judge in judges(raising):
        assert [one.outcome for one in score(judge, outputs="3")] == ["error"]
        assert [one.outcome for one in asyncio.run(ascore(judge, outputs="3"))] == ["error"]


def test_an_evaluator_that_cancels_its_own_asyncio_task_costs_no_other_outcome(store):
    async def cancels_itself(outputs):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def fine_later(outputs):
        return True

    judged = [cancels_itself, fine_later, fine]
    summary = evaluate(DATA, plain_task, judged, store=store, progress=False).summary()
    assert [(summary[one.__name__].n, summary[one.__name__].failed) for one in judged] == [(0, 6), (6, 0), (6, 0)]
    assert [one.error for one in score(cancels_itself, outputs="by hand")] == ["CancelledError"]


def test_an_async_task_that_cancels_its_worker_is_not_lost_silently(store):
    async def task(inputs):
        if inputs == "3":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return inputs

    with pytest.raises(RuntimeError, match="cancelled the asyncio task that ran it"):
        evaluate(DATA, task, store=store, progress=False)
    assert store.experiments()[0].status == "interrupted"


def test_an_evaluation_that_is_cancelled_from_outside_is_not_lost_silently(store):
    async def main():
        caller = asyncio.current_task()

        async def cancels_all(outputs):
            for task in asyncio.all_tasks() - {caller} if outputs == "3" else ():
                task.cancel()
            await asyncio.sleep(0)
            return True

        await aevaluate(DATA, plain_task, [cancels_all], store=store, progress=False)

    with pytest.raises(RuntimeError, match="cancelled the asyncio task that scores a run"):
        asyncio.run(main())
    assert store.experiments()[0].status == "interrupted"


def test_what_an_exception_cannot_say_is_named_by_its_class(store):
    (row, *_) = evaluate(DATA, plain_task, [lambda outputs: is_mute()], store=store, progress=False).rows()
    (feedback,) = row.trace.feedback
    assert (feedback.outcome, feedback.error) == ("error", "Mute")
    assert "in is_mute" in feedback.metadata["traceback"]


@pytest.mark.process
@pytest.mark.parametrize("task", [wait_task, plain_task])
@pytest.mark.parametrize("slow", [0, 0.012])
def test_ctrl_c_inside_an_evaluator_still_ends_the_run_resumably(store, caplog, task, slow):
    asked = []

    def interrupted(outputs):
        time.sleep(slow)
        asked.append(outputs)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return True

    def run(**more):
        return evaluate(DATA, task, [interrupted], name="x", store=store, concurrency=1, progress=False, **more)

    with pytest.raises(KeyboardInterrupt):
        run()
    gc.collect()
    assert (store.experiment("x").status, caplog.text) == ("interrupted", "")
    assert run(resume=True).summary()["interrupted"].n == 6


def test_cancelling_the_caller_ends_the_run_and_its_evaluators(store):
    async def main():
        started, ended = asyncio.Event(), []

        async def waits(outputs):
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(outputs)

        running = asyncio.create_task(aevaluate(DATA[:1], plain_task, [waits], name="x", store=store, progress=False))
        await asyncio.wait_for(started.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)
        return ended

    assert asyncio.run(main()) == ["0"]
    assert store.experiment("x").status == "interrupted"


def test_a_model_that_is_never_reached_again_leaves_no_case_waiting(store):
    class Stops:
        def __call__(self, outputs):
            raise AssertionError("batch is there")

        async def batch(self, cases):
            raise asyncio.CancelledError("the model went away")

    summary = evaluate(DATA, wait_task, [Stops()], store=store, batch_size=4, progress=False).summary()
    assert (summary.runs, summary["Stops"].failed) == (6, 6)


def is_interrupted():
    raise KeyboardInterrupt


@pytest.mark.process
@pytest.mark.parametrize("task", [wait_task, plain_task])
@pytest.mark.parametrize("which", [n for n in range(10) if n != 8], ids=lambda which: judges(fails)[which].key)
def test_ctrl_c_in_any_kind_of_evaluator_ends_the_run_resumably(store, task, which):
    def run(raising, **more):
        judge = judges(raising)[which]
        return evaluate(DATA, task, [judge, fine], name="x", store=store, progress=False, **more)

    with pytest.raises(KeyboardInterrupt):
        in_time(lambda: run(is_interrupted))
    gc.collect()
    assert store.experiment("x").status == "interrupted"
    summary = in_time(lambda: run(lambda: None, resume=True)).summary()
    assert (summary.runs, summary["fine"].n, summary[judges(fails)[which].key].n) == (6, 6, 6)


def test_ctrl_c_in_a_set_level_evaluator_keeps_the_runs(store):
    whole = evaluator(key="whole", summary=True)(lambda outputs: is_interrupted())
    with pytest.raises(KeyboardInterrupt):
        in_time(
            lambda: evaluate(
                DATA, plain_task, [fine], name="x", summary_evaluators=[whole], store=store, progress=False
            )
        )
    assert len(list(store.traces(experiment=store.experiment("x").id))) == 6


class Spiteful:
    """A value that raises whatever is done with it."""

    def __init__(self, raising):
        self.raising = raising

    def __repr__(self):
        self.raising()

    __str__ = __eq__ = __hash__ = __bool__ = __repr__


@pytest.mark.parametrize("task", [wait_task, plain_task])
@pytest.mark.parametrize("raising", RAISING, ids=lambda raising: raising.__name__)
def test_values_that_raise_when_they_are_looked_at_cost_no_row(store, raising, task):
    async def spiteful_task(inputs):
        return Spiteful(raising)

    plain = task is plain_task
    judged = [
        lambda outputs: Spiteful(raising),
        fine,
        evaluator(key="dict")(lambda outputs: {"score": Spiteful(raising)}),
    ]
    spiteful = (lambda inputs: Spiteful(raising)) if plain else spiteful_task
    summary = in_time(lambda: evaluate(DATA, spiteful, judged, store=store, progress=False).summary())
    assert (summary.runs, summary["fine"].n, summary["dict"].failed, summary["<lambda>"].failed) == (6, 6, 6, 6)
    assert score(fine, outputs=Spiteful(raising))[0].score is True


def odd_generator(raising):
    yield True
    raising()


class Generates(Model):
    """Gives its batch as a generator, which raises on the way."""

    def batch(self, cases):
        yield from super().batch(cases)


@pytest.mark.parametrize("raising", RAISING, ids=lambda raising: raising.__name__)
def test_generators_that_raise_are_errors_of_their_case(store, raising):
    judged = [
        evaluator(key="yields")(lambda outputs: odd_generator(raising)),
        evaluator(key="batch")(Generates(raising, whole=True)),
        fine,
    ]
    summary = in_time(lambda: evaluate(DATA, plain_task, judged, store=store, progress=False).summary())
    assert {key: (summary[key].n, summary[key].failed) for key in ("yields", "batch", "fine")} == {
        "yields": (0, 6),
        "batch": (5, 1),
        "fine": (6, 0),
    }
