"""Comparison of experiments in Python: conclusions, regressions, slices, and the forms in which they are shown."""

import io
import json
import math

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from looped_cases import loop_over
from spanwise.collector.api import create_app
from spanwise.evaluators import Metric, compare, datasets, evaluate, evaluator

DATASET = [{"inputs": {"q": n}} for n in range(4)]


def scored(store, name, values, key="k", dataset=DATASET, **settings):
    """Return an experiment whose score per example (or label, or exception) is given."""

    def judge(outputs):
        value = values[outputs]
        if isinstance(value, Exception):
            raise value
        return value

    judge = evaluator(key=key, **settings)(judge)
    return evaluate(dataset, lambda q: q, [judge], store=store, name=name, progress=False)


def many(n, **fields):
    """Return a dataset of n examples."""
    return [{"inputs": {"q": place}, **fields} for place in range(n)]


@pytest.fixture
def both(store):
    first = scored(store, "first", [0.0, 0.0, 1.0, ValueError("x")])
    return compare(first, scored(store, "second", [1.0, 1.0, 0.5, 1.0]))


def test_pairs_are_examples_that_both_have_scored(both):
    moved = both["k"]
    assert (moved.pairs, moved.up, moved.down, moved.ties) == (3, 2, 1, 0)
    assert (moved.only_before, moved.only_after) == (0, 1)


def test_changes_are_the_examples_whose_score_changed(both):
    changes = sorted((change.before, change.after, change.better) for change in both.changes())
    assert changes == [(0.0, 1.0, True), (0.0, 1.0, True), (1.0, 0.5, False)]


def test_lower_may_be_better(store):
    first = scored(store, "first", [0.0, 0.0, 1.0, 1.0], higher_is_better=False)
    both = compare(first, scored(store, "second", [1.0, 1.0, 0.5, 1.0], higher_is_better=False))
    assert (both["k"].wins, both["k"].losses) == (1, 2)


def test_rounding_is_no_change(store):
    both = compare(scored(store, "first", [0.3] * 4), scored(store, "second", [0.1 + 0.2] * 4))
    assert list(both.changes()) == []
    assert both["k"].ties == 4


def test_a_key_without_pairs_is_shown_without_a_conclusion(store):
    both = compare(scored(store, "first", [1.0] * 4, "old"), scored(store, "second", ["good"] * 4, "new"))
    assert {key: each.pairs for key, each in both.contrasts().items() if key != "latency"} == {"old": 0, "new": 0}
    assert "No example has a score in both experiments" in str(both)


def test_the_first_experiment_is_the_baseline_of_all_others(store, both):
    third = scored(store, "third", [0.0, 0.0, 0.0, 0.0])
    three = compare(*both.experiments, third)
    assert three.comparisons == [(0, 1), (0, 2)]
    assert (three.contrasts(2)["k"].down, three.contrasts(2)["k"].ties) == (1, 2)
    with pytest.raises(ValueError, match="experiments 1 and 2 are not compared"):
        three.contrasts(2, 1)


def test_all_pairs_compare_each_with_each(store, both):
    third = scored(store, "third", [0.0, 0.0, 0.0, 0.0])
    three = compare(*both.experiments, third, all_pairs=True)
    assert three.comparisons == [(0, 1), (0, 2), (1, 2)]
    assert three.contrasts(2, 1)["k"].family == 3


def test_fifty_experiments_are_compared(store):
    first = scored(store, "first", [0.0] * 4)
    names = [scored(store, f"e{n}", [0.0] * 4).id for n in range(2)]
    fifty = compare(first, *(names * 25)[:49], store=store)
    assert len(fifty.comparisons) == 49
    assert fifty.contrasts(49)["k"].family == 49


def test_to_pandas_has_one_row_per_comparison_and_key(both):
    row = both.to_pandas().set_index("key").loc["k"]
    assert (row["before"], row["after"], row["pairs"], row["change"]) == ("first", "second", 3, 0.5)
    assert (row["wins"], row["losses"], row["ties"], row["conclusion"]) == (2, 1, 0, "inconclusive")


