"""Templates and formulas of OpenAI's graders."""

import time

import pytest

from spanwise.collector.records import Case
from spanwise.evaluators import Skip
from spanwise.evaluators.interop.grader_templates import Formula, make_namespace, make_sample, render_template

CASE = Case(
    inputs={"q": "2+2?", "rows": [{"name": "a b"}], "tpl": "{{ item.q }}", "n": 3, "none": None, "dash-ed key": "x"},
    reference_outputs={"answer": "4"},
    outputs='{"steps": [{"text": "vier"}], "ok": true}',
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{item.q}} {{ item.answer }}", "2+2? 4"),
        ("{{ item.rows[0].name }}{{ item.rows.0.name }}", "a ba b"),
        ("{{ item['dash-ed key'] }}{{ item.dash-ed key }}", "xx"),
        ("{{ item.n }} {{ item.none }} {{ item.rows }}", '3 null [{"name": "a b"}]'),
        ("{{ item.tpl }}", "{{ item.q }}"),  # values are not templates
        ("{{ sample.output_json.steps[0].text }} {{ sample.output_json.ok }}", "vier true"),
        ("{{ sample.choices[0].message.content }}", CASE.outputs),
        ("{ item.q } {{}", "{ item.q } {{}"),
    ],
)
def test_variables_are_replaced(template, text):
    assert render_template(template, make_namespace(CASE)) == text


@pytest.mark.parametrize(
    "template", ["{{ item.nope }}", "{{ item.rows[5] }}", "{{ item.q.x }}", "{{ sample.output_json.x }}"]
)
def test_a_missing_value_is_a_skip(template):
    with pytest.raises(Skip, match="needs"):
        render_template(template, make_namespace(CASE))


@pytest.mark.parametrize(
    "template",
    ["{{ item }}", "{{ env.KEY }}", "{{ item.q | upper }}{{ }}", "{{ ''.__class__ }}", "{{ item.__class__ }}"],
)
def test_other_expressions_are_not_evaluated(template):
    with pytest.raises((ValueError, Skip)):
        render_template(template, make_namespace(CASE))


def test_a_long_template_takes_linear_time():
    before = time.process_time()
    render_template("{{" + " " * 100_000 + "{{ " * 50_000, make_namespace(CASE))
    assert time.process_time() - before < 2


def test_outputs_may_be_messages_or_json():
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert make_sample([{"role": "user", "content": "x"}, message])["output_tools"] == [{"id": "1"}]
    assert make_sample({"a": 1})["output_json"] == {"a": 1}
    assert "output_json" not in make_sample("no JSON")
    assert make_sample(None)["output_text"] == ""


@pytest.mark.parametrize(
    ("formula", "result"),
    [
        ("0.5 * a + 0.5 * b", 0.625),
        ("a ^ 2", 1.0),
        ("b ^ 2 * 4", 0.25),
        ("2 ^ 3 ^ 0", 2.0),
        ("-b + +a", 0.75),
        ("min(a, b, 0.1) + max(a, 2)", 2.1),
        ("abs(b - a) + floor(1.5) + ceil(b) + exp(0) + sqrt(4) + log(1)", 5.75),
        ("max(a)", 1.0),
    ],
)
def test_formulas_are_computed(formula, result):
    assert Formula(formula).compute({"a": 1.0, "b": 0.25}) == pytest.approx(result)


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('true')", "a.real", "a[0]", "(lambda: 1)()", "[a for a in b]", "a if b else 1", "a == b", "'a' * 9",
        "f'{a}'", "a := 1", "min(*a)", "min(a, key=b)", "min()", "print(a)", "a // b", "a; b", "", "(" * 5000, "a +", "True",
        "1j", "a" * 20_000, "await a", "not a", "~a", "a @ b",
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(formula):
    with pytest.raises(ValueError, match=r"formula|calculate_output") as raised:
        Formula(formula)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "formula",
    ["a / 0", "9 ^ 9 ^ 9 ^ 9", "log(0)", "sqrt(-1)", "exp(10000)", "floor(1e308 * 10)", "sqrt(1, 2)", "1e999 - 1"],
)
def test_a_formula_without_a_result_is_an_error(formula):
    before = time.process_time()
    with pytest.raises(ValueError, match=r"no (finite )?result"):
        Formula(formula).compute({"a": 1.0})
    assert time.process_time() - before < 1
