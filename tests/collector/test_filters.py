import re
import time
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest

from looped_cases import loop_over
from spanwise.collector.errors import Refused
from spanwise.collector.filters import (
    Filter,
    condition_field,
    extend_filter,
    filter_from_items,
    filter_to_items,
    parse,
    parse_bound,
    parse_duration,
    parse_term,
    parse_time,
    validate_filter,
)


def test_conditions_in_short_forms():
    found = extend_filter(Filter(project="p"), {"feedback": ("k", "<", 1), "tags": "a", "tokens": 5, "name": "n"})
    assert found == Filter(project="p", feedback=(("k", "<", 1.0),), tags=("a",), tokens=("=", 5.0), name="n")


def test_several_conditions_on_feedback():
    conditions = [("a", ">=", 0.5), ("b", "=", "polite")]
    assert extend_filter(None, {"feedback": conditions}).feedback == (("a", ">=", 0.5), ("b", "=", "polite"))


def test_none_takes_a_condition_away():
    assert extend_filter(Filter(name="n", tags=("a",)), {"name": None, "tags": None}) == Filter()


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ({"nmae": 1}, "did you mean 'name'"),
        ({"latency_ms": ("~", 1)}, "unknown operator '~'"),
        ({"feedback": ("a", "<")}, "(key, operator, value)"),
    ],
)
def test_a_typo_is_named(conditions, told):
    with pytest.raises(ValueError) as caught:
        extend_filter(None, conditions)
    assert told in str(caught.value)


def test_words_alone_are_no_terms():
    assert parse(["lost", "parcel"]) == Filter(text="lost parcel")
    with pytest.raises(ValueError, match="invalid condition 'name'; write it like name=answer or latency_ms>200"):
        parse_term("name")


@pytest.mark.parametrize(("text", "wanted"), [("yes", True), ("1", True), ("TRUE", True), ("no", False), ("0", False)])
def test_truths(text, wanted):
    assert filter_from_items([("complete", text)]).complete is wanted


@loop_over(
    ("terms", "wanted"),
    [
        ("name=answer latency_ms>=200", Filter(name="answer", latency_ms=(">=", 200.0))),
        ("latency_ms=>1500 cost<0.5", Filter(latency_ms=(">", 1500.0), cost=("<", 0.5))),
        ("feedback=concise<0.5 feedback.tone=kind", Filter(feedback=(("concise", "<", 0.5), ("tone", "=", "kind")))),
        ("feedback=good=true", Filter(feedback=(("good", "=", 1.0),))),
        ("metadata.tenant=t1 metadata=a:b", Filter(metadata={"tenant": "t1", "a": "b"})),
        ("tag=a tags=b missing=k", Filter(tags=("a", "b"), missing=("k",))),
        ("lost parcel complete=yes", Filter(text="lost parcel", complete=True)),
        (
            "since=2026-01-31T00:00+00:00 until=2026-01-31T00:00:01.5+00:00",
            Filter(since_ns=1769817600 * 10**9, until_ns=1769817601_500 * 10**6),
        ),
    ],
)
def test_terms_of_a_command_line(terms, wanted):
    assert parse(terms.split()) == wanted
    assert filter_from_items(filter_to_items(wanted)) == wanted


def test_a_query_string_may_hold_comparisons_as_people_write_them():
    assert filter_from_items(parse_qsl("latency_ms>=5&tokens>7&name=a", keep_blank_values=True)) == Filter(
        latency_ms=(">=", 5.0), tokens=(">", 7.0), name="a"
    )


def test_a_date_is_one_of_this_machines_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_time("2026-01-31T09:00") == parse_time("2026-01-31T00:00+00:00") == 1769817600 * 10**9
    finally:
        monkeypatch.undo()
        time.tzset()


@loop_over(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("3 h", 10_800), ("1d", 86_400), ("2w", 1_209_600), ("0s", 0)]
)
def test_durations_count_back_from_now(text, seconds):
    assert parse_duration(text) == seconds * 10**9
    assert parse_time(text, now_ns=10**17) == 10**17 - seconds * 10**9