def test_the_page_says_the_same(store, both):
    ids = ",".join(experiment.id for experiment in both.experiments)
    with TestClient(create_app(store)) as client:
        text = client.get(f"/compare?ids={ids}").text
    moved = both["k"]
    assert "<span>2 better</span><span>1 worse</span><span>0 same</span>" in text
    assert f"+{moved.change:.3g}<" in text
    assert f"<span>p {moved.p:.3f}</span>" in text
    assert moved.sentence in text
    assert "1 unpaired" in text


def test_equal_names_are_told_apart(store, both):
    assert both.names == ["first", "second"]
    twins = compare(both.experiments[0], scored(store, "first", [1.0] * 4))
    assert len(set(twins.names)) == 2
    assert all(name.startswith("first (") for name in twins.names)


def tasks(store, name, crashes):
    """Return an experiment of thirty whose task is right but raises in the last `crashes`; without crashes it is half
    right.
    """

    def task(q):
        if q >= 30 - crashes:
            raise ConnectionError("away")
        return q if crashes or q < 15 else "wrong"

    rows = [{"inputs": {"q": n}, "reference_outputs": n} for n in range(30)]
    return evaluate(rows, task, ["exact"], store=store, name=name, progress=False)


def test_failed_tasks_have_a_key_of_their_own(store):
    both = compare(tasks(store, "half", 0), tasks(store, "crashing", 15))
    ok, exact = both["task_ok"], both["exact"]
    assert (both.keys[0], ok.change, ok.pairs, ok.word) == ("task_ok", -0.5, 30, "worse")
    assert (exact.pairs, exact.only_before, exact.word) == (15, 15, "inconclusive")


def test_without_a_failed_task_there_is_no_such_key(both):
    assert "task_ok" not in both.keys


def test_feedback_does_not_replace_the_key_of_tasks(store):
    rows = many(4)
    sides = [evaluate(rows, task, store=store, progress=False) for task in (lambda q: q, lambda q: 1 / q)]
    for row in sides[1].rows():
        store.feedback(row.trace.trace_id, "task_ok", True)
    assert compare(*sides)["task_ok"].change == -0.25


def coloured(renderable):
    """Return the text that a terminal gets."""
    text = io.StringIO()
    Console(file=text, width=160, force_terminal=True, color_system="standard").print(renderable)
    return text.getvalue()


def test_the_conclusion_is_coloured_only_if_something_changed(store):
    sides = [
        scored(store, name, values, dataset=many(12)) for name, values in (("low", [0.0] * 12), ("high", [1.0] * 12))
    ]
    assert "\x1b[1;32mbetter" in coloured(compare(*sides))
    assert "\x1b[1;31mworse" in coloured(compare(*reversed(sides)))
    assert "\x1b[1;3" not in coloured(compare(sides[0], sides[0])).replace("\x1b[1mkey", "")


def test_two_experiments_are_compared_without_reading_their_contents(store):
    class Scores:
        def __getattr__(self, name):
            assert name not in ("many", "trace", "traces")
            return getattr(store, name)

    scored(store, "first", [0.0, 0.0, 1.0, 1.0]), scored(store, "second", [1.0, 1.0, 0.5, 1.0])
    assert compare("first", "second", store=Scores())["k"].pairs == 4


def test_later_scores_do_not_change_the_duration_of_an_experiment(store):
    first = scored(store, "first", [1.0] * 4)
    again = first.evaluate(["not_empty"])
    assert again.record.ended_ns == first.record.ended_ns
    assert again.record.metadata["totals"]["seconds"] == first.record.metadata["totals"]["seconds"]


# --- options ----------------------------------------------------------------------------------------------------------


def test_primary_names_the_keys_that_decide(store):
    def keyed(outputs):
        return [{"key": f"k{n}", "score": float(outputs > 5)} for n in range(4)]

    sides = [evaluate(many(20), lambda q, s=s: q * s, [keyed], store=store, progress=False) for s in (0, 1)]
    every, one = compare(*sides), compare(*sides, primary=["k0"])
    assert [contrasts["k0"].family for contrasts in (every.contrasts(), one.contrasts())] == [4, 1]
    assert (one["k1"].is_primary, one["k0"].is_primary) == (False, True)
    assert "k1" not in one.describe()


def test_an_evaluator_can_be_declared_primary(store):
    @evaluator(key="main", primary=True)
    def main(outputs):
        return outputs > 5

    sides = [evaluate(many(20), lambda q: q, [main, "not_empty"], store=store, progress=False) for _ in range(2)]
    both = compare(*sides)
    assert {key: each.is_primary for key, each in both.contrasts().items() if key != "latency"} == {
        "main": True,
        "not_empty": False,
    }


