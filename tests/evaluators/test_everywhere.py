"""One evaluator object in `evaluate()`, by hand on a stored trace, and in a test; what goes wrong shows in every aggregate."""

import asyncio
import secrets
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.collector.records import Example, Feedback, FeedbackStats, Run, Target
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import select_latest, summarize_by_key
from spanwise.evaluators import Experiment, evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.experiments import ExperimentTally
from spanwise.tracer import trace

DATASET = [
    Example(inputs={"q": f"question {n}"}, reference_outputs=f"answer {n}", expected_documents=()) for n in range(3)
]
JUDGES = [
    get_evaluator("exact"),
    get_evaluator("rouge", tokenizer="unicode"),
    get_evaluator("regex", pattern=r"\d"),
    get_evaluator("ir_mrr"),
    get_evaluator("latency"),
    get_evaluator("looping", key="loops"),
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
    assert said["rouge"]["version"] == JUDGES[1].version
    assert [metric["key"] for metric in said["rouge"]["metrics"]] == ["rouge_1", "rouge_2", "rouge_l"]


@evaluator(timeout=0.05)
async def hangs(outputs):
    await asyncio.sleep(30)


@evaluator(timeout=0.05)
def hangs_plainly(outputs):
    time.sleep(30)


def raises(outputs):
    raise RuntimeError("broken")


def nonsense(outputs):
    return object()


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
    statistics = summarize_by_key(select_latest(everything))
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
    judge = get_evaluator("regex", pattern="a", max_dataset_rows=1)
    row = evaluate(DATASET, answer, [judge], store=store, progress=False).summary()["regex"]
    assert (row.n, row.skipped) == (1, 2)


def test_a_default_stands_in_for_the_outputs_of_a_failed_run(store):
    judge = evaluator(key="there")(lambda outputs="nothing": outputs != "nothing")
    assert evaluate(DATASET, answer, [judge], store=store, progress=False).summary()["there"].mean == pytest.approx(
        2 / 3
    )


# one tally, whoever asks


def unsure(outputs):
    return 1.0 if outputs == "answer 0" else "cannot tell"


def test_labels_are_no_zeros_in_any_mean(store):
    experiment = evaluate(DATASET, lambda q: f"answer {q[-1]}", [unsure], store=store, progress=False)
    [stored] = store.aggregate(experiment=experiment.id)[0].feedback
    read_back = Experiment.load(store, experiment.id).summary()["unsure"]
    for stats in (experiment.summary()["unsure"], read_back, stored):
        assert (stats.n, stats.mean, stats.labelled, stats.labels) == (1, 1.0, 2, {"cannot tell": 2})


def test_the_table_tells_scores_from_labels(store):
    kind = evaluator(key="kind")(lambda outputs: "short")
    experiment = evaluate(DATASET, lambda q: f"answer {q[-1]}", [unsure, kind], store=store, progress=False)
    table = str(experiment.summary())
    assert "│ unsure │ 1, 2 labels │       1 │" in table
    assert "│ kind   │    3 labels │ short 3 │" in table


def test_the_latencies_are_those_of_the_store(store):
    experiment = evaluate(DATASET, lambda q: time.sleep(int(q[-1]) / 500), ["exact"], store=store, progress=False)
    [bucket] = store.aggregate(experiment=experiment.id)
    summary = experiment.summary()
    assert (summary.p50_ms, summary.p95_ms) == (bucket.p50_ms, bucket.p95_ms)


VALUES = st.sampled_from([{"score": True}, {"score": False}, {"label": "a"}, {"score": 0.5, "label": "b"}]) | st.one_of(
    st.floats(-9, 9).map(lambda score: {"score": score}),
    st.just({"outcome": "error", "error": "E"}),
    st.just({"outcome": "skip", "comment": "nothing"}),
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "run": st.integers(0, 2),
            "at": st.sampled_from([{}, {"span_id": "a" * 16}, {"span_id": "a" * 16, "document": 1}]),
            "key": st.sampled_from(["k", "l"]),
            "who": st.sampled_from([{}, {"author": "ann"}, {"author": "bob"}, {"rule": "r"}, {"rule": "s"}]),
            "source": st.sampled_from(["human", "code"]),
            "version": st.sampled_from([None, "1", "2"]),
            "own_id": st.booleans(),
            "value": VALUES,
        }
    ),
    max_size=25,
)


