"""Analysis of experiments by model: leaderboards, problems, insights, compliance, trade-offs and sweeps."""

import math
from contextlib import suppress
from functools import partial

import pytest
from starlette.testclient import TestClient

from looped_cases import loop_over
from spanwise.collector.api import create_app
from spanwise.evaluators import Metric, datasets, evaluate, evaluator, get_evaluator, history
from spanwise.evaluators.analysis import Analysis, Cell, analyze, sweep
from spanwise.evaluators.analysis.model_findings import make_scale, measure_severity, rank_models
from spanwise.evaluators.analysis.model_results import SEVERAL_MODELS
from spanwise.tracer import current_run, span, trace

HIGHER = Metric("k", threshold=0.5)


def run(store, name, scores, metrics=(HIGHER,), *, dataset=None, model=None, repetitions=1):
    """Run an experiment whose scores by key and example are given; an exception is an evaluator's error."""
    keys = [metric.key for metric in metrics]
    rows = dataset or [{"inputs": {"q": n}, "id": f"e{n}"} for n in range(len(scores[keys[0]]))]

    @evaluator(metrics=list(metrics))
    def judge(inputs):
        rows = [{"key": key, "score": scores[key][inputs["q"]]} for key in keys]
        for row in rows:
            if isinstance(row["score"], Exception):
                raise row["score"]
        return rows

    metadata = {"model": model} if model else None
    return evaluate(
        rows, lambda q: q, [judge], name=name, store=store, metadata=metadata, progress=False, repetitions=repetitions
    )


def two(store, first, second, metrics=(HIGHER,)):
    """Analyze two models, a and b, with these scores of the first metric."""
    key = metrics[0].key
    return analyze(run(store, "a", {key: first}, metrics), run(store, "b", {key: second}, metrics))


# --- models -----------------------------------------------------------------------------------------------------------


def test_the_model_is_that_of_the_metadata_then_of_the_calls_then_the_name(store):
    def calls(*models):
        def task(q):
            for model in models:
                with span("chat", kind="llm"):
                    current_run().set_model(model)
            return q

        return task

    rows = [{"inputs": {"q": 1}}]

    def models(name, task, **options):
        return analyze(evaluate(rows, task, name=name, store=store, progress=False, **options)).models

    assert models("declared", calls("gpt"), metadata={"model": "mine"}) == ["mine"]
    assert models("called", calls("gpt")) == ["gpt"]
    assert models("mixed", calls("gpt", "other")) == [SEVERAL_MODELS]
    assert models("plain", lambda q: q) == ["plain"]


def test_experiments_with_the_same_model_are_one_model(store):
    first, second = (run(store, name, {"k": [score] * 4}, model="m") for name, score in (("a", 1.0), ("b", 0.0)))
    (cell,) = analyze(first, second).results.cells.values()
    assert (cell.model, cell.n, cell.mean) == ("m", 8, 0.5)


def test_equal_names_without_a_model_are_told_apart(store):
    models = analyze(run(store, "a", {"k": [1.0]}), run(store, "a", {"k": [0.0]})).models
    assert len(models) == 2
    assert all(model.startswith("a (") for model in models)


def test_names_need_a_store(store):
    run(store, "a", {"k": [1.0]})
    assert analyze("a", store=store).models == ["a"]
    with pytest.raises(ValueError, match="is a name: pass its store"):
        analyze("a")
    with pytest.raises(ValueError, match="requires one or more experiments"):
        analyze()


# --- leaderboards -----------------------------------------------------------------------------------------------------


def cell(model, mean, low=None, high=None):
    """Return the result of a model."""
    return Cell(model=model, key="k", n=9, mean=mean, interval=None if low is None else (low, high))