def test_a_registered_evaluator_can_be_declared_primary(store):
    from spanwise.evaluators import get_evaluator

    sides = [
        evaluate(
            many(5), lambda q: str(q), [get_evaluator("not_empty", primary=True), "exact"], store=store, progress=False
        )
        for _ in range(2)
    ]
    assert compare(*sides)["not_empty"].is_primary
    with pytest.raises(ValueError, match="primary must be True or False"):
        get_evaluator("not_empty", primary="yes")


def test_a_margin_makes_equal_experiments_equivalent(store):
    sides = [scored(store, name, [True] * 100, dataset=many(100)) for name in ("first", "second")]
    assert compare(*sides)["k"].word == "inconclusive"
    assert compare(*sides, margin={"k": 0.05})["k"].word == "equivalent"


@pytest.mark.parametrize("margin", [0, -0.1, math.nan, math.inf, True, "0.1"])
def test_a_margin_must_be_a_positive_number(both, margin):
    with pytest.raises(ValueError, match="margin of 'k' must be a positive number"):
        compare(*both.experiments, margin={"k": margin})


@loop_over("options", [{"primary": ["nope"]}, {"margin": {"nope": 0.1}}, {"good_labels": {"nope": ["x"]}}])
def test_an_option_with_an_unknown_key_is_refused_with_the_known_ones(store, options):
    sides = [scored(store, name, [1.0] * 4) for name in ("first", "second")]
    with pytest.raises(ValueError, match="no experiment has scores of 'nope'; known keys: k"):
        compare(*sides, **options).contrasts()


@loop_over(
    ("options", "message"),
    [({"primary": "k"}, "primary must be a list"), ({"good_labels": {"k": "good"}}, "must be a list of labels")],
)
def test_a_string_is_no_list(store, options, message):
    sides = [scored(store, name, [1.0] * 4) for name in ("first", "second")]
    with pytest.raises(ValueError, match=message):
        compare(*sides, **options)


def test_names_need_a_store_and_two_experiments(store, both):
    with pytest.raises(ValueError, match="is a name: pass its store"):
        compare("first", "second")
    with pytest.raises(ValueError, match="requires two or more experiments, got 1"):
        compare(both.experiments[0])


def labelled(store, name, labels, **settings):
    """Return an experiment of text labels."""
    return scored(store, name, labels, "tone", many(len(labels)), **settings)


def test_labels_that_change_from_good_to_bad_are_counted(store):
    sides = [labelled(store, "first", ["good"] * 20), labelled(store, "second", ["bad"] * 20)]
    both = compare(*sides, good_labels={"tone": ["good"]})
    assert (both["tone"].losses, both["tone"].word) == (20, "worse")
    assert len(both.regressions(limit=50)) == 20
    assert "20 from good to bad" in str(both).replace("\n", " ")


def test_good_labels_can_be_declared_by_the_evaluator(store):
    sides = [
        labelled(store, name, labels, good_labels={"good"})
        for name, labels in (("first", ["good"] * 20), ("second", ["bad"] * 20))
    ]
    assert compare(*sides)["tone"].word == "worse"


def test_different_good_labels_of_two_experiments_give_no_better_side(store):
    sides = [
        labelled(store, name, [label] * 20, good_labels={label}) for name, label in (("first", "a"), ("second", "b"))
    ]
    moved = compare(*sides, margin={"tone": 0.3})["tone"]
    assert (moved.word, "different good labels" in moved.sentence) == ("inconclusive", True)


def test_a_good_label_that_no_run_has_is_refused(store):
    sides = [labelled(store, name, ["good"] * 4) for name in ("first", "second")]
    with pytest.raises(ValueError, match="no run has one of 'goood'; labels: 'good'"):
        compare(*sides, good_labels={"tone": ["goood"]}).contrasts()


def test_opposite_directions_give_no_better_side(store):
    sides = [
        scored(store, name, [value] * 20, dataset=many(20), higher_is_better=rising)
        for name, value, rising in (("first", 0.0, True), ("second", 1.0, False))
    ]
    both = compare(*sides)
    assert both["k"].word == "higher"
    assert "opposite directions" in both["k"].sentence


