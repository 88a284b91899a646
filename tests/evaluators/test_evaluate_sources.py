"""What `evaluate()` takes as a dataset: names, files, frames, generators, traces, experiments, or answers given."""

import asyncio
import functools

import pandas
import pytest

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import Document, Example, Run
from spanwise.evaluators import Experiment, aevaluate, datasets, evaluate, evaluator, get_evaluator

EXAMPLES = [
    Example(inputs={"q": f"Q{n}"}, reference_outputs=f"a q{n}", split="test" if n % 2 else "train") for n in range(6)
]


def answer(q):
    return f"a {q.lower()}"


def scored(dataset, store, task=answer, **settings):
    return evaluate(dataset, task, [get_evaluator("exact")], store=store, progress=False, **settings)


def test_a_stored_dataset_is_pinned_to_its_version(store):
    datasets.save(store, "questions", EXAMPLES)
    before = scored("questions", store)
    datasets.save(store, "questions", [Example(inputs={"q": "new"}, reference_outputs="?")])
    after = scored("questions", store)
    assert (before.record.dataset_version, after.record.dataset_version) == (1, 2)
    assert [len(list(one.rows())) for one in (before, after, scored("questions@1", store))] == [6, 7, 6]


def test_an_unknown_name_says_so(store):
    with pytest.raises(NotFound, match="questoins"):
        scored("questoins", store)


def test_a_file_becomes_a_dataset_of_its_name(store, tmp_path):
    datasets.write(EXAMPLES, tmp_path / "parcels.jsonl")
    assert scored(str(tmp_path / "parcels.jsonl"), store).summary()["exact"].mean == 1.0
    assert store.dataset("parcels").example_count == 6


def test_a_list_is_a_dataset_named_by_its_content(store):
    names = [
        scored(data, store, name=name).record.dataset
        for data, name in ((EXAMPLES, "a"), (EXAMPLES, "b"), (EXAMPLES[:2], "c"))
    ]
    assert names[0] == names[1] != names[2]
    assert [one.version for one in store.versions(names[0])] == [1]


def test_a_data_frame(store):
    frame = pandas.DataFrame({"q": ["A", "B"], "expected": ["a a", "no"]})
    assert scored(frame, store).summary()["exact"].mean == 0.5


def test_rows_of_a_generator_know_their_references(store):
    experiment = scored((example for example in EXAMPLES), store)
    for known in (experiment, Experiment.load(store, experiment.id)):
        rows = list(known.rows())
        assert [row.reference_outputs for row in rows] == [f"a q{n}" for n in range(6)]
        assert [row.known_example.split for row in rows] == ["train", "test"] * 3


def test_a_set_is_judged_of_a_generator_too(store):
    whole = evaluator(key="share", summary=True)(lambda outputs, reference_outputs: _share(outputs, reference_outputs))
    given = evaluate(iter(EXAMPLES), answer, summary_evaluators=[whole], store=store, progress=False)
    assert given.summary().overall["share"].score == 1.0


def _share(outputs, references):
    return sum(map(str.__eq__, outputs, references)) / len(outputs)


@pytest.mark.process
def test_rows_find_their_examples_in_whatever_order_they_are_asked_for(store):
    many = [Example(inputs={"q": n}, reference_outputs=n) for n in range(1200)]
    datasets.save(store, "many", many)
    sample = evaluate("many", lambda q: q, limit=300, seed=7, repetitions=2, store=store, progress=False)
    ids = [row.trace.trace_id for row in sample.rows()]
    assert [row.reference_outputs for row in sample.rows()] == [row.outputs for row in sample.rows()]
    sample._tally.traces = dict(enumerate(reversed(ids)))
    assert [row.reference_outputs for row in sample.rows()] == [row.outputs for row in sample.rows()]


def test_a_generator_is_streamed_and_not_kept(store):
    assert scored((example for example in EXAMPLES), store).summary()["exact"].n == 6
    assert store.datasets() == []


