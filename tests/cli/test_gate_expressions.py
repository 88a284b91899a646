"""Expressions of `spanwise eval --fail-if`: grammar, quantities, and what they make of an experiment."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.evaluations import EVALUATION, Command, fail_if, last
from looped_cases import loop_over
from spanwise.cli import gate_expressions
from spanwise.cli.gate_expressions import (
    MeasuredExperiment,
    Quantity,
    evaluate_expression,
    format_key,
    parse_expression,
)
from spanwise.collector import connect
from spanwise.collector.errors import Refused
from spanwise.evaluators import evaluate, evaluator
from spanwise.tracer import current_run, trace


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with connect(tmp_path / "b.db") as store:
        yield store


def measured(store: Any, scores: list[Any], key: str = "k", task: Any = None, **options: Any) -> MeasuredExperiment:
    """An experiment whose runs have these scores; None is a skip."""
    data = [{"inputs": {"n": n}} for n in range(len(scores))]
    judge = evaluator(key=key, **options)(lambda inputs: scores[inputs["n"]])
    return MeasuredExperiment(evaluate(data, task or (lambda n: n), [judge], name="x", store=store, progress=False))


def outcome(expression: str, experiment: MeasuredExperiment) -> tuple[str, str]:
    result = evaluate_expression(parse_expression(expression), experiment)
    return result.outcome, result.reason


# --- grammar


@loop_over(
    "text, fields",
    [
        ("exact.mean < 0.8", ("exact", "mean", "<", 0.8, "")),
        ("exact.mean<0.8", ("exact", "mean", "<", 0.8, "")),
        ("rag.v2.recall-5.low <= 75%", ("rag.v2.recall-5", "low", "<=", 75, "%")),
        ("'my key'.passed >= .5", ("my key", "passed", ">=", 0.5, "")),
        ('"it\'s <b>".mean > -1e-3', ("it's <b>", "mean", ">", -0.001, "")),
        ("latency.p95 > 2s", ("latency", "p95", ">", 2, "s")),
        ("latency.p50 > 200 MS", ("latency", "p50", ">", 200, "ms")),
        ("cost.sum > 5USD", ("cost", "sum", ">", 5, "usd")),
        ("cost.mean > 5$", ("cost", "mean", ">", 5, "$")),
        ("  tokens.sum > 1000  ", ("tokens", "sum", ">", 1000, "")),
    ],
)
def test_bounds(text: str, fields: tuple[Any, ...]) -> None:
    parsed = parse_expression(text)
    assert (parsed.key, parsed.quantity, parsed.operator, parsed.number, parsed.unit) == fields


@loop_over(
    "text, key, word",
    [
        ("exact worse", "exact", "worse"),
        ("a.b-c.d  non-inferior", "a.b-c.d", "non-inferior"),
        ("'my key' lower", "my key", "lower"),
        ('"it\'s" inconclusive', "it's", "inconclusive"),
    ],
)
def test_conclusions(text: str, key: str, word: str) -> None:
    parsed = parse_expression(text)
    assert (parsed.key, parsed.word) == (key, word)


@loop_over(
    "text, reason",
    [
        ("", "it must be KEY WORD"),
        ("exact", "it must be KEY WORD"),
        ("exact < 0.8", "it must be KEY WORD"),
        ("my key worse", "keys with spaces must be quoted"),
        ("my key.mean < 1", "keys with spaces must be quoted"),
        ("exact wrose", "unknown word 'wrose' (did you mean 'worse'?); expected one of: worse, better"),
        ("exact.maen < 1", "unknown quantity 'maen' (did you mean 'mean'?); quantities of 'exact': failed, high"),
        ("exact.p95 < 1", "unknown quantity 'p95'"),
        (
            "latency.p99 > 1s",
            "quantities of 'latency': failed, high, low, max, mean, min, n, p50, p95, passed, skipped",
        ),
        ("exact.mean == 1", "unknown operator '=='; expected one of: < <= > >="),
        ("exact.mean != 1", "unknown operator '!='"),
        ("exact.mean < ", "the right side must be a finite number such as 0.8, got ''"),
        ("exact.mean < high", "finite number such as 0.8, got 'high'"),
        ("exact.mean < nan", "got 'nan'"),
        ("exact.mean < inf", "got 'inf'"),
        ("exact.mean < 1e999", "got '1e999'"),
        ("exact.mean < ٥", "got '٥'"),
        ("exact.mean < 1_0", "unknown unit '_0'"),
        ("exact.mean < 2s", "unknown unit 's'; expected %, or none"),
        ("latency.p95 > 2h", "unknown unit 'h'; expected ms or s or min"),
        ("cost.sum > 5%", "unknown unit '%'; expected usd or $, or none"),
        ("tokens.sum > 5usd", "unknown unit 'usd'; it has no unit"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_expression(text)
    assert str(refused.value).startswith(f"--fail-if {text.strip()!r}: ")
    assert reason in str(refused.value)


@loop_over("key", ["exact", "a.b-c", "my key", "it's", "<lambda>"])
def test_a_formatted_key_is_parsed_again(key: str) -> None:
    assert parse_expression(f"{format_key(key)}.mean < 1").key == key


def test_a_latency_without_a_unit_is_refused(command: Command) -> None:
    status, said = command.check(*fail_if("latency.p95 > 2"))
    assert (status, "the number 2 has no unit; expected ms or s or min" in said) == (3, True)


# --- quantities of keys


def test_each_quantity_of_a_key_is_compared(store: Any) -> None:
    experiment = measured(store, [0.0, 0.5, 1.0, None], threshold=0.5)
    for expression, expected in {
        "k.mean < 0.6": "failed",
        "k.mean < 0.5": "passed",
        "k.mean <= 0.5": "failed",
        "k.mean < 60%": "failed",
        "k.passed < 0.7": "failed",
        "k.passed < 66%": "passed",
        "k.n < 4": "failed",
        "k.n < 76%": "failed",
        "k.n < 75%": "passed",
        "k.skipped > 0": "failed",
        "k.skipped > 25%": "passed",
        "k.failed > 0": "passed",
        "k.min < 0.1": "failed",
        "k.max > 1": "passed",
    }.items():
        assert outcome(expression, experiment)[0] == expected, expression


def test_the_reason_has_the_value_and_the_bound(store: Any) -> None:
    experiment = measured(store, [0.0, 0.5, 1.0, None])
    assert outcome("k.mean < 0.8", experiment)[1] == "k.mean is 0.5, which is < 0.8"
    assert outcome("k.mean < 10%", experiment)[1] == "k.mean is 50%"


def test_the_ends_of_the_interval_are_compared(store: Any) -> None:
    experiment = measured(store, [0.0, 0.5, 1.0])
    keys = {"k": replace(experiment.summary["k"], interval=(0.2, 0.8))}
    experiment.summary = replace(experiment.summary, keys_=keys)
    assert outcome("k.low < 0.3", experiment) == ("failed", "k.low is 0.2, which is < 0.3")
    assert outcome("k.high < 0.3", experiment) == ("passed", "k.high is 0.8")


def test_a_mean_without_an_interval_leaves_it_undecided(store: Any) -> None:
    experiment = measured(store, [1.0])
    experiment.summary = replace(experiment.summary, keys_={"k": replace(experiment.summary["k"], interval=None)})
    assert outcome("k.low < 0.3", experiment) == (
        "undecided",
        "cannot decide 'k.low < 0.3': the mean of k has no interval",
    )


def test_a_key_without_a_score_fails_every_bound(store: Any) -> None:
    experiment = measured(store, [None, None])
    for expression in ("k.mean < 0.1", "k.n > 5", "k.skipped < 1"):
        assert outcome(expression, experiment) == ("failed", "k has no score: 2 skipped (the evaluator returned None)")


def test_scores_of_nan_are_no_scores(store: Any) -> None:
    result, reason = outcome("k.mean < 0.5", measured(store, [math.nan, math.nan]))
    assert (result, reason.startswith("k has no score: 2 skipped")) == ("failed", True)


def test_a_mean_of_nan_fails(store: Any) -> None:
    experiment = measured(store, [1.0])
    experiment.summary = replace(experiment.summary, keys_={"k": replace(experiment.summary["k"], mean=math.nan)})
    assert outcome("k.mean < 0.5", experiment) == ("failed", "k has no mean")


def test_a_passed_share_needs_a_threshold(store: Any) -> None:
    assert outcome("k.passed < 0.5", measured(store, [3.0])) == ("failed", "k has no passed")


def test_labels_are_no_scores(store: Any) -> None:
    assert outcome("k.n < 1", measured(store, ["a", "b"])) == ("failed", "k has no score: 2 labels without a score")


def test_task_ok_has_all_quantities(store: Any) -> None:
    def task(n: int) -> int:
        return 1 // n

    experiment = measured(store, [1.0] * 4, task=task)
    assert outcome("task_ok.mean < 0.8", experiment) == ("failed", "task_ok.mean is 0.75, which is < 0.8")
    assert outcome("task_ok.n < 4", experiment) == ("passed", "task_ok.n is 4")


def test_a_score_of_the_whole_set_has_a_mean(store: Any) -> None:
    whole = evaluator(key="whole", summary=True)(lambda outputs: len(outputs))
    data = [{"inputs": {"q": q}} for q in "ab"]
    made = evaluate(data, lambda q: q, summary_evaluators=[whole], name="x", store=store, progress=False)
    assert outcome("whole.mean < 3", MeasuredExperiment(made)) == ("failed", "whole.mean is 2, which is < 3")
    assert outcome("whole.low < 3", MeasuredExperiment(made))[0] == "undecided"


def test_other_features_add_quantities(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    quantity = Quantity(lambda experiment, key: float(len(experiment.runs)), {"": 1.0})
    monkeypatch.setitem(gate_expressions.QUANTITIES, (None, "pass@2"), quantity)
    assert outcome("k.pass@2 < 4", measured(store, [1.0] * 3)) == ("failed", "k.pass@2 is 3, which is < 4")


# --- measures of the runs


@trace(kind="llm")
def call(cost: float | None, tokens: int = 5) -> None:
    current_run().set_model("own")
    current_run().set_usage(input_tokens=tokens, output_tokens=0, cost=cost)


def test_costs_and_tokens_are_summed(store: Any) -> None:
    experiment = measured(store, [1.0] * 4, task=lambda n: call(0.5))
    assert outcome("cost.sum > 1.9usd", experiment) == ("failed", "cost.sum is 2usd, which is > 1.9usd")
    assert outcome("cost.mean > 0.5$", experiment) == ("passed", "cost.mean is 0.5$")
    assert outcome("tokens.sum >= 20", experiment)[0] == "failed"
    assert outcome("tokens.mean > 5", experiment)[0] == "passed"


def test_a_cost_of_0_is_known(store: Any) -> None:
    assert outcome("cost.sum > 0", measured(store, [1.0], task=lambda n: call(0.0))) == ("passed", "cost.sum is 0")


def test_a_run_without_a_model_call_costs_nothing(store: Any) -> None:
    experiment = measured(store, [1.0] * 2, task=lambda n: call(0.5) if n else None)
    assert outcome("cost.sum > 1", experiment) == ("passed", "cost.sum is 0.5")


def test_partly_unknown_costs_are_decided_only_if_the_known_ones_are_enough(store: Any) -> None:
    experiment = measured(store, [1.0] * 4, task=lambda n: call(0.5 if n else None))
    assert outcome("cost.sum > 1usd", experiment) == ("failed", "cost.sum is at least 1.5usd, which is > 1usd")
    assert outcome("cost.sum < 1usd", experiment) == ("passed", "cost.sum is at least 1.5usd")
    for expression in ("cost.sum > 2usd", "cost.sum < 2usd", "cost.mean > 0.4"):
        assert outcome(expression, experiment) == (
            "undecided",
            f"cannot decide {expression!r}: the cost is not fully known: 1 of 4 runs have unpriced calls",
        )


def test_costs_that_nobody_knows_are_not_0(store: Any) -> None:
    result, reason = outcome("cost.sum > 1", measured(store, [1.0]))
    assert (result, "the cost of no run is known; report it with set_usage(cost=…)" in reason) == ("undecided", True)


def test_latencies_are_those_of_the_summary(store: Any) -> None:
    experiment = measured(store, [1.0] * 20)
    for name, ms in {"p50": experiment.summary.p50_ms, "p95": experiment.summary.p95_ms}.items():
        assert ms is not None
        assert outcome(f"latency.{name} > {ms * 1.001:.9f}ms", experiment)[0] == "passed"
        assert outcome(f"latency.{name} > {ms * 0.999 / 1000:.12f}s", experiment)[0] == "failed"
    assert outcome("latency.mean > 1min", experiment)[0] == "passed"


def test_negative_durations_are_left_out(store: Any) -> None:
    experiment = measured(store, [1.0] * 2)
    first, second = experiment.runs
    experiment.runs = [replace(first, duration_ns=-5), replace(second, duration_ns=10**9)]
    assert outcome("latency.mean < 1s", experiment) == ("passed", "latency.mean is 1s")
    experiment.runs = [replace(first, duration_ns=-5)]
    assert outcome("latency.max < 1s", experiment)[0] == "undecided"


def test_problems_are_counted(store: Any) -> None:
    poor = measured(store, [0.0] * 20, threshold=0.9, range=(0.0, 1.0))
    assert outcome("problems.severe > 0", poor) == ("failed", "problems.severe is 1, which is > 0")
    good = measured(store, [1.0] * 20, threshold=0.9, range=(0.0, 1.0))
    assert outcome("problems.sum > 0", good)[0] == "passed"


def test_robustness_without_perturbations_is_undecided(store: Any) -> None:
    state, reason = outcome("robustness.typos < 0.9", measured(store, [True, False]))
    assert (state, "no base case has a scored perturbation of the kind 'typos'" in reason) == ("undecided", True)


def test_robustness_is_the_lowest_share_of_stable_base_cases(store: Any) -> None:
    rows = [{"inputs": {"n": n}, "id": f"e{n}"} for n in range(4)]
    rows += [{"inputs": {"n": n}, "base_id": f"e{n - 4}", "categories": ["typos"]} for n in range(4, 8)]
    judge = evaluator(key="k")(lambda inputs: inputs["n"] != 7)
    experiment = evaluate(rows, lambda n: n, [judge], name="x", store=store, progress=False)
    state, reason = outcome("robustness.typos < 80%", MeasuredExperiment(experiment))
    assert (state, reason) == ("failed", "robustness.typos is 75%, which is < 80%")


def test_feedback_called_like_a_measure_takes_precedence(command: Command) -> None:
    text = EVALUATION + "def latency(outputs): return 7.0\nevaluators = ['exact', latency]\n"
    status, said = command.check(*fail_if("latency.mean > 6", "latency.p95 > 2min"), text=text)
    assert (status, last(said)) == (1, "latency.mean is 7, which is > 6")
    status, said = command.check(*fail_if("latency.mean > 6s"), text=text)
    assert (status, "'latency' is reported by an evaluator, and its scores have no unit; omit it" in said) == (3, True)


# --- the command


def test_an_expression_that_is_true_fails_the_gate(command: Command) -> None:
    status, said = command.check(*fail_if("exact.mean < 0.8"), RIGHT=14)
    assert (status, last(said)) == (1, "exact.mean is 0.7, which is < 0.8")


def test_an_expression_that_is_false_passes(command: Command) -> None:
    assert command.check(*fail_if("exact.mean < 0.8", "cost.sum > 3usd"))[0] == 0


def test_an_undecided_expression_exits_with_2(command: Command) -> None:
    status, said = command.check(*fail_if("cost.sum > 2usd"), UNPRICED=(3,))
    assert (status, last(said).startswith("cannot decide 'cost.sum > 2usd'")) == (2, True)


@pytest.mark.parametrize(("choice", "status"), [("pass", 0), ("fail", 1)])
def test_undecided_expressions_can_count_as_passed_or_failed(command: Command, choice: str, status: int) -> None:
    assert command.check(*fail_if("cost.sum > 2usd"), "--inconclusive", choice, UNPRICED=(3,))[0] == status


def test_a_failed_expression_is_worse_than_an_undecided_one(command: Command) -> None:
    assert command.check(*fail_if("cost.sum > 2usd", "exact.mean < 2"), UNPRICED=(3,))[0] == 1


def test_a_key_that_no_evaluator_reports_is_refused_before_anything_runs(command: Command) -> None:
    status, said = command.check(*fail_if("helpful.mean < 0.8"))
    assert (status, "--fail-if 'helpful': no evaluator reports this key; known keys: exact, task_ok" in said) == (
        3,
        True,
    )
    assert not command.store.exists()


def test_a_key_that_is_known_at_run_time_only_is_checked_after_the_runs(command: Command) -> None:
    text = EVALUATION + "def many(outputs): return [{'key': 'helpful', 'score': 0.5}]\nevaluators = [many]\n"
    status, said = command.check(*fail_if("helpful.mean < 0.8"), text=text)
    assert (status, last(said)) == (1, "helpful.mean is 0.5, which is < 0.8")
    status, said = command.check(*fail_if("unheard-of.mean < 0.8"), text=text)
    assert (status, last(said)) == (1, "unheard-of has no score")


@loop_over(
    "arguments, reason",
    [
        (["--fail-if", "exact worse"], "a conclusion needs an experiment to compare with; add --baseline"),
        (["--margin", "exact=0.1"], "--margin is an option of the comparison with a baseline; add --baseline"),
        (["--primary", "exact"], "--primary is an option of the comparison with a baseline; add --baseline"),
        (["--margin", "exact=nan"], "--margin must be KEY=NUMBER with a positive number, such as exact=0.02"),
        (["--margin", "exact=0"], "--margin must be KEY=NUMBER"),
        (["--margin", "0.1"], "--margin must be KEY=NUMBER"),
        (["--inconclusive", "maybe"], "--inconclusive must be pass or fail, got 'maybe'"),
        (["--allow-failed", "many"], "--allow-failed must be a number of runs"),
        (["--fail-if", "exact.mean < x"], "must be a finite number"),
    ],
)
def test_broken_options_exit_with_3(tmp_path: Path, arguments: list[str], reason: str) -> None:
    status, said = Command(tmp_path).check(*arguments)
    assert (status, reason in said) == (3, True)


@loop_over("arguments", [["--no-such-option"], ["--limit", "many"], ["--limit"]])
def test_usage_errors_exit_with_3(tmp_path: Path, arguments: list[str]) -> None:
    assert Command(tmp_path).check(*arguments)[0] == 3