def test_another_version_of_the_evaluator_is_named(store):
    def version(name, function):
        return evaluate(many(4), lambda q: q, [evaluator(key="k")(function)], store=store, name=name, progress=False)

    both = compare(version("first", lambda outputs: outputs > 2), version("second", lambda outputs: outputs > 1))
    assert "the evaluators have different versions" in both["k"].sentence
    same = compare(scored(store, "a", [1.0] * 4), scored(store, "b", [1.0] * 4))
    assert "different versions" not in same["k"].sentence


def test_examples_with_one_base_are_one_cluster(store):
    rows = [{"inputs": {"q": n}, "id": f"e{n}", "base_id": f"e{n - n % 2}" if n % 2 else None} for n in range(20)]
    datasets.save(store, "perturbed", rows)
    sides = [
        scored(store, name, [float(n % 3) for n in range(20)], dataset="perturbed") for name in ("first", "second")
    ]
    assert compare(*sides)["k"].pairs == 10


def test_a_metadata_field_can_be_the_cluster(store):
    datasets.save(store, "customers", [{"inputs": {"q": n}, "metadata": {"customer": n % 4}} for n in range(20)])
    sides = [scored(store, name, [1.0] * 20, dataset="customers") for name in ("first", "second")]
    assert compare(*sides, cluster="customer")["k"].pairs == 4
    with pytest.raises(ValueError, match="no example has the field 'nope'"):
        compare(*sides, cluster="nope").contrasts()


def test_ids_that_changed_leave_no_pairs(store):
    first = scored(store, "first", [1.0] * 4)
    second = scored(store, "second", [1.0] * 4, dataset=[{"inputs": {"q": n}, "id": f"new {n}"} for n in range(4)])
    assert (compare(first, second)["k"].pairs, compare(first, second)["k"].word) == (0, "inconclusive")


def test_parse_failures_of_one_side_are_unpaired(store):
    first = scored(store, "first", [True] * 4)
    second = scored(store, "second", [True, True, True, {"score": None, "label": "unparsed"}])
    moved = compare(first, second)["k"]
    assert (moved.kind, moved.pairs, moved.only_before) == ("boolean", 3, 1)


# --- regressions and slices -------------------------------------------------------------------------------------------


def commented(store, name, wrong):
    """Return an experiment with comments in which the examples of `wrong` are wrong."""

    @evaluator(key="right")
    def right(outputs, inputs):
        return {"score": outputs == "yes", "comment": f"said {outputs} to {inputs['q']}"}

    return evaluate(many(12), lambda q: "no" if q in wrong else "yes", [right], store=store, name=name, progress=False)


def test_regressions_have_both_answers_and_comments(store):
    both = compare(commented(store, "first", {0}), commented(store, "second", {3}))
    (regression,) = both.regressions()
    assert (regression.inputs or {"q": 3}) == {"q": 3}
    assert (regression.before.outputs, regression.after.outputs) == ("yes", "no")
    assert regression.after.comments == {"right": "said no to 3"}
    assert [change.better for change in regression.changes] == [False]


def test_regressions_of_primary_keys_come_first(store):
    @evaluator(metrics=[Metric("main"), Metric("other")])
    def keyed(outputs):
        return [{"key": "main", "score": outputs[0]}, {"key": "other", "score": outputs[1]}]

    def run(name, answers):
        return evaluate(many(3), lambda q: answers[q], [keyed], store=store, name=name, progress=False)

    both = compare(
        run("first", [(1.0, 1.0)] * 3), run("second", [(1.0, 0.0), (0.9, 1.0), (1.0, 1.0)]), primary=["main"]
    )
    assert [[change.key for change in each.changes] for each in both.regressions()] == [["main"], ["other"]]


def sliced(store, name, hard):
    """Return an experiment over 40 examples of two splits; the hard ones have the score `hard`."""
    if "sliced" not in {each.name for each in store.datasets()}:
        rows = [
            {
                "inputs": {"q": n},
                "split": "hard" if n % 2 else "easy",
                "categories": ["odd"] if n % 2 else [],
                "metadata": {"customer": f"c{n % 4}", "nested": {"x": 1}},
            }
            for n in range(40)
        ]
        datasets.save(store, "sliced", rows)
    return scored(store, name, [hard if n % 2 else 1.0 for n in range(40)], dataset="sliced")


