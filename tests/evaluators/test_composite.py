"""Composite evaluators: the weighted mean of other keys, rules for missing parts, inverted keys, resume and rescoring."""

import os
import signal
import threading

import pytest

from spanwise.collector.records import Feedback, Target
from spanwise.evaluators import Experiment, Skip, composite, evaluate, evaluator, get_evaluator, score
from spanwise.tracer import current_run

ROWS = [{"id": f"e{n}", "inputs": {"q": n}} for n in range(3)]


@evaluator
def correct(outputs):
    return True


@evaluator
def concise(outputs):
    if outputs == 1:
        raise Skip("nothing to measure")
    if outputs == 2:
        raise RuntimeError("broken")
    return 0.5


@evaluator(higher_is_better=False)
def toxicity(outputs):
    return 0.25


@evaluator
async def later(outputs):
    return 1.0


WEIGHTS = {"correct": 0.6, "concise": 0.2}


def echo(q):
    return q


def run(evaluators, store, task=echo, rows=ROWS, **options):
    return evaluate(rows, task, evaluators, store=store, name="x", progress=False, **options)


def found(experiment, key="quality"):
    return [row.feedback[key] for row in experiment.rows()]


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("skip", [0.875, None, None]), ("renormalize", [0.875, 1.0, 1.0]), ("zero", [0.875, 0.75, 0.75])],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_weighted_mean_and_the_rules_for_missing_parts(store, missing, expected, asynchronous):
    async def echo_later(q):
        return q

    quality = composite("quality", WEIGHTS, missing=missing)
    experiment = run([quality, correct, concise], store, task=echo_later if asynchronous else echo)
    outcomes = found(experiment)
    assert [outcome.score for outcome in outcomes] == [
        pytest.approx(one) if one is not None else None for one in expected
    ]
    assert experiment.summary()["quality"].failed == 0
    if missing == "skip":
        assert [outcome.outcome for outcome in outcomes] == ["score", "skip", "skip"]
        assert "concise was skipped: nothing to measure" in outcomes[1].comment
        assert "concise failed: RuntimeError: broken" in outcomes[2].comment
    else:
        assert "concise" in outcomes[1].comment


def test_concurrent_evaluators_and_feedback_of_the_task_are_parts(store):
    def task(q):
        current_run().feedback("given", 0.5)
        return q

    quality = composite("quality", {"later": 1, "given": 1})
    assert [each.score for each in found(run([quality, later], store, task))] == [0.75] * 3


def test_the_parts_and_weights_are_in_the_metadata(store):
    outcome = found(run([correct, concise, composite("quality", WEIGHTS)], store))[0]
    assert outcome.metadata["parts"] == {"correct": 1.0, "concise": 0.5}
    assert outcome.metadata["evaluator_parameters"]["weights"] == WEIGHTS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("q", {}), "weights"),
        (("q", {"a": 0}), "weights"),
        (("q", {"a": -1}), "weights"),
        (("q", {"a": float("nan")}), "weights"),
        (("q", {"a": True}), "weights"),
        (("q", ["a"]), "weights"),
        (("q", {1: 1}), "weights"),
        (("q", {"q": 1}), "own key"),
        (("", {"a": 1}), "key"),
    ],
)
def test_invalid_weights_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        composite(*arguments)


def test_invalid_rules_are_refused():
    with pytest.raises(ValueError, match="missing must be one of: skip, renormalize, zero"):
        composite("q", {"a": 1}, missing="none")
    with pytest.raises(ValueError, match="invert"):
        composite("q", {"a": 1}, invert=["b"])


def test_lower_is_better_must_be_inverted(store):
    weights = {"correct": 1, "toxicity": 1}
    with pytest.raises(ValueError, match=r"lower values of 'toxicity' are better.*invert=\['toxicity'\]"):
        run([correct, toxicity, composite("quality", weights)], store)
    assert store.experiments() == []
    quality = composite("quality", weights, invert=["toxicity"])
    assert [each.score for each in found(run([correct, toxicity, quality], store))] == [0.875] * 3
    with pytest.raises(ValueError, match="higher values of 'exact' are better"):
        run(["exact", composite("quality", {"exact": 1}, invert=["exact"])], store)
    with pytest.raises(ValueError, match=r"'perplexity' has scores from 1 to 100.*0 to 1"):
        run(
            [
                evaluator(lambda outputs: 3.0, key="perplexity", higher_is_better=False, range=(1, 100)),
                composite("quality", {"perplexity": 1}, invert=["perplexity"]),
            ],
            store,
        )


