from datetime import datetime
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from hypothesis import given, settings, strategies

from looped_cases import loop_over
from spanwise.collector.filters import OPERATORS, Filter, filter_from_items, filter_to_items
from spanwise.collector.pages.components import filter_form


def read(fields=(), **settings):
    return filter_form.read_query(dict(fields).items(), **settings)


def at(address, **settings):
    """What a page reads of an address."""
    return filter_form.read_query(parse_qsl(urlsplit(address).query, keep_blank_values=True), **settings)


def test_an_empty_form_asks_for_live_traffic():
    query = read()
    assert query.filter.experiment == ""
    assert query.marks() == []


@pytest.mark.parametrize(
    ("address", "experiment"),
    [
        ("/traces?traffic=all", None),
        ("/traces?traffic=live", ""),
        ("/traces?experiment=e1", "e1"),
        ("/traces?dataset=d", None),
        ("/traces", ""),
    ],
)
def test_experiments_come_in_when_asked_for(address, experiment):
    assert at(address).filter.experiment == experiment


def test_several_experiments_are_not_shut_out():
    assert at("/traces?experiments=a&experiments=b").filter == Filter(experiments=("a", "b"))


def test_lists_that_are_not_of_live_traffic_see_everything():
    assert read(live=False).filter == Filter()


@loop_over(
    ("operator", "value", "field", "expected"),
    [
        ("<", "0.5", "feedback", (("concise", "<", 0.5),)),
        ("=", "true", "feedback", (("concise", "=", 1.0),)),
        (">", "False", "feedback", (("concise", ">", 0.0),)),
        ("!=", "curt", "feedback", (("concise", "!=", "curt"),)),
        ("=", "curt", "feedback", (("concise", "=", "curt"),)),
        ("", "0.5", "feedback", (("concise", ">=", 0.5),)),
        ("missing", "", "missing", ("concise",)),
        ("failed", "", "failed", ("concise",)),
        ("skipped", "", "skipped", ("concise",)),
    ],
)
def test_conditions_on_feedback(operator, value, field, expected):
    query = read({"feedback_key": "concise", "feedback_op": operator, "feedback_value": value})
    assert getattr(query.filter, field) == expected
    assert query.problems == ()


@pytest.mark.parametrize("key", ["a<b", "a=b", "metadata.x", "a:b"])
def test_a_key_of_feedback_may_hold_anything(key):
    query = read({"feedback_key": key, "feedback_op": "<", "feedback_value": "1"})
    assert query.filter.feedback == ((key, "<", 1.0),)


def test_without_a_key_the_rest_of_a_condition_on_feedback_says_nothing():
    assert at("/traces?feedback_op=<&feedback_value=low") == filter_form.FilterQuery(
        (("feedback_op", "<"), ("feedback_value", "low")), Filter(experiment="")
    )


@loop_over(
    ("text", "expected"),
    [("500", ("=", 500)), ("> 500", (">", 500)), ("<=5", ("<=", 5)), ("=1", ("=", 1)), ("!= 2", ("!=", 2))],
)
@loop_over("name", ["tokens", "cost"])
def test_a_comparison_says_what_it_says_in_every_query_string(name, text, expected):
    assert getattr(read({name: text}).filter, name) == expected == getattr(filter_from_items([(name, text)]), name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tenant=t1", {"tenant": "t1"}), ("a:b", {"a": "b"}), ("a:b = c", {"a": "b = c"}), ("k=", {"k": ""})],
)
def test_metadata_as_people_write_it(text, expected):
    assert read({"metadata": text}).filter.metadata == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T00:00+00:00", 1_769_817_600 * 10**9),
        ("20260131T00+00", 1_769_817_600 * 10**9),
        ("1769817600000000001", 1_769_817_600 * 10**9 + 1),
        ("123456789", 123_456_789),
    ],
)
def test_moments(text, expected):
    filter = read({"since": text, "until": text}).filter
    assert (filter.since_ns, filter.until_ns) == (expected, expected)