@loop_over(
    ("cells", "ranks"),
    [
        ([cell("a", 0.9, 0.8, 1.0), cell("b", 0.5, 0.4, 0.6)], {"a": (1, 1), "b": (2, 2)}),
        ([cell("a", 0.9, 0.7, 1.0), cell("b", 0.7, 0.5, 0.8)], {"a": (1, 2), "b": (1, 2)}),
        (
            [cell("a", 0.9, 0.8, 1.0), cell("b", 0.75, 0.6, 0.85), cell("c", 0.5, 0.4, 0.65)],
            {"a": (1, 2), "b": (1, 3), "c": (2, 3)},
        ),
        ([cell("a", 0.9), cell("b", 0.5)], {"a": (1, 1), "b": (2, 2)}),
        ([cell("a", None), cell("b", 0.5)], {"b": (1, 1)}),
        ([], {}),
    ],
)
def test_models_whose_intervals_overlap_share_a_rank(cells, ranks):
    assert rank_models(cells, HIGHER) == ranks


def test_where_lower_is_better_the_lowest_is_first():
    lower = Metric("k", higher_is_better=False)
    assert rank_models([cell("a", 0.9, 0.8, 1.0), cell("b", 0.1, 0.0, 0.2)], lower) == {"b": (1, 1), "a": (2, 2)}


@loop_over(
    ("metric", "value", "expected"),
    [
        (Metric("k"), 0.25, 0.25),
        (Metric("k", higher_is_better=False), 0.25, 0.75),
        (Metric("k", (1.0, math.inf), higher_is_better=False), 10.0, 1.0),
        (Metric("k", None), 20.0, 1.0),
    ],
)
def test_warmth_follows_the_range_and_the_direction(metric, value, expected):
    assert make_scale(metric, [10.0, 20.0])(value) == expected


def test_the_best_model_is_the_first_of_the_leaderboard(store):
    analysis = two(store, [0.0] * 20, [1.0] * 20)
    board = analysis.leaderboard
    assert (board.models, board.ranks["k"]) == (["b", "a"], {"b": (1, 1), "a": (2, 2)})
    assert board.cells["b", "k"].n == 20
    assert (board.warmth["a", "k"], board.warmth["b", "k"]) == (0.0, 1.0)


def test_prompts_are_ordered_from_the_worst(store):
    analysis = two(store, [1.0, 0.0, 0.5], [1.0, 0.25, 0.5])
    prompts = analysis.prompts("k")
    assert prompts.example_ids == ["e1", "e2", "e0"]
    assert prompts.scores["b", "e1"] == 0.25
    with pytest.raises(ValueError, match="no model has scores of 'nope'; known keys: k"):
        analysis.prompts("nope")


def pii(store, name, leaks):
    """Run the boolean evaluator of leaked personal data; each answer leaks an address or not."""
    rows = [{"inputs": {"leak": leak}, "id": f"e{n}"} for n, leak in enumerate(leaks)]
    answers = {True: "Write to jane.doe@example.org or +1 212 555 0123.", False: "It is raining."}
    return evaluate(rows, lambda leak: answers[leak], ["pii"], name=name, store=store, progress=False)


def test_boolean_leaderboards_are_ordered_by_the_cases_that_succeeded(store):
    analysis = analyze(pii(store, "leaky", [True] * 3 + [False] * 3), pii(store, "tight", [False] * 6))
    (board,) = analysis.boolean_leaderboards
    assert [(row.model, row.cases, row.succeeded, row.passes, row.failures) for row in board.rows] == [
        ("tight", 6, 6, 1.0, 0.0),
        ("leaky", 6, 3, 0.5, 0.5),
    ]
    assert [key for key in analysis.leaderboard.keys if key.startswith("pii")] == ["pii"]


# --- problems ---------------------------------------------------------------------------------------------------------


