"""Numbers over stored feedback: errors and skips are no scores, and every share says of what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.records import Feedback, Target
from spanwise.collector.statistics import (
    compute_boolean_rates,
    databricks_results,
    databricks_table,
    get_sampling_position,
    haystack_results,
    select_latest,
    summarize_by_key,
)


def row(value=None, key="k", trace=1, **more):
    """A score, a label, an error (an exception), or a skip (None)."""
    target = Target(trace_id=f"{trace:032x}")
    if value is None:
        return Feedback(target=target, key=key, outcome="skip", comment="nothing", **more)
    if isinstance(value, Exception):
        return Feedback(target=target, key=key, outcome="error", error=str(value), **more)
    return Feedback(
        target=target, key=key, **({"label": value} if isinstance(value, str) else {"score": value}), **more
    )


def test_errors_and_skips_are_counted_and_are_no_zeros():
    stats = summarize_by_key([row(1.0), row(0.5), row(None), row(ValueError("x")), row("good")])["k"]
    assert (stats.n, stats.mean, stats.minimum, stats.maximum) == (2, 0.75, 0.5, 1.0)
    assert (stats.failed, stats.skipped, stats.labels) == (1, 1, {"good": 1})


def test_a_key_without_scores_has_no_mean():
    stats = summarize_by_key([row(None), row(ValueError("x"))])["k"]
    assert (stats.n, stats.mean, stats.passed) == (0, None, None)


def test_the_share_that_passes():
    assert summarize_by_key([row(True), row(False), row(True), row(None)])["k"].passed == pytest.approx(2 / 3)
    assert summarize_by_key([row(0.2), row(0.8)])["k"].passed is None
    assert summarize_by_key([row(0.2), row(0.8), row(0.5)], {"k": lambda score: score >= 0.5})[
        "k"
    ].passed == pytest.approx(2 / 3)


@given(st.lists(st.floats(-1e9, 1e9) | st.booleans() | st.none() | st.just(ValueError("x")), min_size=1), st.randoms())
def test_order_does_not_matter_and_every_row_is_counted(values, random):
    rows = [row(value) for value in values]
    shuffled = random.sample(rows, len(rows))
    stats = summarize_by_key(rows)["k"]
    assert stats == summarize_by_key(shuffled)["k"]
    assert stats.n + stats.failed + stats.skipped == len(rows)
    if stats.n:
        assert stats.minimum - 1e-6 <= stats.mean <= stats.maximum + 1e-6


def test_newer_versions_replace_older_ones_and_people_stay_apart():
    rows = [
        row(0.0, version="2", created_ns=5),
        row(1.0, version="1", created_ns=2),
        row(1.0, source="human", author="ann", created_ns=1),
        row(0.0, source="human", author="ann", created_ns=2),
        row(1.0, source="human", author="bob", created_ns=1),
    ]
    assert [one.score for one in select_latest(rows)] == [0.0, 0.0, 1.0]


FAMILY = st.lists(
    st.sampled_from(["pass", "retrieval", "generation", "parse", "parse of old", "error", "skip"]), max_size=30
)


def rows_of(outcomes):
    for number, outcome in enumerate(outcomes):
        if outcome == "skip":
            yield row(None, "pii", number)
        elif outcome in ("parse of old", "error"):
            yield row(ValueError("parse failure: no JSON" if outcome == "parse of old" else "boom"), "pii", number)
        elif outcome == "parse":
            yield replace(row(False, "pii", number), label="parse failure")
            yield row(False, "pii_generation_fail", number)
        else:
            yield row(outcome == "pass", "pii", number)
            yield row(outcome == "retrieval", "pii_retrieval_fail", number)
            yield row(outcome == "generation", "pii_generation_fail", number)


@given(FAMILY)
def test_passes_failures_and_parse_failures_make_one(outcomes):
    family = compute_boolean_rates(rows_of(outcomes), "pii")
    assert family.cases + family.failed + family.skipped == len(outcomes)
    if not family.cases:
        assert family.passes is family.failures is family.parse_failures is None
        return
    assert family.passes + family.failures + family.parse_failures == pytest.approx(1)
    assert family.generation_failures == pytest.approx(outcomes.count("generation") / family.cases)


def test_retrieval_failures_are_of_the_contexts_that_were_judged():
    family = compute_boolean_rates(rows_of(["pass", "retrieval", "parse"]), "pii")
    assert (family.retrieval_failures, family.parse_failures) == (0.5, pytest.approx(1 / 3))


def test_results_under_databricks_names():
    rows = [
        row("yes", "correctness", comment="because"),
        row(False, "correctness"),
        row(ValueError("no answer"), "correctness"),
    ]
    assert databricks_results(rows, "correctness") == {
        "response/llm_judged/correctness/rating": ["yes", "no", None],
        "response/llm_judged/correctness/rationale": ["because", None, None],
        "response/llm_judged/correctness/error_message": [None, None, "no answer"],
        "response/llm_judged/correctness/rating/percentage": 0.5,
    }
    assert databricks_results([row(True, "safety")], "safety")["response/llm_judged/safety/rating/average"] == 1.0


def test_groundedness_is_the_judges_under_databricks_names():
    rows = [row(True, "groundedness_judge"), row(0.3, "groundedness")]
    for name in ("groundedness", "groundedness_judge"):
        said = databricks_results(rows, name)
        assert said["response/llm_judged/groundedness/rating"] == ["yes"]


def test_context_sufficiency_is_of_retrieval():
    said = databricks_results([row(False, "context_sufficiency", comment="no year")], "context_sufficiency")
    assert said == {
        "retrieval/llm_judged/context_sufficiency/rating": ["no"],
        "retrieval/llm_judged/context_sufficiency/rationale": ["no year"],
        "retrieval/llm_judged/context_sufficiency/error_message": [None],
        "retrieval/llm_judged/context_sufficiency/rating/percentage": 0.0,
    }


LISTS = {"ratings": ["yes", None], "rationales": ["so", None], "error_messages": [None, "boom"]}


@pytest.mark.parametrize("name", ["chunk_relevance", "fresh"])
def test_chunks_have_lists_and_a_precision(name):
    rows = [row(1.0, name, metadata=LISTS), row(ValueError("no judge"), name), row(None, name)]
    stem = f"retrieval/llm_judged/{name}"
    assert databricks_results(rows, name) == {
        f"{stem}/ratings": [["yes", None], None, None],
        f"{stem}/rationales": [["so", None], None, None],
        f"{stem}/error_messages": [[None, "boom"], ["no judge"], None],
        f"{stem}/precision": [1.0, None, None],
        f"{stem}/precision/average": 1.0,
    }


def test_a_judge_that_skipped_all_is_of_retrieval_if_that_is_said():
    assert "response/llm_judged/fresh/rating" in databricks_results([row(None, "fresh")], "fresh")
    said = databricks_results([row(None, "fresh")], "fresh", "RETRIEVAL")
    assert said["retrieval/llm_judged/fresh/precision/average"] is None


def judged(value, key, trace, **more):
    return row(value, key, trace, source="model", evaluator=key, **more)


def test_a_table_of_judges_has_one_entry_per_run_and_no_votes():
    runs = [
        [
            judged(True, "safety", 1),
            row(False, "safety", 1, source="human", author="ann"),
            judged(0.5, "faithfulness", 1),
        ],
        [judged(True, "safety", 2, created_ns=2**62), judged(False, "safety", 2)],
        [],
    ]
    table = databricks_table(runs)
    assert table["response/llm_judged/safety/rating"] == ["yes", "yes", None]
    assert {name.split("/")[2] for name in table} == {"safety"}


def test_other_judges_that_say_yes_or_no_are_in_the_table_too():
    polite = Feedback(target=Target(trace_id="1" * 32), key="polite", score=True, label="yes", source="model")
    assert databricks_table([[polite]])["response/llm_judged/polite/rating/percentage"] == 1.0


def test_document_recall_under_databricks_names():
    rows = [row(0.5, "document_recall"), row(None, "document_recall"), row(1.0, "document_recall"), row(1.0, "exact")]
    assert databricks_results(iter(rows), "document_recall") == {
        "retrieval/ground_truth/document_recall": [0.5, None, 1.0],
        "retrieval/ground_truth/document_recall/average": 0.75,
    }
    assert databricks_results([], "document_recall")["retrieval/ground_truth/document_recall/average"] is None


@pytest.mark.parametrize(
    ("evaluator", "column", "value"),
    [
        ("document_recall", "retrieval/ground_truth/mine", [0.5]),
        ("context_sufficiency", "retrieval/llm_judged/mine/rating", ["no"]),
        ("chunk_relevance", "retrieval/llm_judged/mine/precision", [0.5]),
        ("safety", "response/llm_judged/mine/rating/average", 0.0),
    ],
)
def test_a_judge_under_a_key_of_ones_own_keeps_its_form(evaluator, column, value):
    score = 0.5 if evaluator in ("document_recall", "chunk_relevance") else False
    said = row(score, "mine", evaluator=evaluator)
    assert databricks_table([[said]])[column] == value
    assert databricks_results([said], "mine")[column] == value


def test_results_under_haystacks_names():
    assert haystack_results([row(1.0), row(None), row(0.5), row(0.0, "other")], "k") == {
        "individual_scores": [1.0, None, 0.5],
        "score": 0.75,
    }
    assert haystack_results([], "k") == {"individual_scores": [], "score": None}


def test_u_is_fixed_even_and_free_of_the_bits_that_head_sampling_reads() -> None:
    assert (
        get_sampling_position("default/a") == get_sampling_position("default/a") != get_sampling_position("default/b")
    )
    kept = [get_sampling_position(f"{7:016x}{number:016x}") for number in range(2000)]  # the head keeps low ones alone
    assert all(0 <= value < 1 for value in (*kept, get_sampling_position("\ud800")))
    assert abs(sum(kept) / len(kept) - 0.5) < 0.03
    assert abs(sum(value < 0.1 for value in kept) / len(kept) - 0.1) < 0.03


def test_u_is_what_it_was_in_every_version() -> None:
    assert (
        get_sampling_position("0af7651916cd43dd8448eb211c80319c") == 0.52800064361768
    )  # stored decisions were made with it
