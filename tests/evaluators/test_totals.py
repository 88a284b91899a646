"""What an experiment counts as it goes: its runs, and key by key what evaluators say."""

import math

import pytest

from spanwise.collector.records import Feedback, Run, Target, Usage
from spanwise.evaluators.experiments import ExperimentTally, make_summary
from spanwise.evaluators.interface.evaluator_spec import Metric

TARGET = Target(trace_id="1" * 32, span_id="2" * 16)


def said(key="k", *, document=None, **value):
    return Feedback(target=Target(trace_id="1" * 32, span_id="2" * 16, document=document), key=key, **value)


def counted(*feedback, metrics=(), repetitions=1, example="e"):
    tallies = ExperimentTally(metrics, repetitions)
    for one in feedback:
        tallies.add_feedback(one, example)
    return tallies


def call(**fields):
    return Run(trace_id="1" * 32, span_id="2" * 16, name="call", **fields)


def test_runs_are_counted_with_their_errors():
    totals = ExperimentTally()
    totals.add_run(3, "a", 5_000_000, None)
    totals.add_run(1, "b", 1_000_000, "LookupError: x", open_spans=2)
    totals.add_run(2, "c", 3_000_000, "KeyError: y")
    assert (totals.runs, totals.failed, totals.why, totals.open) == (3, 2, "LookupError: x", 1)
    assert totals.traces == {3: "a", 1: "b", 2: "c"}
    assert totals.percentiles_ms(50, 95, 1) == [3.0, 5.0, 1.0]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_which_failure_is_told_does_not_depend_on_who_ended_first(order):
    totals = ExperimentTally()
    for slot, example in enumerate(order):
        totals.add_run(slot, example, 1, f"error of {example}", example=example)
    assert (totals.why, totals.failed_on) == ("error of a", "a")


def test_before_any_run_nothing_is_known():
    totals = ExperimentTally()
    assert totals.percentiles_ms(50, 95) == [None, None]
    assert totals.totals() == {"runs": 0, "failed": 0, "models": [], "input_tokens": 0, "output_tokens": 0}


def test_calls_add_up():
    totals = ExperimentTally()
    totals.add_run(0, "a", 4_000_000, None)
    totals.add_calls(
        [call(model="m", usage=Usage(3, 5), cost=0.5), call(), call(model="l", usage=Usage(1, 1), cost=0.25)]
    )
    assert totals.totals() == {
        "runs": 1,
        "failed": 0,
        "models": ["l", "m"],
        "input_tokens": 4,
        "output_tokens": 6,
        "cost": 0.75,
        "mean_ms": 4.0,
    }


def test_keys_come_as_declared_then_by_name():
    tallies = counted(said("z", score=1), said("b", score=1), said("a", score=1), metrics=[Metric("c"), Metric("z")])
    assert [key for key, _ in tallies.in_order()] == ["z", "a", "b"]


def test_a_metric_says_who_passes():
    lower = Metric("k", higher_is_better=False, threshold=0.5)
    tallies = counted(said(score=0.2), said(score=0.5), said(score=0.9), metrics=[lower])
    assert (tallies.metric("k"), tallies.keys["k"].tally.passed) == (lower, 2)
    assert make_summary("t", tallies)["k"].passed == pytest.approx(2 / 3)


def test_one_error_and_one_reason_are_kept():
    errors = [said(outcome="error", error=text) for text in ("first", "second")]
    skips = [said("l", outcome="skip", comment=text) for text in ("no outputs", "no documents")]
    tallies = counted(*errors, *skips, said("l", label="x", comment="fine"))
    assert (tallies.keys["k"].why, tallies.keys["l"].lacking) == ("first", "no outputs")
    assert make_summary("t", tallies).why == {"k": "first"}


def test_who_skipped_every_run_is_named():
    tallies = counted(
        said(outcome="skip", comment="no outputs"), said("l", outcome="skip", comment="x"), said("l", score=1)
    )
    tallies.count_run(1, None)
    assert make_summary("t", tallies).lacking == {"k": "no outputs", "l": "x"}
    tallies.count_run(1, None)
    assert make_summary("t", tallies).lacking == {}


def repeated(*scores, metrics=(), example="e"):
    """Runs of one example, each with a score."""
    tallies = ExperimentTally(metrics, repetitions=len(scores))
    for index, score in enumerate(scores):
        tallies.count_run(1, None, example, f"{index:032x}")
        tallies.add_feedback(Feedback(target=Target(trace_id=f"{index:032x}"), key="k", score=score), example)
    return tallies


