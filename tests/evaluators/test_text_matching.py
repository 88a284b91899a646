"""The language of conditions: precedence, escapes, errors that point at the column; and the family of booleans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.text_matching import matches_condition

BRAZIL = "Brazil revenue was 15,969 million"


@loop_over(
    ("condition", "expected"),
    [
        ('"15,969"', True),
        ('regexp("15,?969")', True),
        ('"15,969" AND regexp("[Mm]illion")', True),
        ('("Brazil" OR "brazil") AND regexp("15,?969 [Mm]illion") AND NOT "Real"', True),
        ('regexp("^Brazil revenue was 15,969 million$")', True),
        ('regexp("^$Brazil revenue was 15,969 million$")', False),
        ('"Peru" OR "Brazil" AND "nowhere"', False),
        ('("a" OR "Brazil") AND "nowhere" OR "was"', True),
        ('NOT "Peru" AND "Brazil"', True),
        ('NOT ("a" OR "Brazil")', False),
        ('NOT NOT "Brazil"', True),
        ('  "Brazil"AND"was"  ', True),
        ('"brazil"', False),
    ],
)
def test_conditions(condition, expected):
    assert matches_condition(condition, BRAZIL) is expected


def test_escapes_in_strings_and_in_patterns():
    assert matches_condition(r'"say \"hi\""', 'say "hi"')
    assert matches_condition(r'"back\\slash"', "back\\slash")
    assert matches_condition(r'"C:\new"', "C:\\new")
    assert matches_condition(r'regexp("\d+\\n\"")', '12\\n"')


@loop_over(
    ("condition", "column", "what"),
    [
        ("", 1, "operand is missing"),
        ("AND", 1, "missing before 'AND'"),
        ('"a" AND', 8, "operand is missing"),
        ('"a" "b"', 5, "AND or OR is missing"),
        ('("a"', 1, "never closed"),
        ('"a")', 4, "never opened"),
        ('"a', 1, "never closed"),
        ('"a" and "b"', 5, "written AND"),
        ("Brazil", 1, "double quotes"),
        ("'a'", 1, "double quotes"),
        ('regexp("a(")', 1, "not a valid regular expression"),
        ("regexp(a)", 1, "regexp("),
        ('""', 1, "empty string"),
        ('"a" NOT "b"', 5, "missing before 'NOT'"),
        ("()", 2, "operand is missing"),
        ('"a" OR OR "b"', 8, "missing before 'OR'"),
    ],
)
def test_malformed_conditions_point_at_the_column(condition, column, what):
    with pytest.raises(ValueError, match=f"column {column}: ") as error:
        matches_condition(condition, "text")
    assert what in str(error.value)


NAMES = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(
    NAMES.map(lambda n: (f'"{n}"', f"({n!r} in text)")),
    lambda inner: st.one_of(
        st.tuples(inner, inner, st.sampled_from(["AND", "OR"])).map(
            lambda t: (f"({t[0][0]}) {t[2]} ({t[1][0]})", f"(({t[0][1]}) {t[2].lower()} ({t[1][1]}))")
        ),
        inner.map(lambda t: (f"NOT ({t[0]})", f"(not {t[1]})")),
        st.tuples(NAMES, NAMES, NAMES).map(
            lambda t: (
                f'"{t[0]}" OR NOT "{t[1]}" AND "{t[2]}"',
                f"({t[0]!r} in text or not {t[1]!r} in text and {t[2]!r} in text)",
            )
        ),
    ),
    max_leaves=8,
)


@given(TREES, st.text(alphabet="abcd", max_size=4))
def test_conditions_mean_what_the_same_words_mean_in_python(tree, text):
    assert matches_condition(tree[0], text) == eval(tree[1], {"text": text})


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_an_error_with_a_column(condition):
    said = score(get_evaluator("text_matching"), outputs="text", conditions=condition or " ")[0]
    assert said.outcome == "score" or "column" in said.error


def test_deep_nesting_costs_no_recursion():
    assert matches_condition("(" * 20_000 + '"a"' + ")" * 20_000, "a")
    assert matches_condition("NOT " * 20_000 + '"a"', "a")


def test_hostile_conditions_are_read_in_time():
    for condition in ['"' + "\\" * 100_000, "regexp(" * 50_000, '"a" ' * 50_000]:
        with pytest.raises(ValueError, match="column"):
            matches_condition(condition, "a")


def family(feedback):
    return {one.key.removeprefix("text_matching"): one.score for one in feedback}


@pytest.mark.parametrize(
    ("answer", "context", "passed", "retrieval", "generation"),
    [
        ("yes", "yes", True, False, False),
        ("no", "yes", False, False, True),
        ("yes", "no", False, True, False),
        ("no", "no", False, True, False),
        ("no", None, False, None, True),
    ],
)
def test_the_family_of_booleans(answer, context, passed, retrieval, generation):
    documents = None if context is None else ["other", context]
    feedback = score(get_evaluator("text_matching", condition='"yes"'), outputs=answer, documents=documents)
    assert family(feedback) == {
        "": passed,
        "_fail": not passed,
        "_retrieval_fail": retrieval,
        "_generation_fail": generation,
        "_parse_fail": False,
    }


def test_conditions_come_from_the_case_and_all_must_hold():
    feedback = score(get_evaluator("text_matching"), outputs="a b", conditions=['"a"', 'NOT "c"'])
    assert feedback[0].score is True
    assert {one.outcome for one in score(get_evaluator("text_matching"), outputs="a")} == {"skip"}


def test_a_malformed_condition_is_refused_when_made_and_an_error_in_a_case():
    with pytest.raises(ValueError, match="column 5"):
        get_evaluator("text_matching", condition='"a" "b"')
    feedback = score(get_evaluator("text_matching"), outputs="a", conditions='"a" "b"')
    assert {one.outcome for one in feedback} == {"error"}
    assert "column 5" in feedback[0].error


def test_the_context_can_be_left_out():
    judge = get_evaluator("text_matching", condition='"yes"', evaluate_retrieved_context=False)
    assert score(judge, outputs="yes", documents=["no"])[0].score is True


@pytest.mark.parametrize(("answer", "passed"), [("yes", True), ("no", False)])
def test_no_retrieved_context_is_no_retrieval_failure(answer, passed):
    feedback = score(get_evaluator("text_matching", condition='"yes"'), outputs=answer, documents=[])
    assert family(feedback)[""] is passed
    assert family(feedback)["_retrieval_fail"] is None
    assert family(feedback)["_generation_fail"] is not passed
    assert feedback[2].comment == "no context was judged"


def test_an_empty_chunk_is_a_context_that_fails():
    feedback = score(get_evaluator("text_matching", condition='"yes"'), outputs="yes", documents=[{"content": ""}])
    assert family(feedback)["_retrieval_fail"] is True


@pytest.mark.parametrize("conditions", ["", [], ()])
def test_no_condition_is_a_skip(conditions):
    assert {one.outcome for one in score(get_evaluator("text_matching"), outputs="a", conditions=conditions)} == {
        "skip"
    }


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_patterns_need_some_time(seconds):
    with pytest.raises(ValueError, match="seconds must be a number above 0"):
        get_evaluator("text_matching", seconds=seconds)
