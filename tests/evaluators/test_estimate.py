"""A dry run: what judges would be asked, without asking them."""

import dataclasses

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case, Example
from spanwise.evaluators import Judge, estimate, get_evaluator, judge, score
from spanwise.evaluators.judges import NoJudge, scripted
from spanwise.evaluators.judges.llm_client.judge_call import JudgeDryRun, make_sample_value

CASES = [{"inputs": f"question {n}?", "outputs": "an answer"} for n in range(4)]


def relevance(**options):
    return get_evaluator("relevance_to_query", judge=Judge(model="m", base_url="http://127.0.0.1:9/v1", **options))


def test_calls_and_cost_are_told_and_nobody_is_asked():
    told = estimate(relevance(price=(1.0, 10.0)), CASES)
    assert (told.cases, told.total.calls, told.total.cached) == (4, 4, 0)
    assert 4 * 50 < told.total.input_tokens < 4 * 1_000
    assert 0 < told.total.usd < told.total.usd_at_most
    assert told.where == ("m at http://127.0.0.1:9/v1",)


def test_without_a_price_there_is_no_cost():
    told = estimate(relevance(), CASES)
    assert (told.total.usd, told.total.usd_at_most) == (None, None)
    assert "4 calls" in str(told)
    assert "price unknown" in str(told)


def test_at_most_is_what_a_budget_must_have_for_one_case():
    told = estimate(relevance(price=(1.0, 10.0)), CASES[:1])
    scripted_judge = dataclasses.replace(
        scripted({"rationale": "r", "rating": "yes"}), price=(1.0, 10.0), max_usd=told.total.usd_at_most * 1.01
    )
    [feedback] = score(get_evaluator("relevance_to_query", judge=scripted_judge), **CASES[0])
    assert feedback.score is True


def test_a_script_is_not_used_up():
    script = scripted({"rationale": "r", "rating": "yes"})
    assert estimate(get_evaluator("relevance_to_query", judge=script), CASES).total.calls == 4
    assert script.asked == []


def test_repetitions_are_asked_anew():
    assert estimate(relevance(), CASES, repetitions=3).total.calls == 12


def test_kept_answers_are_counted_as_such(tmp_path):
    kept = dataclasses.replace(scripted({"rationale": "r", "rating": "yes"}), cache=tmp_path / "judges.db")
    score(get_evaluator("relevance_to_query", judge=kept), **CASES[0])
    told = estimate(get_evaluator("relevance_to_query", judge=kept), CASES)
    assert (told.total.calls, told.total.cached) == (3, 1)
    assert estimate(get_evaluator("relevance_to_query", judge=kept), CASES, repetitions=2).total.calls == 7


def test_cases_that_lack_something_are_told():
    told = estimate([relevance()], [*CASES, {"inputs": "no answer?"}])
    assert (told.total.calls, dict(told.skipped)) == (4, {"relevance_to_query": 1})


def test_what_fails_before_it_asks_is_told():
    class Broken:
        def __init__(self):
            self.judge = scripted("x")

        async def __call__(self, inputs):
            raise ValueError("no embed is given")

    told = estimate(Broken(), CASES)
    assert told.total.calls == 0
    assert "error: ValueError: no embed is given" in str(told)


def test_evaluators_without_a_judge_are_left_out():
    assert dict(estimate(["exact", lambda outputs: True], CASES).by_evaluator) == {}


def test_a_judge_of_ones_own_is_counted():
    polite = judge("polite", "Is this polite?\n{outputs}", scale=("yes", "no"), judge=scripted("x"))
    assert estimate(polite, CASES).total.calls == 4


def test_an_example_is_judged_by_its_reference():
    examples = [Example(inputs="question?", reference_outputs="an answer")]
    assert estimate(relevance(), examples).total.calls == 1
    assert estimate(relevance(), [Case(inputs="question?", outputs="a")]).total.calls == 1


def test_without_a_judge_there_is_nothing_to_estimate(monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    with pytest.raises(NoJudge):
        estimate(get_evaluator("relevance_to_query"), CASES)


def test_what_is_no_case_is_refused():
    with pytest.raises(TypeError, match="cases must be"):
        estimate(relevance(), ["question?"])


def test_several_questions_of_one_evaluator_are_all_counted():
    asking = scripted("x")

    async def twice(inputs):
        from spanwise.evaluators.judges import Ask

        first = await asking.ask(Ask(messages=({"role": "user", "content": inputs},)))
        return bool((await asking.ask(Ask(messages=({"role": "user", "content": first.text},)))).text)

    class Twice:
        def __init__(self):
            self.judge = asking

        async def __call__(self, inputs):
            return await twice(inputs)

    assert estimate(Twice(), CASES).total.calls == 8
    assert asking.asked == []


@loop_over(
    ("schema", "expected"),
    [
        ({"enum": ["yes", "no"]}, "yes"),
        ({"const": 3}, 3),
        ({"type": "integer", "minimum": 2}, 2),
        ({"type": ["null", "string"]}, None),
        ({"type": "boolean"}, True),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": "array", "items": {"const": 1}, "minItems": 7}, [1] * 7),
        ({"type": "object", "properties": {"a": {"const": 1}}}, {"a": 1}),
    ],
)
def test_made_up_answers_are_of_the_form_that_is_asked_for(schema, expected):
    assert make_sample_value(schema) == expected


def test_a_schema_that_contains_itself_ends():
    schema = {"type": "object", "properties": {}}
    schema["properties"]["more"] = schema
    assert make_sample_value(schema)["more"]["more"] is not None


def test_a_rehearsal_says_the_first_label_or_the_last():
    assert [make_sample_value({"enum": ["yes", "no"]}, label) for label in (0, -1)] == ["yes", "no"]
    assert JudgeDryRun().counted.calls == 0