@loop_over("text", ["", "1", "h", "1y", "-1h", "1h 30m", "1.5h", "1h\n"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match=r"invalid duration .*; write it like 90s, 30m, 1h, 7d or 2w"):
        parse_duration(text)


def test_eight_digits_are_a_date_and_more_are_nanoseconds():
    assert parse_time("20260131") == parse_time("2026-01-31")
    assert parse_time("123456789") == 123_456_789
    assert filter_from_items([("since_ns", "20260131"), ("until_ns", "-5")]) == Filter(since_ns=20_260_131, until_ns=-5)


@loop_over("text", ["", "2026", "-123456789", "9999-12-31", "1600-01-01", str(2**63), "99999999w", "1" * 30])
def test_what_is_no_time_or_too_far_away(text):
    with pytest.raises(ValueError) as caught:
        parse_time(text)
    assert str(caught.value) == f"invalid time {text!r}; write it like 1h, 7d, 2026-01-31 or 2026-01-31T12:00"


@pytest.mark.parametrize("nanoseconds", [-(2**63), 2**63 - 1])
def test_the_ends_of_time(nanoseconds):
    assert filter_from_items([("since_ns", str(nanoseconds))]).since_ns == nanoseconds
    with pytest.raises(ValueError, match="invalid time"):
        filter_from_items([("since_ns", str(nanoseconds * 2))])


def test_a_moment_is_exact_to_the_microsecond():
    assert parse_time("2026-01-31T00:00:00.000001+00:00") == 1769817600 * 10**9 + 1000
    assert parse_time(str(2**63 - 1)) == 2**63 - 1


def test_what_feedback_is_compared_with():
    assert [parse_bound(text) for text in ("True", "FALSE", "0.5", "1e3", "kind", "")] == [
        1.0,
        0.0,
        0.5,
        1000.0,
        "kind",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("name", "name"),
        ("tag", "tags"),
        ("since", "since_ns"),
        ("metadata.k", "metadata"),
        ("latency_ms>", "latency_ms"),
    ],
)
def test_the_field_that_a_name_speaks_of(name, field):
    assert condition_field(name) == field
    assert condition_field(name.upper()) is condition_field("") is condition_field("sort") is None


def test_lists_and_metadata_add_up_and_of_the_rest_the_last_counts():
    items = parse_qsl(
        "tag=a&tags=b&metadata=k:1&metadata.k=2&metadata.l=3&missing=m&missing=n&name=a&name=b&tokens=1&tokens=2"
    )
    assert filter_from_items(items) == Filter(
        tags=("a", "b"), metadata={"k": "2", "l": "3"}, missing=("m", "n"), name="b", tokens=("=", 2)
    )


@pytest.mark.parametrize("metadata", [{"a:b": "c"}, {"a": ""}, {"a:b": ""}, {"": "x"}, {"a.b": "c=d<e"}])
def test_metadata_of_all_kinds_goes_through_a_query_string(metadata):
    assert filter_from_items(filter_to_items(Filter(metadata=metadata))) == Filter(metadata=metadata)


