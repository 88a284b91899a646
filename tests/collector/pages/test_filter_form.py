import pytest

from assay.collector.pages.kit import filter_form


def read(fields=(), **settings):
    return filter_form.read(dict(fields).items(), **settings)


def test_an_empty_form_asks_for_live_traffic():
    query = read()
    assert query.filter.experiment == ""
    assert query.marks() == []


def test_experiments_come_in_when_asked_for():
    assert read({"traffic": "all"}).filter.experiment is None
    assert read({"experiment": "e1"}).filter.experiment == "e1"
    assert read(live=False).filter.experiment is None


@pytest.mark.parametrize(
    ("operator", "value", "field", "expected"),
    [
        ("<", "0.5", "feedback", (("concise", "<", 0.5),)),
        ("=", "true", "feedback", (("concise", "=", 1.0),)),
        ("!=", "curt", "feedback", (("concise", "!=", "curt"),)),
        ("missing", "", "missing", ("concise",)),
        ("failed", "", "failed", ("concise",)),
        ("skipped", "", "skipped", ("concise",)),
    ],
)
def test_conditions_on_feedback(operator, value, field, expected):
    query = read({"feedback_key": "concise", "feedback_op": operator, "feedback_value": value})
    assert getattr(query.filter, field) == expected
    assert query.problems == ()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"latency_ms": "> x"}, "latency '> x' is no comparison"),
        ({"feedback_key": "k", "feedback_op": "<", "feedback_value": "low"}, "give a number"),
        ({"feedback_key": "k", "feedback_op": "like"}, "'like' is none of"),
        ({"range": "1y"}, "'1y' is none of"),
        ({"since": "yesterday"}, "'yesterday' is no date"),
        ({"until": "9" * 40}, "is no date"),
    ],
)
def test_what_makes_no_sense_is_named_and_left_out(params, words):
    query = read({**params, "name": "answer"})
    assert words in query.problems[0]
    assert query.filter.name == "answer"


def test_a_range_counts_back_from_now():
    assert read({"range": "1h"}, now_ns=7_200 * 10**9).filter.since_ns == 3_600 * 10**9


def test_a_mark_leads_to_the_page_without_its_condition():
    query = read({"name": "a&b", "feedback_key": "k", "feedback_op": "<", "feedback_value": "1", "cursor": "x"})
    addresses = {mark.label: mark.without for mark in query.marks()}
    assert addresses["feedback"] == "/?name=a%26b"
    assert addresses["name"] == "/?feedback_key=k&feedback_op=%3C&feedback_value=1"


def test_a_lone_surrogate_in_an_address_does_no_harm():
    assert read({"name": "\ud800"}).address() == "/?name=%3F"