def test_repetitions_of_an_example_spread():
    tallies = ExperimentTally(repetitions=2)
    for trace, (example, score) in enumerate((("a", 0.0), ("a", 1.0), ("b", 0.5), ("b", 0.5), ("c", 1.0))):
        tallies.count_run(1, None, example, f"{trace:032x}")
        tallies.add_feedback(Feedback(target=Target(trace_id=f"{trace:032x}"), key="k", score=score), example)
    row = make_summary("t", tallies)["k"]
    assert (row.n, row.variance, row.flaky) == (5, 0.25, 1)


@pytest.mark.parametrize(("scores", "flaky"), [((0.6, 0.9), 0), ((0.4, 0.9), 1), ((0.1, 0.2), 0)])
def test_with_a_threshold_flaky_is_who_passes_now_and_then(scores, flaky):
    tallies = repeated(*scores, metrics=[Metric("k", threshold=0.5)])
    assert make_summary("t", tallies)["k"].flaky == flaky


def test_documents_count_and_are_no_repetitions():
    tallies = counted(said(document=0, score=1.0), said(document=1, score=0.0), said(score=0.5), repetitions=2)
    tallies.count_run(1, None, "e", "1" * 32)
    assert tallies.keys["k"].tally.n == 3
    assert tallies.repeats("k").examples["e"].scores == (0.5,)


def test_labels_have_no_spread():
    tallies = counted(said(label="x"), repetitions=2)
    tallies.count_run(1, None, "e", "1" * 32)
    assert tallies.repeats("k").examples["e"].scores == ()


def test_the_table_has_labels_in_the_place_of_a_mean_that_there_is_not():
    tallies = counted(*(said(label=label) for label in "abbccccdd"), said("l", label="x"), said("m", score=0.123456))
    table = str(make_summary("t", tallies))
    assert "9 labels │ c 4, b 2, d 2 │" in table
    assert " 1 label │" in table
    assert "│ 0.1235 │" in table.replace("        ", " ").replace("  ", " ")


def test_what_is_said_of_the_whole_set_stands_below():
    tallies = ExperimentTally()
    whole = [said("a", score=0.5), said("b", label="fine"), said("c", outcome="error", error="boom")]
    tallies.overall = {one.key: one for one in whole}
    summary = make_summary("t", tallies)
    assert [row[:6] for row in summary._cells()[1]] == [
        ["a (all)", "1", "0.5", "", "0", "0"],
        ["b (all)", "1 label", "fine", "", "0", "0"],
        ["c (all)", "0", "", "", "1", "0"],
    ]
    assert summary.why == {"c": "boom"}


def test_the_notes_tell_of_runs_latency_tokens_and_cost():
    tallies = ExperimentTally()
    tallies.add_run(0, "a", 1_500_000, None, open_spans=1)
    tallies.add_calls([call(model="m", usage=Usage(1000, 234), cost=0.5)])
    [first, second] = make_summary("t", tallies)._notes()
    assert first == "1 runs · 0 failed · p50 1.5 ms, p95 1.5 ms · 1,234 tokens · $0.5000 · m"
    assert second.startswith("1 runs had spans that were still open")


def test_the_summary_has_the_median_and_the_95th_percentile():
    tallies = ExperimentTally()
    for slot in range(100):
        tallies.add_run(slot, str(slot), (slot + 1) * 1_000_000, None)
    summary = make_summary("t", tallies)
    assert (summary.p50_ms, summary.p95_ms) == (50.0, 95.0)


def test_in_a_notebook_the_table_is_html_with_every_text_escaped():
    html = make_summary("a & b", counted(said("<k>", score=0.5)))._repr_html_()
    assert "<caption>a &amp; b</caption><thead><tr><th>key</th><th>n</th>" in html
    assert "<tbody><tr><td>&lt;k&gt;</td><td>1</td><td>0.5</td><td></td><td>0</td><td>0</td></tr></tbody>" in html
    assert html.endswith("<p>0 runs · 0 failed</p>")


def test_a_recorded_metric_has_its_range_and_direction():
    for metric in (Metric("a", (0.0, math.inf), False), Metric("b", None), Metric("c", (-1.0, 1.0), threshold=0.5)):
        assert Metric.from_dict(metric.to_dict()) == metric


def test_keys_have_an_arrow_where_their_direction_is_declared():
    metrics = [Metric("up"), Metric("down", None, False), Metric("unsaid", None)]
    tally = ExperimentTally(metrics)
    for key in ("up", "down", "unsaid", "undeclared"):
        tally.add_feedback(Feedback(target=Target(trace_id="1" * 32), key=key, score=1.0), "example")
    table = str(make_summary("t", tally))
    for shown in ("│ up ↑ ", "│ down ↓ ", "│ unsaid     │", "│ undeclared │"):
        assert shown in table