@loop_over(
    ("params", "problem"),
    [
        ({"latency_ms": "> x"}, "latency must be a comparison such as > 500, got '> x'"),
        ({"tokens": "many"}, "tokens must be a comparison such as > 500, got 'many'"),
        ({"latency_ms": "500"}, "latency must be a comparison such as > 500, got '500'"),
        ({"latency_ms": "< 0"}, "latency_ms<0: no trace would pass, because latency_ms is never negative"),
        ({"nmae": "x"}, "unknown condition 'nmae': did you mean 'name'?"),
        ({"cost": "!5"}, "cost must be a comparison such as > 500, got '!5'"),
        (
            {"feedback_key": "k", "feedback_op": "<", "feedback_value": "low"},
            "feedback 'k' < 'low': compare with a number, or",
        ),
        (
            {"feedback_key": "k", "feedback_op": "="},
            "feedback 'k' = '': compare with a number, or with = or != and a label",
        ),
        (
            {"feedback_key": "k", "feedback_op": "like"},
            "unknown feedback operator 'like'; expected one of: <, <=, =, !=, >=, >, scored",
        ),
        ({"range": "1y"}, "unknown time range '1y'; expected one of: 15m, 1h, 6h, 24h, 7d, 30d, today"),
        ({"range": "2h"}, "unknown time range '2h'; expected one of:"),
        ({"metadata": "tenant"}, "metadata 'tenant' is not a key with a value; write it like tenant=t1"),
        ({"since": "tomorrow"}, "since must be a date or time such as 2026-11-21T14:30, got 'tomorrow'"),
        ({"since": "2026"}, "since must be a date or time such as 2026-11-21T14:30, got '2026'"),
        ({"until": "9" * 40}, "until must be a date or time"),
        ({"until": "9999-12-31"}, "until must be a date or time such as 2026-11-21T14:30, got '9999-12-31'"),
        ({"complete": "maybe"}, "complete must be true or false, got 'maybe'"),
    ],
)
def test_what_makes_no_sense_is_named_and_left_out(params, problem):
    query = read({**params, "name": "answer"})
    assert query.problems[0].startswith(problem) or problem in query.problems[0]
    assert query.filter == Filter(name="answer", experiment="")


def test_one_bad_field_does_not_take_the_others_away():
    query = read({"latency_ms": "x", "tokens": "5", "since": "soon", "until": "20260131T00+00"})
    assert (query.filter.tokens, query.filter.until_ns) == (("=", 5), 1_769_817_600 * 10**9)
    assert len(query.problems) == 2


@pytest.mark.parametrize(("length", "seconds"), [("15m", 900), ("1h", 3_600), ("24h", 86_400), ("7d", 604_800)])
def test_a_range_counts_back_from_now(length, seconds):
    filter = read({"range": length}, now_ns=10**15).filter
    assert (filter.since_ns, filter.until_ns) == (10**15 - seconds * 10**9, None)


@pytest.mark.parametrize("address", ["/traces?since=1h&since=", "/traces?range=1h", "/traces?since=7d&since=1h"])
def test_the_form_says_since_as_everybody_does(address):
    assert at(address, now_ns=10**15).filter.since_ns == 10**15 - 3_600 * 10**9


def test_a_beginning_goes_before_a_range():
    assert read({"range": "1h", "since": "123456789"}).filter.since_ns == 123_456_789
    assert read({"range": "1y", "since": "123456789"}).problems == ()


def test_an_address_speaks_the_grammar_of_every_query_string():
    query = at(
        "/traces?feedback=a<1&feedback.tone=kind&missing=k&tags=a&tag=b&latency_ms>=5&metadata.tenant=t1&shape=x"
    )
    assert query.filter == Filter(
        feedback=(("a", "<", 1.0), ("tone", "=", "kind")),
        missing=("k",),
        tags=("a", "b"),
        latency_ms=(">=", 5.0),
        metadata={"tenant": "t1"},
        experiment="",
    )
    assert "shape" not in query.fields
    assert query.problems[0].startswith("unknown condition 'shape'")


def test_a_comparison_without_an_equals_sign_is_all_name():
    query = at("/traces?latency_ms>5&name=a")
    assert query.filter == Filter(latency_ms=(">", 5.0), name="a", experiment="")
    assert at(query.address()) == query
    assert [(mark.label, mark.without) for mark in query.marks()] == [
        ("latency_ms>5", "/traces?name=a"),
        ("name", "/traces?latency_ms%3E5="),
    ]


@pytest.mark.parametrize("address", ["/traces?name=a&name=b&name=+b+", "/traces?name=b&name=&kind=", "/traces?name=+b"])
def test_of_what_cannot_add_up_the_last_counts(address):
    wanted = {"/traces?name=b&name=&kind=": None}.get(address, "b")
    assert at(address).filter == Filter(name=wanted, experiment="")