def test_an_inverted_score_outside_of_the_range_is_an_error(store):
    latency = evaluator(lambda outputs: 3.0, key="slow", higher_is_better=False)
    outcome = found(run([latency, composite("quality", {"slow": 1}, invert=["slow"])], store))[0]
    assert outcome.outcome == "error"
    assert "from 0 to 1" in outcome.error
    assert "3.0" in outcome.error


def test_a_missing_inverted_part_counts_as_the_worst(store):
    @evaluator(higher_is_better=False)
    def toxic(outputs):
        raise Skip("no text")

    quality = composite("quality", {"correct": 1, "toxic": 1}, missing="zero", invert=["toxic"])
    assert [each.score for each in found(run([correct, toxic, quality], store))] == [0.5] * 3


def test_labels_and_unknown_keys_are_missing_parts(store):
    grade = evaluator(lambda outputs: "good", key="grade")
    outcome = found(run([grade, composite("quality", {"grade": 1, "other": 1})], store))[0]
    assert outcome.outcome == "skip"
    assert "grade has the label 'good'" in outcome.comment
    assert "other has no feedback" in outcome.comment


def test_a_failed_task(store):
    def broken(q):
        raise ValueError("boom")

    for missing, outcome in (("skip", "skip"), ("renormalize", "skip"), ("zero", "score")):
        experiment = run([correct, composite("quality", {"correct": 1}, missing=missing)], store, broken)
        assert found(experiment)[0].outcome == outcome
    assert found(experiment)[0].score == 0.0


def test_a_composite_of_a_composite_follows_it(store):
    inner, outer = (
        composite("inner", {"correct": 1}),
        composite("outer", {"inner": 1, "toxicity": 1}, invert=["toxicity"]),
    )
    assert [each.score for each in found(run([correct, toxicity, inner, outer], store), "outer")] == [0.875] * 3
    with pytest.raises(ValueError, match=r"'outer' .* 'inner'.* before"):
        run([correct, toxicity, outer, inner], store)


def test_versions():
    first = composite("quality", WEIGHTS)
    assert first.version == composite("quality", dict(reversed(WEIGHTS.items()))).version
    assert first.version == composite("quality", {"correct": 0.6, "concise": 0.2}, threshold=0.5).version
    others = [
        composite("quality", {**WEIGHTS, "correct": 0.7}),
        composite("quality", WEIGHTS, missing="zero"),
        composite("quality", WEIGHTS, invert=["correct"]),
        composite("other", WEIGHTS),
    ]
    assert len({first.version, *(each.version for each in others)}) == 5


def test_threshold_and_primary(store):
    quality = composite("quality", {"correct": 1}, threshold=0.5, primary=True)
    experiment = run([correct, quality], store)
    assert experiment.summary()["quality"].passed == 1.0
    assert experiment.record.evaluators[1]["primary"] is True


def test_rescoring_uses_stored_feedback(store):
    experiment = run([correct, concise], store)
    again = experiment.evaluate([composite("quality", WEIGHTS, missing="renormalize")])
    assert [each.score for each in found(again)] == [pytest.approx(0.875), 1.0, 1.0]
    assert Experiment.load(store, experiment.id).summary()["quality"].n == 3


def test_rescoring_checks_recorded_directions(store):
    experiment = run([correct, toxicity], store)
    with pytest.raises(ValueError, match="lower values of 'toxicity'"):
        experiment.evaluate([composite("quality", {"toxicity": 1})])