@loop_over(
    ("metric", "mean", "severity"),
    [
        (Metric("k", threshold=0.75), 0.5, 0.25),
        (Metric("k", (0.0, 10.0), threshold=5.0), 0.0, 0.5),
        (Metric("k", (1.0, math.inf), higher_is_better=False, threshold=4.0), 6.0, 0.5),
        (Metric("k", (0.0, math.inf), higher_is_better=False, threshold=4.0), 400.0, 1.0),
        (Metric("k", None, higher_is_better=False, threshold=0.0), 0.1, 1.0),
    ],
)
def test_severity_is_the_distance_in_units_of_the_range_or_the_threshold(metric, mean, severity):
    assert measure_severity(metric, mean) == severity


def test_a_mean_on_the_wrong_side_of_its_threshold_is_a_problem(store):
    analysis = two(store, [0.0] * 20, [1.0] * 20)
    (problem,) = analysis.problems
    assert (problem.kind, problem.model, problem.key, problem.severity) == ("threshold", "a", "k", 0.5)
    assert (problem.certain, problem.severe, len(problem.cases)) == (True, True, 20)


def test_a_mean_equal_to_its_threshold_is_no_problem(store):
    assert two(store, [0.5] * 4, [0.0, 1.0]).problems == []


def test_where_lower_is_better_the_wrong_side_is_above(store):
    metric = Metric("k", higher_is_better=False, threshold=0.5)
    (problem,) = two(store, [0.0] * 20, [1.0] * 20, (metric,)).problems
    assert (problem.model, "above its threshold of 0.5" in problem.text) == ("b", True)


def test_a_problem_whose_interval_reaches_the_threshold_is_not_certain(store):
    (problem,) = analyze(run(store, "a", {"k": [0.0, 1.0, 0.0]})).problems
    assert (problem.certain, problem.severe) == (False, False)


def perturbed(store, name, passing):
    """Run over two base cases with one perturbation each; `passing` are the scores of e0, e0 perturbed, e1, e1 p."""
    rows = [
        {"inputs": {"q": 0}, "id": "e0"},
        {"inputs": {"q": 1}, "id": "e0-typos", "base_id": "e0", "categories": ["typos"]},
        {"inputs": {"q": 2}, "id": "e1"},
        {"inputs": {"q": 3}, "id": "e1-typos", "base_id": "e1", "categories": ["typos"]},
    ]
    if "perturbed" not in {each.name for each in store.datasets()}:
        datasets.save(store, "perturbed", rows)
    return run(store, name, {"k": passing}, dataset="perturbed")


def test_a_perturbed_case_that_flips_is_a_problem_in_either_direction(store):
    flips = [
        problem for problem in analyze(perturbed(store, "a", [1.0, 0.0, 0.0, 1.0])).problems if problem.kind == "flip"
    ]
    assert {text.split(": ")[1] for text in (flip.text for flip in flips)} == {
        "the perturbed case e0-typos (typos) fails and its base case passes",
        "the perturbed case e1-typos (typos) passes and its base case fails",
    }
    assert all(len(flip.cases) == 2 for flip in flips)


def test_a_perturbed_case_that_stays_the_same_is_no_problem(store):
    assert analyze(perturbed(store, "a", [1.0, 1.0, 1.0, 1.0])).problems == []


def test_answers_without_a_sentence_are_a_problem_of_their_share(store):
    empty = ValueError("the answer has no sentence")
    analysis = analyze(run(store, "a", {"k": [1.0, empty, 1.0, 1.0]}))
    (problem,) = [problem for problem in analysis.problems if problem.kind == "empty answer"]
    assert (problem.severity, list(problem.cases)) == (0.25, ["e1"])


def test_artifacts_that_failed_are_a_problem(store):
    rows = [{"inputs": {"content": content}} for content in ("[1]", "[1")]
    experiment = evaluate(
        rows,
        lambda content: {"artifacts": [{"path": "a.json", "content": content}]},
        ["agent_sanity"],
        store=store,
        progress=False,
    )
    problems = {problem.kind: problem for problem in analyze(experiment).problems}
    assert problems["artifacts"].severity == 0.5
    assert "a.json" in problems["artifacts"].text


