"""`spanwise.compat.langsmith`, compared with the package `langsmith` itself, which stores nothing here."""

import asyncio
import warnings
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from spanwise.collector.records import Example as StoredExample
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.compat import langsmith as compat
from spanwise.evaluators import datasets, get_evaluator

# langsmith uses `ast.Str`, which is deprecated from Python 3.12 on
pytestmark = pytest.mark.filterwarnings("ignore:ast.Str is deprecated")

DATASET = UUID(int=1)


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened


def examples(count=3):
    from langsmith.schemas import Example

    return [
        Example(
            id=UUID(int=100 + n),
            dataset_id=DATASET,
            inputs={"n": n, "inputs": "a key of this name"},
            outputs={"double": 2 * n},
            metadata={"odd": bool(n % 2)},
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for n in range(count)
    ]


def double(inputs: dict) -> dict:
    if inputs["n"] == 2:
        raise ValueError("two is too much")
    return {"double": 2 * inputs["n"] if inputs["n"] else 7}


def as_text(inputs: dict) -> str:
    return f"n = {inputs['n']}"


def exact(run, example):
    return {"key": "same", "score": (run.outputs or {}).get("double") == example.outputs["double"]}


def own_names(r, e):
    return {"score": len(e.inputs), "comment": r.error or "fine"}


def by_name(inputs, outputs, reference_outputs):
    return outputs.get("double", -1) - reference_outputs["double"] + inputs["n"]


def number(outputs):
    return 0.5


def label(run, example):
    return "odd" if example.metadata["odd"] else "even"


def several(outputs, reference_outputs):
    return {"results": [{"key": "a", "score": 1}, {"key": "b", "value": "x", "comment": "c"}]}


def listed(outputs):
    return [{"key": "l1", "score": 0.25}, {"key": "l2", "score": True}]


def with_default(outputs, factor=3):
    return {"score": factor}


def with_attachments(outputs, attachments):
    return len(attachments)


def broken(run, example):
    raise KeyError("broken")


def empty(outputs):
    return None


def result_object(run, example):
    from langsmith.evaluation import EvaluationResult

    return EvaluationResult(key="object", score=0.75, comment="made")


async def slow(run, example):
    await asyncio.sleep(0)
    return {"key": "slow", "score": len(run.outputs or {})}


def accuracy(outputs: list, reference_outputs: list) -> dict:
    return {"key": "accuracy", "score": sum(map(dict.__eq__, outputs, reference_outputs)) / len(outputs)}


def count(runs, examples):
    return {"key": "count", "score": len(runs) + len(examples)}


SYNC = [
    exact,
    own_names,
    by_name,
    number,
    label,
    several,
    listed,
    with_default,
    with_attachments,
    result_object,
    broken,
    empty,
]


def shown(rows):
    """What both products report, by example; errors only as such."""
    found = {}
    for row in rows:
        results = {
            each.key: (None if each.score is None else float(each.score), each.value)
            for each in row["evaluation_results"]["results"]
            if not (each.score is None and each.value is None)
        }
        error = row["run"].error
        found.setdefault(row["example"].id, []).append(
            (row["run"].outputs, error and error.splitlines()[0][:20], results)
        )
    return found


def original(target, evaluators, summary=(), **options):
    """What `langsmith.evaluate` gives, without an account."""
    from langsmith import Client, evaluate

    client = Client(api_key="none", api_url="http://127.0.0.1:9", auto_batch_tracing=False, info={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(
            target,
            data=examples(),
            evaluators=evaluators,
            summary_evaluators=list(summary) or None,
            client=client,
            upload_results=False,
            **options,
        )


@pytest.mark.process
@pytest.mark.parametrize("target", [double, as_text], ids=["dict", "text"])
def test_runs_and_scores_are_those_of_langsmith(store, target):
    ours = compat.evaluate(target, data=examples(), evaluators=SYNC, store=store)
    theirs = original(target, SYNC)
    mine, wanted = shown(ours), shown(theirs)
    for id, rows in wanted.items():
        for (outputs, error, results), (own_outputs, own_error, own_results) in zip(rows, mine[id], strict=True):
            assert own_outputs == outputs
            assert bool(own_error) == bool(error)
            assert own_results == results


@pytest.mark.process
def test_the_frame_has_langsmiths_columns(store):
    ours = compat.evaluate(double, data=examples(), evaluators=[exact, label], store=store).to_pandas()
    theirs = original(double, [exact, label]).to_pandas()
    assert set(ours.columns) == set(theirs.columns)
    assert list(ours["feedback.label"]) == ["even", "odd", "even"]
    assert list(ours["outputs.double"].dropna()) == [7, 2]


def test_texts_are_wrapped_for_evaluators_of_run_and_example(store):
    seen = []

    def look(run, example):
        seen.append((run.outputs, run.inputs, example.outputs, example.id, run.reference_example_id))
        return True

    results = compat.evaluate(as_text, data=examples(1), evaluators=[look], store=store)
    inputs = {"n": 0, "inputs": "a key of this name"}
    assert seen == [({"output": "n = 0"}, inputs, {"double": 0}, UUID(int=100), UUID(int=100))]
    assert next(iter(results))["run"].outputs == {"output": "n = 0"}


def test_summary_evaluators_get_lists(store):
    results = compat.evaluate(
        lambda inputs: {"double": 2 * inputs["n"]}, data=examples(), summary_evaluators=[accuracy, count], store=store
    )
    assert {each.key: each.score for each in results.summary_results["results"]} == {"accuracy": 1.0, "count": 6.0}


def test_repetitions_prefix_metadata_and_description_are_stored(store):
    results = compat.evaluate(
        as_text,
        data=examples(2),
        evaluators=[number],
        num_repetitions=3,
        experiment_prefix="mine",
        metadata={"k": 1},
        description="A try",
        max_concurrency=2,
        store=store,
    )
    assert len(results) == len(list(results)) == 6
    assert results.experiment_name.startswith("mine-")
    record = store.experiment(results.experiment_name)
    assert (record.metadata["k"], record.metadata["description"]) == (1, "A try")
    assert record.metadata["setup"]["concurrency"] == 2
    assert UUID(record.id) == results.experiment_id


def test_a_stored_dataset_is_found_by_name_and_by_id(store):
    id = uuid4()
    rows = [{"inputs": {"n": 1}, "reference_outputs": {"double": 2}}]
    datasets.save(store, "numbers", rows, metadata={"id": str(id)})
    for data in ("numbers", id, str(id)):
        results = compat.evaluate(double, data=data, evaluators=[exact], store=store)
        assert next(iter(results))["evaluation_results"]["results"][0].score is True
        assert results.experiment.record.dataset == "numbers"


def test_examples_may_be_a_generator_of_dicts_or_of_spanwise(store):
    rows = [{"inputs": {"n": 1}, "outputs": {"double": 2}}, {"inputs": {"n": 1}, "outputs": {"double": 2}}]
    both = compat.evaluate(double, data=(row for row in rows), evaluators=[exact], store=store)
    assert [row["evaluation_results"]["results"][0].score for row in both] == [True, True]
    own = [StoredExample(inputs={"n": 1}, reference_outputs={"double": 2})]
    assert len(compat.evaluate(double, data=own, evaluators=[exact], store=store)) == 1


def test_evaluators_of_spanwise_are_accepted(store):
    results = compat.evaluate(double, data=examples(1), evaluators=["exact", get_evaluator("not_empty")], store=store)
    found = {each.key: each.score for each in next(iter(results))["evaluation_results"]["results"]}
    assert found == {"exact": 0.0, "not_empty": True}


def test_a_run_evaluator_object_is_called(store):
    from langsmith.evaluation import EvaluationResult, RunEvaluator

    class Fixed(RunEvaluator):
        def evaluate_run(self, run, example=None, evaluator_run_id=None):
            return EvaluationResult(key="fixed", score=0.3)

    results = compat.evaluate(double, data=examples(1), evaluators=[Fixed()], store=store)
    assert [each.key for each in next(iter(results))["evaluation_results"]["results"]] == ["fixed"]


def test_a_runnable_is_invoked(store):
    from langchain_core.runnables import RunnableLambda

    chain = RunnableLambda(lambda inputs: {"double": inputs["n"] * 2})
    results = compat.evaluate(chain, data=examples(2), evaluators=[exact], store=store)
    assert [row["run"].outputs for row in results] == [{"double": 0}, {"double": 2}]


def test_a_target_gets_attachments_and_metadata_by_name(store):
    def target(inputs, attachments, metadata):
        return {"seen": [inputs["n"], attachments, metadata["odd"]]}

    results = compat.evaluate(target, data=examples(2), store=store)
    assert [row["run"].outputs["seen"] for row in results] == [[0, {}, False], [1, {}, True]]


def test_an_async_call_runs_async_targets_and_evaluators(store):
    async def target(inputs):
        await asyncio.sleep(0)
        return double(inputs)

    async def run():
        results = await compat.aevaluate(target, data=examples(), evaluators=[slow, exact], store=store)
        return [row async for row in results]

    rows = asyncio.run(run())
    scores = [{each.key: each.score for each in row["evaluation_results"]["results"]} for row in rows]
    assert scores == [{"slow": 1, "same": False}, {"slow": 1, "same": True}, {"slow": 1, "same": False}]


def test_options_without_effect_are_named_in_one_warning(store):
    with pytest.warns(UserWarning, match="no effect") as caught:
        compat.evaluate(double, data=examples(1), store=store, upload_results=False, blocking=False, client=object())
    assert len(caught) == 1
    text = str(caught[0].message)
    assert all(name in text for name in ("client (use store=", "upload_results", "blocking"))
    assert caught[0].filename == __file__


def test_defaults_of_langsmith_are_no_warning(store):
    compat.evaluate(double, data=examples(1), store=store, client=None, blocking=True, error_handling="log")


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"data": None}, ValueError, "data must be"),
        ({"data": 5}, ValueError, "data must be"),
        ({"max_concurrency": -1}, ValueError, "max_concurrency must be"),
        ({"evaluators": [lambda: 1]}, ValueError, "must take two arguments"),
        ({"evaluators": [lambda a, b, c: 1]}, ValueError, "must take two arguments"),
        ({"evaluators": [5]}, ValueError, "must be a function"),
        ({"summary_evaluators": [5]}, ValueError, "must be a function"),
        ({"nonsense": 1}, TypeError, "no option 'nonsense'"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(store, options, error, reason):
    with pytest.raises(error, match=reason) as raised:
        compat.evaluate(double, **{"data": examples(1), "store": store, **options})
    assert "\n" not in str(raised.value)
    assert store.experiments() == []
