import time
from urllib.parse import parse_qsl

import pytest

from assay.collector.filters import Filter, combined
from assay.collector.querystring import moment, parse, to_filter, to_items


def test_conditions_in_short_forms():
    found = combined(Filter(project="p"), {"feedback": ("k", "<", 1), "tags": "a", "latency_ms": 5, "name": "n"})
    assert found == Filter(project="p", feedback=(("k", "<", 1.0),), tags=("a",), latency_ms=("=", 5.0), name="n")


def test_several_conditions_on_feedback():
    conditions = [("a", ">=", 0.5), ("b", "=", "polite")]
    assert combined(None, {"feedback": conditions}).feedback == (("a", ">=", 0.5), ("b", "=", "polite"))


def test_none_takes_a_condition_away():
    assert combined(Filter(name="n", tags=("a",)), {"name": None, "tags": None}) == Filter()


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ({"nmae": 1}, "did you mean 'name'"),
        ({"latency_ms": ("~", 1)}, "'~' is not one of"),
        ({"feedback": ("a", "<")}, "(key, operator, value)"),
    ],
)
def test_a_typo_is_named(conditions, told):
    with pytest.raises(ValueError) as caught:
        combined(None, conditions)
    assert told in str(caught.value)


@pytest.mark.parametrize(
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
    assert to_filter(to_items(wanted)) == wanted


def test_a_query_string_may_hold_comparisons_as_people_write_them():
    assert to_filter(parse_qsl("latency_ms>=5&tokens>7&name=a", keep_blank_values=True)) == Filter(
        latency_ms=(">=", 5.0), tokens=(">", 7.0), name="a"
    )


def test_a_date_is_one_of_this_machines_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment("2026-01-31T09:00") == moment("2026-01-31T00:00+00:00") == 1769817600 * 10**9
    finally:
        monkeypatch.undo()
        time.tzset()


def test_durations_count_back_from_now():
    assert moment("90s", now_ns=100 * 10**9) == 10 * 10**9


@pytest.mark.parametrize(
    ("term", "told"),
    [
        ("since=soon", "'soon' is no time"),
        ("nam=x", "did you mean 'name'"),
        ("name>x", "only be compared with ="),
        ("latency_ms=fast", "not a number"),
    ],
)
def test_a_term_that_makes_no_sense_is_named(term, told):
    with pytest.raises(ValueError) as caught:
        parse([term])
    assert told in str(caught.value)