def feedback_of(rows, runs):
    """Feedback as drawn, the later the newer; a repeat may have an id of its own, or that which it derives."""
    for age, row in enumerate(rows):
        yield Feedback(
            target=Target(trace_id=runs[row["run"]].trace_id, **row["at"]),
            key=row["key"],
            source=row["source"],
            version=row["version"],
            created_ns=age + 1,
            id=secrets.token_hex(16) if row["own_id"] else "",
            **row["who"],
            **row["value"],
        )


def shared(stats):
    """What every aggregate says: a store knows no thresholds. SQL's sums are rounded, the others exact."""
    fields = {name: getattr(stats, name) for name in FeedbackStats.__slots__ if name != "passed"}
    return {**fields, "mean": pytest.approx(stats.mean, abs=1e-12)}


@pytest.mark.process
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(ROWS, st.integers(0, 25))
def test_streamed_at_once_stored_and_read_back_are_the_same(store, rows, cut):
    record = Record(id=secrets.token_hex(16), name="e", dataset="d")
    runs = [Run(trace_id=secrets.token_hex(16), span_id="b" * 16, name="r", experiment_id=record.id) for _ in range(3)]
    feedback = list(feedback_of(rows, runs))
    store.save_experiment(record)
    store.append(runs)
    for part in (feedback[:cut], feedback[cut:]):
        store.add_feedback(part)
    at_once = {key: shared(stats) for key, stats in summarize_by_key(select_latest(feedback)).items()}
    streamed = ExperimentTally()
    for run in runs:
        for one in select_latest(one for one in feedback if one.target.trace_id == run.trace_id):
            streamed.add_feedback(one, "example")
    [bucket] = store.aggregate(experiment=record.id)
    read_back = Experiment.load(store, record.id).summary()
    assert {key: shared(of_key.tally.stats(key)) for key, of_key in streamed.in_order()} == at_once
    apart = {  # a store counts feedback on documents apart
        (key, kind): {**shared(stats), "target": kind}
        for kind in ("trace", "document")
        for key, stats in summarize_by_key(
            select_latest(one for one in feedback if (one.target.document is not None) == (kind == "document"))
        ).items()
    }
    assert {(stats.key, stats.target): shared(stats) for stats in bucket.feedback} == apart
    assert {key: shared(stats) for key, stats in read_back.items()} == at_once


# live traces, by hand


def polite(outputs):
    return {"score": "please" in outputs, "comment": "asked"}


def spans(run):
    return [{"key": "span", "score": bool(child.documents), "target_run_id": child.id} for child in run.child_runs]


def test_a_live_trace_scored_twice_has_one_feedback_on_itself(store, trace):
    store.append(trace.runs)
    for _ in range(2):
        store.add_feedback(score(polite, store.trace(trace.trace_id)))
    [said] = store.trace(trace.trace_id).feedback
    assert (said.key, said.score, said.target.trace_id, said.target.span_id) == ("polite", False, trace.trace_id, None)


def test_feedback_may_be_on_the_spans_of_a_live_trace(store, trace):
    store.append(trace.runs)
    for _ in range(2):
        store.add_feedback(score(spans, store.trace(trace.trace_id)))
    [said] = store.trace(trace.trace_id).feedback
    assert (said.key, said.score, said.target.span_id) == ("span", True, "b" * 16)


@pytest.mark.parametrize("judge", [polite, lambda outputs: 1 / 0, lambda outputs: None], ids=["score", "error", "skip"])
def test_what_was_tried_is_not_brought_back_whatever_came_of_it(store, trace, judge):
    store.append(trace.runs)
    judge = evaluator(key="judge")(judge)
    assert len(store.traces(untried="judge")) == 1
    store.add_feedback(score(judge, store.trace(trace.trace_id)))
    assert len(store.traces(untried="judge")) == 0