def test_problems_of_an_agents_session_are_a_problem(store):
    @trace(kind="agent")
    def agent(content):
        with suppress(ConnectionError), span("look up", kind="tool"):
            raise ConnectionError("away")
        return {"artifacts": [{"path": "a.json", "content": content}]}

    experiment = evaluate([{"inputs": {"content": "[1]"}}], agent, ["agent_sanity"], store=store, progress=False)
    problems = {problem.kind: problem for problem in analyze(experiment).problems}
    assert problems["session"].severity == 1.0
    assert "away" in problems["session"].text
    assert kinds(analyze(experiment))["checks"].text == problems["session"].text
    assert "artifacts" not in problems


def test_a_threshold_that_no_score_can_meet_raises_no_problem_and_is_named(store):
    metric = Metric("k", (1.0, math.inf), higher_is_better=False, threshold=0.5)
    analysis = two(store, [2.0] * 4, [3.0] * 4, (metric,))
    assert analysis.problems == []
    assert {each.reason for each in analysis.unusable_thresholds} == {"no score can be as low: the range begins at 1"}


# --- insights ---------------------------------------------------------------------------------------------------------


def kinds(analysis):
    """Return the insights by kind."""
    return {insight.kind: insight for insight in analysis.insights}


def test_the_best_model_is_an_insight_if_the_difference_is_more_than_chance(store):
    best = kinds(two(store, [0.0] * 20, [1.0] * 20))["best model"]
    assert (best.models, best.shown) == (("b",), True)


def test_a_difference_that_chance_explains_is_no_insight(store):
    best = kinds(two(store, [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]))["best model"]
    assert (best.shown, "no difference can be shown between b (1) and a (0.6667)" in best.text) == (False, True)


def test_ties_are_named(store):
    best = kinds(two(store, [1.0, 0.0], [0.0, 1.0]))["best model"]
    assert (best.models, best.shown) == (("a", "b"), False)
    assert "a and b are tied at 0.5" in best.text


def test_the_hardest_case_is_the_one_that_most_models_failed(store):
    hardest = kinds(two(store, [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]))["hardest test case"]
    assert (list(hardest.cases), "2 of 2 models failed" in hardest.text) == (["e1"], True)


def test_with_one_model_it_is_the_worst_case(store):
    insights = kinds(analyze(run(store, "a", {"k": [1.0, 0.2]})))
    assert "only the worst case of that model" in insights["worst case"].text
    assert "best model" not in insights


def test_a_boolean_evaluator_has_extremes_of_accuracy_and_speed(store):
    insights = kinds(analyze(pii(store, "leaky", [True] * 12), pii(store, "tight", [False] * 12)))
    assert insights["most accurate model"].models == ("tight",)
    assert insights["least accurate model"].models == ("leaky",)
    assert {"fastest model", "slowest model"} <= insights.keys()
    assert "cheapest model" not in insights


def test_the_cheapest_model_is_named_if_costs_are_known(store):
    def task(leak, cost):
        current_run().set_usage(cost=cost, input_tokens=1)
        return "It is raining."

    rows = [{"inputs": {"leak": n}} for n in range(12)]
    sides = [
        evaluate(rows, lambda leak, c=cost: task(leak, c), ["pii"], name=name, store=store, progress=False)
        for name, cost in (("cheap", 0.001), ("dear", 0.01))
    ]
    insights = kinds(analyze(*sides))
    assert insights["cheapest model"].models == ("cheap",)
    assert insights["most expensive model"].models == ("dear",)


def test_retrieval_is_judged_by_an_evaluator_of_retrieval(store):
    rows = [{"inputs": {"n": n}, "expected_documents": [f"d{n}"]} for n in range(12)]

    def task(n, found):
        with span("search", kind="retriever"):
            current_run().set_documents([{"content": f"d{n}" if found else "other"}])
        return "It is raining."

    reply = {"answer": "It rains.", "evaluation_score": 1.0, "evaluation_summary": "True."}
    evaluators = [get_evaluator("fact_check", agent=lambda prompt: reply), "hit_at_k"]
    sides = [
        evaluate(rows, partial(task, found=found), evaluators, name=name, store=store, progress=False)
        for name, found in (("finder", True), ("blind", False))
    ]
    insights = kinds(analyze(*sides))
    assert (insights["best retrieval"].models, insights["best retrieval"].key) == (("finder",), "fact_check")
    assert insights["worst retrieval"].models == ("blind",)


