import pytest

from collector.making import run
from looped_cases import loop_over
from spanwise.collector.pages.components import feedback_display
from spanwise.collector.pages.components.feedback_display import get_metric_info
from spanwise.collector.records import Feedback, FeedbackStats, Target


def feedback(key="k", **fields):
    return Feedback(target=Target(trace_id="a" * 32), key=key, **fields)


@loop_over(
    ("fields", "text", "share"),
    [
        ({"score": 0.25}, "0.25", 0.25),
        ({"score": 1}, "1", 1.0),
        ({"score": 0}, "0", 0.0),
        ({"score": True}, "yes", 1.0),
        ({"score": True, "label": "True"}, "yes", 1.0),
        ({"score": False, "label": "curt"}, "curt no", 0.0),
        ({"label": "TRUE"}, "yes", None),
        ({"score": 1.5}, "1.5", None),
        ({"score": -0.1}, "-0.1", None),
        ({"score": False}, "no", 0.0),
        ({"score": 0.5, "label": "middling"}, "middling 0.5", 0.5),
        ({"label": "kind"}, "kind", None),
        ({"outcome": "error", "error": "boom"}, "error", None),
        ({"outcome": "skip"}, "skipped", None),
    ],
)
def test_only_a_score_between_0_and_1_fills_a_bar(fields, text, share):
    chip = feedback_display.make_chip(feedback(**fields))
    assert (chip.text, chip.share) == (text, share)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"score": 0.5}, "k: 0.5"),
        ({"score": 0.5, "comment": "rather long"}, "k: 0.5, rather long"),
        ({"outcome": "error", "error": "boom", "comment": "no"}, "k: error, boom"),
        ({"outcome": "skip", "comment": "nothing to see"}, "k: skip, nothing to see"),
    ],
)
def test_a_hint_says_why(fields, hint):
    assert feedback_display.make_chip(feedback(**fields)).hint == hint


def test_the_last_word_per_key_stands_for_the_others():
    words = [feedback("b", score=n, author=str(n), created_ns=n) for n in (2, 3, 1)] + [feedback("a", score=9)]
    found = feedback_display.get_latest_chips(words)
    assert [(key, chip.text, chip.more) for key, chip in found.items()] == [("a", "9", 0), ("b", "3", 2)]


def test_everybodys_newest_word_stands_side_by_side():
    ann = [feedback(score=n, source="human", author="ann", created_ns=n) for n in (1, 3)]
    ben = feedback(score=2, source="human", author="ben", created_ns=2)
    assert [chip.text for chip in feedback_display.get_author_chips([*ann, ben, feedback("a", score=7)])] == [
        "7",
        "2",
        "3",
    ]


def test_feedback_of_a_page_is_sorted_by_trace(store):
    traces = [run(), run()]
    store.append(traces)
    for n, trace in enumerate(traces):
        store.feedback(trace.trace_id, "k", n)
    found = feedback_display.load_chips(store, list(store.traces()))
    assert {trace_id: {key: chip.text for key, chip in of.items()} for trace_id, of in found.items()} == {
        trace.trace_id: {"k": str(n)} for n, trace in enumerate(traces)
    }
    assert feedback_display.load_chips(store, []) == {}


def test_more_feedback_than_one_query_gives_is_shown_as_well(store):
    root = run()
    store.append([root])
    words = [Feedback(target=Target(trace_id=root.trace_id), key=f"k{n:04}", score=n) for n in range(1_001)]
    store.add_feedback(words)
    (of_trace,) = feedback_display.load_chips(store, list(store.traces())).values()
    assert len(of_trace) == 1_001


def test_the_commonest_keys_get_columns_and_of_equals_the_first():
    chip = feedback_display.make_chip(feedback(score=1))
    of_traces = {"1": {"z": chip, "b": chip, "a": chip}, "2": {"z": chip}, "3": {"c": chip}}
    assert feedback_display.choose_columns(of_traces, most=3) == ["z", "a", "b"]


def test_means_of_zeros_and_ones_are_shares_unless_one_experiment_has_other_scores():
    shares, scores = FeedbackStats(key="k", n=2, mean=0.5, binary=True), FeedbackStats(key="k", n=2, mean=0.4)
    known = get_metric_info([], [shares, FeedbackStats(key="k", failed=1)])["k"]
    assert (known.number(0.934), known.signed(0.057), known.signed(-0.01), known.signed(0)) == (
        "93 %",
        "+5.7 points",
        "−1 point",
        "±0 points",
    )
    assert known.score(True, "yes") == "yes"
    assert "k" not in get_metric_info([], [shares, scores])