def test_split_limit_and_seed(store):
    test = scored(EXAMPLES, store, split="test")
    first = scored(EXAMPLES, store, limit=2)
    sample = [[row.inputs["q"] for row in scored(EXAMPLES, store, limit=3, seed=7).rows()] for _ in range(2)]
    assert [row.inputs["q"] for row in test.rows()] == ["Q1", "Q3", "Q5"]
    assert [row.inputs["q"] for row in first.rows()] == ["Q0", "Q1"]
    assert sample[0] == sample[1] == sorted(sample[0])
    assert len(sample[0]) == 3


def test_a_seed_reaches_the_task(store):
    seeds = [[row.outputs for row in scored(EXAMPLES, store, lambda q, seed: seed, seed=1).rows()] for _ in range(2)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 6


@pytest.fixture
def traces(store):
    """Two stored traces with retrieved documents."""
    runs = [
        Run(
            trace_id=f"{n:032x}",
            span_id=f"{n:016x}",
            name="answer",
            start_ns=n,
            end_ns=n + 5,
            status="ok",
            inputs={"q": f"Q{n}"},
            outputs=f"a q{n}",
            documents=(Document("d", "1"),),
        )
        for n in (1, 2)
    ]
    store.append(runs)
    return runs


def test_the_same_evaluators_score_given_answers_stored_traces_and_a_live_task(store, traces):
    evaluators = [get_evaluator("exact"), get_evaluator("document_recall")]
    references = {"reference_outputs": "a q1", "expected_documents": (Document("d", "1"),)}
    live = evaluate(
        [Example(inputs={"q": "Q1"}, documents=(Document("d", "1"),), **references)],
        answer,
        evaluators,
        store=store,
        progress=False,
    )
    given = evaluate(
        [Example(inputs={"q": "Q1"}, outputs="a q1", documents=(Document("d", "1"),), **references)],
        None,
        evaluators,
        store=store,
        progress=False,
    )
    examples = datasets.from_traces(store, [traces[0].trace_id], corrections={traces[0].trace_id: "a q1"})
    stored = evaluate(
        [Example(inputs=e.inputs, outputs=e.outputs, documents=e.documents, **references) for e in examples],
        None,
        evaluators,
        store=store,
        progress=False,
    )
    assert [one.summary()[key].mean for one in (live, given, stored) for key in ("exact", "document_recall")] == [
        1.0
    ] * 6


def test_stored_traces_are_scored_as_copies_that_point_to_them(store, traces):
    experiment = evaluate(
        Filter(name="answer"), None, [lambda outputs, run: len(outputs)], store=store, name="live", progress=False
    )
    rows = list(experiment.rows())
    assert {row.outputs for row in rows} == {"a q1", "a q2"}
    assert {row.trace.root.links[0].trace_id for row in rows} == {run.trace_id for run in traces}
    assert store.trace(traces[0].trace_id).root.experiment_id is None


def test_traces_may_be_listed(store, traces):
    page = store.traces(name="answer", limit=1)
    assert evaluate(page, None, [lambda outputs: 1.0], store=store, progress=False).summary().runs == 1


def test_a_dataset_of_kind_chat_shows_evaluators_texts(store):
    chat = {
        "inputs": {"input": [{"role": "user", "content": "Q"}]},
        "reference_outputs": {"output": [{"role": "assistant", "content": "A"}]},
    }
    datasets.save(store, "talk", [chat])
    seen = []

    def look(inputs, outputs, reference_outputs):
        seen.append((inputs, outputs, reference_outputs))
        return True

    evaluate("talk", lambda messages: {"role": "assistant", "content": "B"}, [look], store=store, progress=False)
    assert seen == [("Q", "B", "A")]


def test_repetitions_report_variance_and_flakiness(store):
    counts = {}

    def task(q):
        counts[q] = counts.get(q, 0) + 1
        return "a q0" if q == "Q0" or counts[q] % 2 else "no"

    data = [{"q": "Q0", "expected": "a q0"}, {"q": "Q1", "expected": "a q0"}]
    experiment = scored(data, store, task, repetitions=4, concurrency=1)
    row = experiment.summary()["exact"]
    assert (row.n, row.mean, row.flaky, row.variance) == (8, 0.75, 1, pytest.approx(1 / 6))
    assert [(example.passed, example.runs) for example in experiment.repeats("exact").flaky.values()] == [(2, 4)]
    assert [r.repetition for r in experiment.rows()] == [0, 1, 2, 3] * 2


async def rows_later():
    for n in range(3):
        await asyncio.sleep(0)
        yield {"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"}


async def answer_later(q):
    await asyncio.sleep(0)
    return answer(q)


@pytest.mark.parametrize("task", [answer, answer_later])
def test_an_async_generator_is_a_dataset(store, task):
    async def main():
        return await aevaluate(rows_later(), task, ["exact"], store=store, progress=False)

    for experiment in (evaluate(rows_later(), task, ["exact"], store=store, progress=False), asyncio.run(main())):
        assert [row.outputs for row in experiment.rows()] == ["a q0", "a q1", "a q2"]
        assert experiment.summary()["exact"].mean == 1.0


def test_an_async_generator_that_fails_keeps_what_is_done(store):
    async def rows():
        yield {"q": "Q"}
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        evaluate(rows(), answer, store=store, progress=False)
    (record,) = store.experiments()
    assert (record.status, record.metadata["totals"]["runs"]) == ("interrupted", 1)


async def pieces(q):
    for piece in ("a ", q.lower()):
        await asyncio.sleep(0)
        yield piece


@pytest.mark.parametrize("task", [pieces, lambda q: pieces(q), functools.partial(pieces)])
@pytest.mark.parametrize("timeout", [None, 10])
def test_an_async_generator_is_a_task(store, task, timeout):
    data = [{"inputs": {"q": "Q1"}, "reference_outputs": "a q1"}]
    assert scored(data, store, task, timeout=timeout).summary()["exact"].mean == 1.0


def test_evaluators_see_odd_numbers_as_they_are_read_back(store):
    odd = [float("nan"), 10**30, 2**63, float("inf"), {"n": float("nan")}, True, 0.5]
    seen = evaluator(key="seen")(lambda outputs: repr(outputs))
    data = [{"inputs": {"n": n}} for n in range(len(odd))]
    live = evaluate(data, lambda n: odd[n], [seen], store=store, progress=False)
    again = live.evaluate([evaluator(key="again")(lambda outputs: repr(outputs))], progress=False)
    scores = [row.scores for row in again.rows()]
    assert [row["seen"] for row in scores] == [row["again"] for row in scores]
    assert [row["seen"] for row in scores][:2] == ["None", repr(str(10**30))]


def test_corrections_of_traces_that_were_not_picked_are_said(store, traces):
    corrections = {traces[0].trace_id: "right", "f" * 32: "nobody's"}
    with pytest.raises(ValueError, match=f"1 corrections refer to traces that were not selected, such as '{'f' * 32}'"):
        datasets.from_traces(store, [run.trace_id for run in traces], corrections=corrections)


def test_traces_with_equal_inputs_become_one_example(store):
    runs = [
        Run(
            trace_id=f"{n:032x}", span_id=f"{n:016x}", name="a", start_ns=n, end_ns=n + 1, inputs=inputs, outputs=str(n)
        )
        for n, inputs in enumerate(({"q": 1, "r": 2}, {"r": 2, "q": 1}, {"q": 3}, {"q": 1, "r": 2}), 1)
    ]
    store.append(runs)
    assert [one.outputs for one in datasets.from_traces(store)] == ["4", "3"]
    corrections = {runs[1].trace_id: "right"}
    assert [one.reference_outputs for one in datasets.from_traces(store, corrections=corrections)] == ["right", None]
    corrections |= {runs[0].trace_id: "other", runs[3].trace_id: "right"}
    found = {one.reference_outputs for one in datasets.from_traces(store, corrections=corrections)}
    assert found == {"right", "other", None}