@loop_over(
    ("term", "told"),
    [
        ("since=soon", "invalid time 'soon'"),
        ("nam=x", "did you mean 'name'"),
        ("name>x", "'name>x': 'name' can only be compared with ="),
        ("metadata.tenant!=t1", "'metadata' can only be compared with ="),
        ("feedback=concise", "feedback='concise' is not a comparison; write it like feedback=concise<0.5"),
        ("feedback=<1", "feedback='<1' is not a comparison; write it like feedback=concise<0.5"),
        ("latency_ms=!5", "latency_ms='!5' is not a comparison; write it like latency_ms=>=100"),
        ("tokens>few", "tokens='few' is not a number"),
        ("complete=maybe", "complete must be true or false, got 'maybe'"),
        ("latency_ms=fast", "not a number"),
    ],
)
def test_a_term_that_makes_no_sense_is_named(term, told):
    with pytest.raises(ValueError) as caught:
        parse([term])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("conditions", "terms"),
    [
        (
            {"since": "2026-01-31T00:00Z", "until": datetime(2026, 2, 1, tzinfo=UTC)},
            "since=2026-01-31 until=2026-02-01",
        ),
        ({"since_ns": 123, "until_ns": "456"}, "since_ns=123 until_ns=456"),
        ({"latency_ms": ">200", "tokens": ("<", 5), "cost": "0"}, "latency_ms>200 tokens<5 cost=0"),
        ({"feedback": "concise<0.5"}, "feedback=concise<0.5"),
        ({"feedback": ["concise<0.5", ("tone", "=", "kind")]}, "feedback=concise<0.5 feedback.tone=kind"),
        ({"metadata": "tenant=t1", "tag": "a"}, "metadata=tenant:t1 tags=a"),
        ({"complete": "yes", "untried": "k"}, "complete=true untried=k"),
    ],
)
def test_python_takes_what_a_query_string_says(conditions, terms, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert extend_filter(None, conditions) == parse(terms.split())
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_duration_counts_back_in_python_as_well():
    before = time.time_ns()
    assert before - 3_600 * 10**9 <= extend_filter(None, {"since": "1h"}).since_ns <= time.time_ns() - 3_600 * 10**9


@loop_over(
    ("conditions", "told"),
    [
        ({"zzz": 1}, "unknown condition 'zzz'; expected one of: project, environment, since, until, name"),
        ({"session_id": "s"}, "did you mean 'session'"),
        ({"latency_ms": 200}, "no trace takes 200 ms to the nanosecond; write latency_ms>=200"),
        ({"latency_ms": "200"}, "write latency_ms>=200"),
        ({"tokens": True}, "tokens must be a comparison such as '>=200' or ('>=', 200), got True"),
        ({"tokens": (">", 1, 2)}, "got ('>', 1, 2)"),
        ({"session": 7}, "session must be a text, got 7"),
        ({"tags": [1]}, "tags must be a text, got 1"),
        ({"since": 1.5}, "since must be a time such as '1h'"),
        ({"since": "soon"}, "invalid time 'soon'"),
        ({"complete": "maybe"}, "must be true or false"),
        ({"complete": 2}, "complete must be True or False, got 2"),
        ({"metadata": "tenant"}, "metadata 'tenant' is not a key with a value"),
        ({"metadata": ["tenant"]}, "metadata must be a mapping"),
    ],
)
def test_what_python_is_told_of_a_value_that_cannot_be(conditions, told):
    with pytest.raises(ValueError) as caught:
        extend_filter(None, conditions)
    assert told in str(caught.value)


@loop_over(
    ("filter", "told"),
    [
        (Filter(since_ns=5, until_ns=5), "until must be later than since"),
        (Filter(latency_ms=("<", 0.0)), "latency_ms<0: no trace would pass"),
        (Filter(tokens=("=", -1.0)), "tokens=-1: no trace would pass"),
        (Filter(tokens=("=", 0.5)), "numbers of tokens are whole"),
        (Filter(cost=(">", float("nan"))), "compared with a finite number, got nan"),
        (Filter(feedback=(("tone", "<", "kind"),)), "compare with a number, or with = or != and a label"),
        (Filter(feedback=(("tone", "=", ""),)), "compare with a number, or with = or != and a label"),
        (Filter(feedback=(("k", ">", float("nan")),)), "no value compares with nan"),
        (Filter(session=""), "session is empty"),
        (Filter(missing=("",)), "missing contains an empty value"),
        (Filter(failed=("k", "")), "failed contains an empty value"),
        (Filter(trace_ids=("",)), "trace_ids contains an empty value"),
        (Filter(text="!?"), "contains no word"),
        (Filter(error=" "), "contains no word"),
    ],
)
def test_a_condition_that_no_trace_can_meet_is_refused(filter, told):
    with pytest.raises(Refused, match=re.escape(told)):
        validate_filter(filter)


@pytest.mark.parametrize("filter", [Filter(cost=("<", 0.0)), Filter(latency_ms=(">=", -1.0)), Filter(experiment="")])
def test_what_may_be_is_asked(filter):
    assert validate_filter(filter) is filter


@pytest.mark.parametrize("metadata", [{" a": "b "}, {"a": "b:c=d"}, {"a": "b=c:d"}])
def test_metadata_with_marks_and_spaces_goes_through_a_query_string(metadata):
    assert filter_from_items(filter_to_items(Filter(metadata=metadata))) == Filter(metadata=metadata)