# --- compliance and trade-offs ----------------------------------------------------------------------------------------


def test_compliance_lists_all_nine_standards_and_who_covers_them(store):
    coverage = {each.standard: each for each in analyze(pii(store, "a", [False])).compliance}
    assert len(coverage) == 9
    assert coverage["Privacy Enhanced (NIST AI RMF)"].evaluators == ("pii",)
    assert not coverage["Outcomes Analysis (SR 11-7)"].is_covered
    assert all(each.summary for each in coverage.values())


def test_the_pareto_front_leaves_out_models_that_another_one_dominates(store):
    def task(q, cost):
        current_run().set_usage(cost=cost, input_tokens=1)
        return q

    rows = [{"inputs": {"q": n}} for n in range(4)]
    sides = []
    for name, cost, score in (("cheap", 0.1, 0.5), ("good", 0.2, 0.9), ("bad", 0.3, 0.4)):
        judge = evaluator(key="k", range=(0, 1))(lambda outputs, s=score: s)
        sides.append(evaluate(rows, lambda q, c=cost: task(q, c), [judge], name=name, store=store, progress=False))
    (trade_off, *_) = analyze(*sides).trade_offs
    assert (trade_off.measure, trade_off.front) == ("cost", ("cheap", "good"))


def test_no_scores_at_all_are_analyzed(store):
    analysis = analyze(evaluate([{"q": 1}], lambda q: q, name="a", store=store, progress=False))
    assert (analysis.problems, analysis.insights, analysis.headline) == ([], [], "No scores to analyze.")
    assert "No scores to analyze." in str(analysis)


def test_hostile_names_are_text(store):
    analysis = analyze(run(store, "[red]<b>x", {"k": [0.0, 1.0]}, model="[bold]m\x1b[31m"))
    assert "[bold]m" in str(analysis)
    assert "\x1b[31m" not in str(analysis)


# --- sweeps -----------------------------------------------------------------------------------------------------------

QUESTIONS = [{"inputs": {"q": n}, "reference_outputs": n} for n in range(12)]


def test_a_sweep_runs_one_experiment_per_combination(store):
    swept = sweep(
        QUESTIONS, lambda q, k, model: q * k, {"k": [0, 1], "model": ["a", "b"]}, ["exact"], store=store, progress=False
    )
    assert list(swept.experiments) == [f"sweep k={k} model={model}" for k in (0, 1) for model in "ab"]
    assert swept.analysis.leaderboard.models[0] == "sweep k=1 model=a"
    assert swept.comparison.contrasts(2)["exact"].word == "better"
    assert swept.experiments["sweep k=1 model=b"].record.metadata["k"] == 1


def test_a_mapping_of_tasks_is_swept_by_name(store):
    swept = sweep(
        QUESTIONS,
        {"right": lambda q: q, "wrong": lambda q: -1},
        evaluators=["exact"],
        name="v",
        baseline="wrong",
        store=store,
        progress=False,
    )
    assert list(swept.experiments) == ["v wrong", "v right"]
    assert swept.comparison["exact"].word == "better"


def test_a_sweep_compares_each_with_each_on_request(store):
    tasks = {name: (lambda q: q) for name in "abc"}
    swept = sweep(QUESTIONS, tasks, evaluators=["exact"], all_pairs=True, store=store, progress=False)
    assert swept.comparison.comparisons == [(0, 1), (0, 2), (1, 2)]