def test_a_mark_leads_to_the_page_without_its_condition():
    query = at("/traces?name=a%26b&feedback_key=k&feedback_op=<&feedback_value=1&cursor=x")
    addresses = {mark.label: mark.without for mark in query.marks()}
    assert addresses == {
        "feedback": "/traces?name=a%26b",
        "name": "/traces?feedback_key=k&feedback_op=%3C&feedback_value=1",
    }


def test_of_several_tags_each_can_be_taken_away():
    assert [(mark.value, mark.without) for mark in at("/traces?tag=a&tag=b").marks()] == [
        ("a", "/traces?tag=b"),
        ("b", "/traces?tag=a"),
    ]


@loop_over(
    ("address", "label", "value"),
    [
        ("/traces?range=1h", "time", "last hour"),
        ("/traces?range=1y", "time", "1y"),
        ("/traces?traffic=all", "traffic", "live and experiments"),
        ("/traces?latency_ms=5", "latency", "5"),
        ("/traces?feedback_key=k&feedback_op=!%3D&feedback_value=curt", "feedback", "k ≠ curt"),
        ("/traces?feedback_key=k&feedback_value=1", "feedback", "k ≥ 1"),
        ("/traces?feedback_key=k&feedback_op=missing", "feedback", "k is missing"),
        ("/traces?user=all", "user", "all"),
    ],
)
def test_marks_are_for_people(address, label, value):
    (mark,) = at(address).marks()
    assert (mark.label, mark.value, mark.without) == (label, value, "/traces")


def test_an_address_changes_in_some_fields_and_starts_at_the_first_page():
    query = at("/traces?name=a&kind=llm&cursor=x")
    assert query.address() == "/traces?name=a&kind=llm"
    assert query.address("/charts", kind=None, cursor="y", since="") == "/charts?name=a&cursor=y"
    assert at("/traces?cursor=x").address("/sessions") == "/sessions"


def test_a_lone_surrogate_in_an_address_does_no_harm():
    assert read({"name": "\ud800"}).address() == "/traces?name=%3F"


texts = strategies.text(min_size=1, max_size=8)
keys = texts.filter(lambda key: not set(key) & set("<>=!"))  # what the grammar can say in one pair
numbers = strategies.floats(allow_nan=False).map(repr)
comparisons = strategies.builds("{}{}".format, strategies.sampled_from(["", "> ", *OPERATORS]), numbers)
moments = strategies.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(datetime.isoformat)
FORMS = strategies.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("name", "text", "session", "user", "error", "example", "dataset", "tag"), texts),
        **dict.fromkeys(("latency_ms", "tokens", "cost"), comparisons),
        **dict.fromkeys(("since", "until"), moments),
        "status": strategies.sampled_from(["ok", "error"]),
        "range": strategies.sampled_from([*filter_form.RANGE_LABELS]),
        "traffic": strategies.sampled_from([*filter_form.TRAFFIC_LABELS]),
        "complete": strategies.sampled_from(["true", "false"]),
        "metadata": strategies.builds("{}={}".format, keys, texts),
        "feedback_key": keys,
        "feedback_op": strategies.sampled_from([*filter_form.OPERATOR_LABELS]),
        "feedback_value": numbers | texts.filter(lambda text: text.strip().lower() not in ("nan", "+nan", "-nan")),
    },
)


@pytest.mark.process
@settings(max_examples=30, deadline=None)
@given(FORMS)
def test_what_the_form_says_is_said_by_a_query_string_as_well(fields):
    filter = read(fields).filter
    assert filter_from_items(filter_to_items(filter)) == filter
    assert filter_from_items(parse_qsl(urlencode(filter_to_items(filter)), keep_blank_values=True)) == filter


@settings(max_examples=30, deadline=None)
@given(FORMS)
def test_a_page_leads_back_to_itself(fields):
    query = read(fields, now_ns=10**18)
    assert at(query.address(), now_ns=10**18) == query


@pytest.mark.process
@settings(max_examples=30, deadline=None)
@given(FORMS)
def test_every_mark_takes_one_condition_away(fields):
    query = read(fields, now_ns=10**18)
    for mark in query.marks():
        without = at(mark.without, now_ns=10**18)
        assert len(without.marks()) == len(query.marks()) - 1
