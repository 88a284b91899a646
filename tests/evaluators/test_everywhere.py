"""One evaluator object in `evaluate()`, by hand on a stored trace, and in a test; what goes wrong shows in every aggregate."""

import asyncio
import time

import pytest

from assay.collector.records import Example
from assay.collector.statistics import newest, summarise
from assay.evaluators import evaluate, evaluator, get, score
from assay.tracer import trace

DATASET = [
    Example(inputs={"q": f"question {n}"}, reference_outputs=f"answer {n}", expected_documents=()) for n in range(3)
]
JUDGES = [
    get("exact"),
    get("rouge", tokenizer="unicode"),
    get("regex", pattern=r"\d"),
    get("ir_mrr"),
    get("latency"),
    get("looping", key="loops"),
]


@trace(kind="retriever")
def search(q):
    return [{"id": "d1", "content": "one"}, {"id": "d2", "content": "two"}]


def answer(q):
    search(q)
    if q == "question 2":
        raise LookupError("nothing found")
    return f"answer {q[-1]}"


@pytest.fixture
def experiment(store):
    return evaluate(DATASET, answer, JUDGES, store=store, progress=False)


def shown(feedback):
    return [(one.key, one.outcome, one.score, one.comment, one.evaluator, one.version) for one in feedback]


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.key)
def test_a_stored_trace_by_hand_gives_what_the_experiment_gave(experiment, store, judge):
    keys = {metric.key for metric in judge.metrics}
    for row in experiment.rows():
        if row.error is None:
            before = [one for one in row.trace.feedback if one.key in keys]
            by_hand = score(judge, store.trace(row.trace.trace_id), example=row.example)
            assert sorted(shown(by_hand)) == sorted(shown(before))


@pytest.mark.parametrize("example", DATASET[:2], ids=["first", "second"])
def test_the_same_object_in_a_test(example):
    said = score(JUDGES[0], outputs=answer(**example.inputs), example=example)
    assert said[0].score == 1.0
    assert JUDGES[0](answer(**example.inputs), example.reference_outputs) == 1.0


def test_an_evaluator_is_stored_with_its_version_and_metrics(experiment, store):
    said = {one["key"]: one for one in store.experiment(experiment.id).evaluators}
    assert said["rouge"]["version"] == "1"
    assert [metric["key"] for metric in said["rouge"]["metrics"]] == ["rouge_1", "rouge_2", "rouge_l"]


@evaluator(timeout=0.05)
async def hangs(outputs):
    await asyncio.sleep(30)


@evaluator(timeout=0.05)
def hangs_plainly(outputs):
    time.sleep(1)


def raises(outputs):
    raise RuntimeError("broken")


def nonsense(outputs):
    return {"socre": 1}


def lacks(conditions):
    return True


def undefined(outputs):
    return float("nan")


BROKEN = [hangs, hangs_plainly, raises, nonsense, lacks, undefined]
EXPECTED = {  # n, failed, skipped, over two runs that succeed and one that fails
    "hangs": (0, 2, 1),
    "hangs_plainly": (0, 2, 1),
    "raises": (0, 2, 1),
    "nonsense": (0, 2, 1),
    "lacks": (0, 0, 3),
    "undefined": (0, 0, 3),
}


def test_what_goes_wrong_is_reported_as_such_in_every_aggregate(store):
    experiment = evaluate(DATASET, answer, BROKEN, store=store, progress=False)
    everything = [one for row in experiment.rows() for one in row.trace.feedback]
    [bucket] = store.aggregate(experiment=experiment.id)
    summary = experiment.summary()
    statistics = summarise(newest(everything))
    for key, expected in EXPECTED.items():
        stored = next(one for one in bucket.feedback if one.key == key)
        for one in (summary[key], stored, statistics[key]):
            assert (one.n, one.failed, one.skipped) == expected, (key, one)
            assert one.mean is None


def test_the_errors_keep_their_tracebacks(store):
    experiment = evaluate(DATASET[:1], answer, [raises], store=store, progress=False)
    [feedback] = next(experiment.rows()).trace.feedback
    assert feedback.error == "RuntimeError: broken"
    assert "in raises" in feedback.metadata["traceback"]


def test_an_evaluator_may_ask_for_few_rows_only(store):
    judge = get("regex", pattern="a", max_dataset_rows=1)
    row = evaluate(DATASET, answer, [judge], store=store, progress=False).summary()["regex"]
    assert (row.n, row.skipped) == (1, 2)


def test_a_default_stands_in_for_the_outputs_of_a_failed_run(store):
    judge = evaluator(key="there")(lambda outputs="nothing": outputs != "nothing")
    assert evaluate(DATASET, answer, [judge], store=store, progress=False).summary()["there"].mean == pytest.approx(
        2 / 3
    )