def costly(q, k):
    """Return an answer that costs ten cents."""
    current_run().set_usage(cost=0.1, input_tokens=1)
    return q


def test_the_budget_holds_over_all_cells(store):
    swept = sweep(
        QUESTIONS, costly, {"k": [1, 2, 3]}, ["exact"], max_usd=1.5, store=store, progress=False, concurrency=1
    )
    assert [experiment.summary().runs for experiment in swept.experiments.values()] == [12, 3]
    assert swept.left_out == ["sweep k=3"]
    assert "sweep k=3: not run, the budget was spent" in str(swept)


def test_a_sweep_is_resumed_with_its_budget(store):
    options = {"store": store, "progress": False, "concurrency": 1}
    sweep(QUESTIONS, costly, {"k": [1, 2, 3]}, ["exact"], max_usd=1.5, **options)
    swept = sweep(QUESTIONS, costly, {"k": [1, 2, 3]}, ["exact"], max_usd=2.0, resume=True, **options)
    runs = [experiment.summary().runs for experiment in swept.experiments.values()]
    assert (runs, swept.left_out) == ([12, 8], ["sweep k=3"])


def test_a_resumed_sweep_keeps_finished_cells_that_cost_nothing(store):
    def task(q, k):
        if k == 2:
            current_run().set_usage(cost=1.0, input_tokens=1)
        return q

    options = {"store": store, "progress": False, "concurrency": 1, "max_usd": 2.0}
    runs = [
        {name: experiment.summary().runs for name, experiment in swept.experiments.items()}
        for swept in (
            sweep(QUESTIONS, task, {"k": [1, 2, 3]}, ["exact"], resume=resume, **options) for resume in (False, True)
        )
    ]
    assert runs == [{"sweep k=1": 12, "sweep k=2": 2}] * 2


def test_the_budget_counts_failed_runs_that_later_ones_have_replaced(store, tmp_path):
    away = tmp_path / "away"

    def task(q, k):
        current_run().set_usage(cost=0.1, input_tokens=1)
        if away.exists():
            raise ValueError("away")
        return q

    options = {"store": store, "progress": False, "concurrency": 1}
    away.touch()
    sweep(QUESTIONS[:4], task, {"k": [1]}, ["exact"], **options)  # 0.4 for runs that are replaced
    away.unlink()
    swept = sweep(QUESTIONS[:4], task, {"k": [1, 2]}, ["exact"], resume=True, max_usd=1.0, **options)
    assert [experiment.summary().runs for experiment in swept.experiments.values()] == [4, 2]


def test_unknown_costs_stop_nothing_and_are_named(store):
    def task(q, k):
        with span("chat", kind="llm"):
            current_run().set_model("a model without a price")
            current_run().set_usage(input_tokens=1)
        return q

    swept = sweep(QUESTIONS, task, {"k": [1, 2]}, ["exact"], max_usd=0.01, store=store, progress=False)
    assert [experiment.summary().runs for experiment in swept.experiments.values()] == [12, 12]
    assert "max_usd does not count calls of a model without a price" in str(swept.experiments["sweep k=1"])
    assert [trade_off.measure for trade_off in swept.analysis.trade_offs] == ["latency"]