def test_the_slices_that_moved_most_come_first(store):
    both = compare(sliced(store, "first", 1.0), sliced(store, "second", 0.0))
    slices = {each.name: each for each in both.slices()}
    assert (slices["split=hard"].n, slices["split=hard"].change, slices["split=hard"].elsewhere) == (20, -1.0, 0.0)
    assert "category=odd" in slices
    assert next(iter(slices)) in {"split=hard", "split=easy", "category=odd"}
    assert "metadata.customer=c1" in slices


def test_a_slice_asked_for_by_name_has_a_conclusion(store):
    both = compare(sliced(store, "first", 1.0), sliced(store, "second", 0.0))
    assert (both.slice("split=hard")["k"].word, both.slice("split=hard")["k"].pairs) == ("worse", 20)
    assert both.slice("split=easy")["k"].word == "inconclusive"
    with pytest.raises(ValueError, match="there is no slice 'split=none'"):
        both.slice("split=none")


def test_an_evaluators_label_makes_slices(store):
    def labels(outputs):
        return [{"key": "topic", "label": "billing" if outputs % 2 else "other"}, {"key": "k", "score": 1.0}]

    sides = [evaluate(many(20), lambda q: q, [labels], store=store, name=name, progress=False) for name in "ab"]
    assert compare(*sides).slice("topic=billing")["k"].pairs == 10


# --- latency, cost and tokens -----------------------------------------------------------------------------------------


def test_cost_and_tokens_are_compared_and_unknown_costs_left_out(store):
    from spanwise.tracer import current_run

    def task(q, factor):
        current_run().set_usage(input_tokens=10 * factor, output_tokens=q, cost=None if q == 0 else 0.01 * factor)
        return q

    sides = [
        evaluate(many(12), lambda q, f=factor: task(q, f), [], store=store, name=f"x{factor}", progress=False)
        for factor in (1, 2)
    ]
    both = compare(*sides, primary=["cost"])
    assert (both["cost"].kind, both["cost"].pairs) == ("ratio", 11)
    assert "2 runs of unknown cost left out" in both["cost"].sentence
    assert both["cost"].change == pytest.approx(2.0)
    assert both["tokens"].kind == "ratio"
    assert not both["tokens"].is_primary


# --- hostile and odd input --------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> | [click](http://evil.test) `x` ![i](http://evil.test/i.png) @everyone\n# head"


def test_hostile_names_labels_and_answers_are_text_in_markdown_and_html(store):
    @evaluator(metrics=[Metric(HOSTILE[:60]), Metric("tone")])
    def keyed(outputs):
        return [
            {"key": HOSTILE[:60], "score": float(outputs != HOSTILE), "comment": HOSTILE},
            {"key": "tone", "label": HOSTILE},
        ]

    sides = [
        evaluate(many(6), lambda q, a=answer: a, [keyed], store=store, name=HOSTILE, progress=False)
        for answer in ("fine", HOSTILE)
    ]
    both = compare(*sides)
    markdown, html = both.to_markdown("http://collector.test"), both.to_html()
    assert "<script" not in markdown
    assert "](http://evil.test" not in markdown
    assert "@&#8203;everyone" in markdown
    assert "\n# head" not in markdown
    assert "http://evil" not in markdown
    assert "](http://collector.test/traces/" in markdown
    assert "<script" not in html


def test_markdown_states_conclusions_first_then_regressions(store):
    both = compare(commented(store, "first", set()), commented(store, "second", {1, 2}))
    text = both.to_markdown()
    assert text.index("### second against first: inconclusive: right") < text.index("#### Regressions")
    assert "- **right: inconclusive.**" in text


def test_no_score_at_all_is_shown(store):
    sides = [evaluate(many(2), lambda q: q, [], store=store, name=name, progress=False) for name in "ab"]
    both = compare(*sides)
    assert "no scores to compare" in str(both)
    assert both.to_markdown()
    assert both.regressions() == both.slices() == []


def test_one_pair_is_inconclusive(store):
    one = compare(*(scored(store, name, [value], dataset=many(1)) for name, value in (("a", 0.0), ("b", 1.0))))
    assert (one["k"].pairs, one["k"].word) == (1, "inconclusive")


def test_values_of_a_contrast_are_plain_json(both):
    json.dumps(both.to_pandas().to_dict("records"), default=str)