def test_a_person_s_label_does_not_replace_the_evaluator_s_score(store):
    experiment = run([correct], store)
    row = next(experiment.rows())
    store.append(
        [], [Feedback(target=Target(trace_id=row.trace.trace_id), key="seen", score=0.5, source="human", author="a")]
    )
    again = experiment.evaluate([composite("quality", {"correct": 1, "seen": 1})])
    assert found(again)[0].score == 0.75


def test_resume_computes_it_again_when_a_part_is_scored_again(store):
    broken = [True]

    @evaluator(version="1")
    def flaky(outputs):
        if outputs == 1 and broken:
            raise RuntimeError("down")
        return 1.0

    quality = composite("quality", {"flaky": 1}, missing="zero")
    first = run([flaky, quality], store)
    assert [each.score for each in found(first)] == [1.0, 0.0, 1.0]
    broken.clear()
    again = run([flaky, quality], store, resume=True)
    assert [each.score for each in found(again)] == [1.0, 1.0, 1.0]
    assert (again.summary()["quality"].n, again.summary()["quality"].mean) == (3, 1.0)
    loaded = Experiment.load(store, again.id).summary()
    assert (loaded["quality"].n, loaded["quality"].mean) == (3, 1.0)


def test_a_new_version_of_a_part_computes_it_again(store):
    def make(value, version):
        return evaluator(lambda outputs: value, key="part", version=version)

    quality = composite("quality", {"part": 1})
    experiment = run([make(0.0, "1"), quality], store)
    again = run([make(1.0, "2"), quality], store, resume=True)
    assert (again.summary()["quality"].n, again.summary()["quality"].mean) == (3, 1.0)
    rescored = experiment.evaluate([make(0.5, "3"), quality])
    assert (rescored.summary()["quality"].n, rescored.summary()["quality"].mean) == (3, 0.5)
    experiment.evaluate([make(0.25, "4")])
    last = Experiment.load(store, experiment.id).evaluate([quality])
    assert (last.summary()["quality"].n, last.summary()["quality"].mean) == (3, 0.25)


def test_resume_after_an_interruption(store):
    stop = []

    def task(q):
        if q == 2 and not stop:
            stop.append(1)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10)
        return q

    quality = composite("quality", {"correct": 1})
    with pytest.raises(KeyboardInterrupt):
        run([correct, quality], store, task, concurrency=1)
    again = run([correct, quality], store, task, resume=True)
    assert again.summary()["quality"].n == 3


def test_an_example_that_names_it_gets_its_parts(store):
    rows = [
        {"id": "a", "inputs": {"q": 0}, "evaluators": ["quality"]},
        {"id": "b", "inputs": {"q": 0}, "evaluators": ["correct"]},
    ]
    experiment = run([correct, concise, composite("quality", WEIGHTS)], store, rows=rows)
    assert [set(row.scores) for row in experiment.rows()] == [{"correct", "concise", "quality"}, {"correct"}]
    assert experiment.summary().partial == {"concise": (1, 2), "quality": (1, 2)}
    assert experiment.summary()["quality"].skipped == 0
    again = run([correct, concise, composite("quality", WEIGHTS)], store, rows=rows, resume=True)
    assert [set(row.scores) for row in again.rows()] == [{"correct", "concise", "quality"}, {"correct"}]


def test_repetitions(store):
    experiment = run([correct, composite("quality", {"correct": 1})], store, repetitions=3)
    assert experiment.summary()["quality"].n == 9


def test_attached_feedback(store):
    source = run([correct], store)
    traces = [row.trace for row in source.rows()]
    attached = evaluate(
        traces,
        None,
        [get_evaluator("not_empty"), composite("quality", {"not_empty": 1, "correct": 1})],
        attach=True,
        store=store,
        progress=False,
    )
    assert attached.summary()["quality"].n == 3


def test_score_by_hand(store):
    experiment = run([correct, concise], store)
    traces = [row.trace for row in experiment.rows()]
    quality = composite("quality", WEIGHTS)
    assert score(quality, traces[0]).score == pytest.approx(0.875)
    assert score(quality, traces[1])[0].outcome == "skip"
    assert score(quality, outputs="x")[0].outcome == "skip"