@loop_over(
    ("task", "parameters", "options", "message"),
    [
        (costly, None, {}, "requires parameters"),
        (costly, {}, {}, "requires parameters"),
        ({}, None, {}, "1 to 1,000 cells, got 0"),
        ({"a": costly}, {"k": [1]}, {}, "either a mapping of tasks or parameters"),
        (costly, {"k": "abc"}, {}, "values of 'k' must be a list"),
        (costly, {"k": []}, {}, "got 0"),
        (costly, {"k": [1, 1]}, {}, "same name"),
        (costly, {"k": list(range(1001))}, {}, "got 1,001"),
        (costly, {"k": [1]}, {"baseline": "k=9"}, "baseline 'k=9' is no cell of the sweep; cells: sweep k=1"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_before_its_first_run(tmp_path, task, parameters, options, message):
    with pytest.raises(ValueError, match=message):
        sweep(QUESTIONS, task, parameters, ["exact"], store=tmp_path / "s.db", progress=False, **options)


# --- history ----------------------------------------------------------------------------------------------------------


def three_experiments(store):
    """Run three experiments over one dataset, with more and more right answers."""
    datasets.save(store, "daily", [{"inputs": {"q": n}, "reference_outputs": n} for n in range(20)])
    for right in (5, 10, 20):
        evaluate(
            "daily", lambda q, r=right: q if q < r else -1, ["exact"], name=f"run {right}", store=store, progress=False
        )


def test_the_history_of_a_dataset_is_in_order_of_time_with_intervals(store):
    three_experiments(store)
    points = history("daily", store=store)["exact"]
    assert [(point.name, point.mean, point.n) for point in points] == [
        ("run 5", 0.25, 20),
        ("run 10", 0.5, 20),
        ("run 20", 1.0, 20),
    ]
    assert all(point.interval[0] <= point.mean <= point.interval[1] for point in points)
    assert list(history("daily", store=store).to_pandas()["low"].notna()) == [True] * 3


def test_a_dataset_without_experiments_has_no_history(store):
    assert list(history("nope", store=store)) == []
    with pytest.raises(KeyError, match="no experiment over 'nope' has scores of 'k'; known keys: none"):
        history("nope", store=store)["k"]


def test_the_page_of_a_datasets_experiments_draws_a_line_per_key(store):
    three_experiments(store)
    with TestClient(create_app(store)) as client:
        text = client.get("/experiments?dataset=daily").text
        every = client.get("/experiments").text
    assert 'aria-label="exact, earliest first: run 5 25 %; run 10 50 %; run 20 100 %"' in text
    assert 'class="band" d="M' in text
    assert 'class="band"' not in every


# --- set-level evaluators ---------------------------------------------------------------------------------------------


def classified(store, name, wrong, **options):
    """Run the set-level evaluator of classifications; the cases at these positions are wrong, the last is perturbed."""
    rows = [{"id": f"e{n}", "inputs": {"n": n}, "reference_outputs": "yes"} for n in range(12)]
    rows.append(
        {"id": "typo", "inputs": {"n": 12}, "reference_outputs": "yes", "base_id": "e0", "categories": ["typos"]}
    )
    task = options.pop("task", lambda n: "no" if n in wrong else "yes")
    return evaluate(rows, task, ["classification"], name=name, store=store, progress=False, **options)


def test_the_accuracy_of_a_classification_is_the_mean_of_its_cases(store):
    analysis = analyze(classified(store, "bad", set(range(2, 13))), classified(store, "good", {12}))
    cell = analysis.results.cells["good", "classification_accuracy"]
    assert (cell.n, cell.mean, cell.interval is not None) == (13, pytest.approx(12 / 13), True)
    assert analysis.leaderboard.ranks["classification_accuracy"] == {"good": (1, 1), "bad": (2, 2)}


def test_a_classification_has_problems(store):
    problems = {(each.kind, each.key): each for each in analyze(classified(store, "bad", set(range(2, 13)))).problems}
    accuracy = problems["threshold", "classification_accuracy"]
    assert (accuracy.severe, len(accuracy.cases)) == (True, 11)
    assert problems["flip", "classification_accuracy"].cases.keys() == {"typo", "e0"}
    # the other metrics are one number per experiment, without an interval
    recall = problems["threshold", "classification_recall"]
    assert (recall.severity, recall.certain) == (pytest.approx(0.75 - 2 / 13 / 2), False)


def test_a_classification_has_insights(store):
    insights = kinds(analyze(classified(store, "bad", set(range(2, 13))), classified(store, "good", {12})))
    assert insights["best model"].models == ("good",)
    assert insights["hardest test case"].cases.keys() == {"typo"}


def test_scores_of_other_sets_are_compared_without_claiming_a_difference(store):
    @evaluator(metrics=[Metric("spread", threshold=0.5)], summary=True)
    def spread(outputs):
        return len(set(outputs)) / len(outputs)

    rows = [{"inputs": {"n": n}} for n in range(4)]
    tasks = {"even": lambda n: n, "flat": lambda n: 0}
    sides = [evaluate(rows, task, [spread], name=name, store=store, progress=False) for name, task in tasks.items()]
    analysis = analyze(*sides)
    assert {model: cell.mean for (model, _), cell in analysis.results.cells.items()} == {"even": 1.0, "flat": 0.25}
    assert [(each.model, each.severity, each.certain) for each in analysis.problems] == [("flat", 0.25, False)]
    (insight,) = analysis.insights
    assert (insight.models, insight.shown) == (("even",), False)
    assert "no difference can be shown" in str(analysis)


def test_a_set_level_score_of_several_models_belongs_to_none(store):
    def task(n):
        with span("chat", kind="llm"):
            current_run().set_model("even" if n % 2 else "odd")
        return "yes"

    analysis = analyze(classified(store, "mixed", set(), task=task))
    assert {key for _, key in analysis.results.cells} == {"classification_accuracy"}
    assert {model: cell.n for (model, _), cell in analysis.results.cells.items()} == {"odd": 7, "even": 6}


# --- robustness by model ----------------------------------------------------------------------------------------------


def perturbed_by_two_models(store, **options):
    """Run one experiment whose cases go to two models, of which one cannot read capitals."""

    def task(question, model):
        with span("chat", kind="llm"):
            current_run().set_model(model)
        return "unknown" if model == "weak" and question.isupper() else "42"

    rows = []
    for n in range(6):
        model = "weak" if n % 2 else "strong"
        base = {"reference_outputs": "42", "inputs": {"question": f"What is {n}?", "model": model}, "id": f"e{n}"}
        upper = {"question": f"WHAT IS {n}?", "model": model}
        rows += [base, {**base, "inputs": upper, "id": f"p{n}", "base_id": f"e{n}", "categories": ["casing"]}]
    rows = options.pop("wrap", list)(rows)
    return evaluate(rows, task, ["exact"], name="mixed", store=store, progress=False, **options)


@pytest.mark.parametrize("wrap", [list, iter])  # a generator is not stored as a dataset
def test_robustness_is_that_of_models_within_one_experiment(store, wrap):
    analysis = analyze(perturbed_by_two_models(store, wrap=wrap))
    shares = {model: robustness["casing", "exact"].share for model, robustness in analysis.robustness.items()}
    assert shares == {"strong": 1.0, "weak": 0.0}
    assert {(each.model, each.kind) for each in analysis.problems if each.kind == "flip"} == {("weak", "flip")}


def test_experiments_of_one_model_have_one_robustness(store):
    sides = [perturbed(store, name, scores) for name, scores in (("a", [1.0, 0.0, 1.0, 1.0]), ("b", [1.0] * 4))]
    analysis = Analysis([(side.store, side.record) for side in sides], models=["m", "m"])
    # the scores of an example are averaged over both experiments: e0 has 1.0, its perturbation 0.5
    assert analysis.robustness["m"]["typos", "k"].share == 1.0
    assert [each.cases for each in analysis.robustness["m"].values()] == [2]


def test_the_terminal_shows_robustness_by_model_and_models_by_prompts(store):
    text = str(analyze(perturbed_by_two_models(store)))
    assert "Robustness: base cases that pass or fail alike" in text
    assert "0.0% [0.0%, 56.1%] n=3" in text
    assert "3 flips" in text
    assert "exact: the 10 worst of 12 prompts" in text
    assert "WHAT IS 1?" in text


def test_without_perturbations_there_is_no_robustness(store):
    analysis = two(store, [1.0], [1.0])
    assert analysis.robustness == {}
    assert "Robustness" not in str(analysis)
