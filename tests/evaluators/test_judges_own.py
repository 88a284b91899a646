"""Judges of one's own: scales, examples, what they need, and definitions that are data."""

import asyncio
import json

import pytest
import yaml

from looped_cases import loop_over
from spanwise.collector.records import Case, Run, Trace
from spanwise.evaluators import Metric, as_evaluator, evaluate, from_dict, get_evaluator, judge, score
from spanwise.evaluators.judges import Completion, Judge, Token, scripted
from spanwise.evaluators.judges.ratings import make_scale

POLITE = "Is it polite?\n{outputs}"
SHOT = {"outputs": "Go away.", "rationale": "That is rude.", "rating": "no"}


def says(rating, rationale="Because."):
    return scripted({"rationale": rationale, "rating": rating})


def rated(rating, scale, **more):
    [said] = score(judge("tone", POLITE, scale, judge=says(rating), **more), outputs="x")
    return said


@loop_over(
    ("scale", "rating", "value", "label", "range"),
    [
        (("yes", "no"), "yes", True, "yes", (0.0, 1.0)),
        (("yes", "no"), "no", False, "no", (0.0, 1.0)),
        (("formal", "neutral", "casual"), "neutral", None, "neutral", None),
        (range(1, 6), 4, 4.0, "4", (1.0, 5.0)),
        ((1, 2, 3), 3, 3.0, "3", (1.0, 3.0)),
        ({1: "rude", 2: "plain", 3: "warm"}, 2, 2.0, "2", (1.0, 3.0)),
        ({"polite": "It asks.", "rude": "It orders."}, "rude", False, "rude", (0.0, 1.0)),
        ({"good": 1, "fair": 0.5, "bad": 0}, "fair", 0.5, "fair", (0.0, 1.0)),
        ({"fine": True, "off": False}, "off", False, "off", (0.0, 1.0)),
    ],
)
def test_scales(scale, rating, value, label, range):
    said = rated(rating, scale)
    assert (said.outcome, said.score, said.label, said.comment) == ("score", value, label, "Because.")
    assert judge("tone", POLITE, scale).metrics[0].range == range
    assert type(said.score) is type(value)


@pytest.mark.parametrize("rating", ["YES", " yes ", "Yes"])
def test_a_label_in_other_letters_is_that_label(rating):
    assert rated(rating, ("yes", "no")).label == "yes"


def test_a_level_that_came_as_a_text_is_that_level():
    assert rated("4", range(1, 6)).score == 4.0


@loop_over("rating", ["maybe", None, True, 7, ["yes"], {"a": 1}, "", "yes or no"])
def test_any_other_rating_is_a_parse_failure_and_no_score(rating):
    said = rated(rating, ("yes", "no"))
    assert (said.outcome, said.score) == ("error", None)
    assert said.error.startswith("parse failure: ")
    assert "rating" in said.metadata["reply"]


@loop_over(
    ("scale", "why"),
    [
        (("yes",), "at least two labels"),
        (("yes", "YES"), "all different"),
        ((), "at least two"),
        ("yes", "a list of labels"),
        (5, "a list of labels"),
        ((1, "two"), "all texts or all integers"),
        ((1.5, 2.5), "a text or an integer"),
        ({"a": 1, "b": "x"}, "must be all scores or all meanings"),
        ({"a": float("nan"), "b": 1}, "must be all scores"),
        ((" ", "b"), "a text or an integer"),
    ],
)
def test_scales_that_are_none(scale, why):
    with pytest.raises(ValueError, match=why):
        judge("tone", POLITE, scale)


def test_the_reason_is_written_before_the_rating():
    schema = make_scale(range(1, 4)).schema
    assert list(schema["properties"]) == schema["required"] == ["rationale", "rating"]
    assert schema["properties"]["rating"] == {"type": "integer", "enum": [1, 2, 3]}


def test_a_judge_is_told_what_the_levels_mean_and_how_to_reply():
    told = judge("tone", POLITE, {1: "rude", 2: "warm"}).function.prompts[0].text
    assert told.endswith(
        "The ratings mean:\n1: rude\n2: warm\n\n"
        'Give your reasons first, then the rating, as JSON: {"rationale": "…", "rating": 1 or 2}'
    )


def test_lower_may_be_better():
    rude = judge("rude", "Is it rude? {outputs}", judge=says("yes"), higher_is_better=False)
    assert rude.metrics == (Metric("rude", (0.0, 1.0), False, 0.5, primary=True),)
    assert rude.metrics[0].passes(score(rude, outputs="x")[0].score) is False


def test_a_threshold_belongs_to_the_scale():
    assert judge("tone", POLITE, range(1, 6), threshold=4).metrics[0].threshold == 4
    with pytest.raises(ValueError, match="1 to 5"):
        judge("tone", POLITE, range(1, 6), threshold=9)
    with pytest.raises(ValueError, match="a threshold needs scores"):
        judge("tone", POLITE, ("a", "b", "c"), threshold=1)


def test_needs_come_from_the_placeholders():
    one = judge("fits", "{inputs} {documents} {outputs} {trajectory}")
    assert one.needs == ("inputs", "documents", "outputs", "trace")
    [said] = score(one, inputs="a", outputs="b")
    assert (said.outcome, said.comment) == ("skip", "needs documents and trace; the case has none")


def test_nobody_is_asked_about_a_case_that_lacks_something():
    asked = says("yes")
    score(judge("fits", "{inputs} {reference_outputs}", judge=asked), inputs="a")
    assert asked.backend.asked == []


def test_a_map_says_where_names_of_ones_own_are():
    asked = says("yes")
    mapped = {"question": "inputs.q", "search": "documents", "answer": "outputs.text"}
    one = judge("fits", "{{question}} {{search}} {{answer}}", judge=asked, map=mapped)
    score(one, inputs={"q": "Why?"}, documents=["So."], outputs={"text": "Because.", "other": "hidden"})
    content = asked.backend.asked[0].messages[1]["content"]
    assert [name in content for name in ("Why?", "[1] So.", "Because.", "hidden")] == [True, True, True, False]


def test_a_map_of_a_known_name_counts_for_it():
    asked = says("yes")
    score(judge("p", POLITE, judge=asked, map={"outputs": "outputs.text"}), outputs={"text": "shown", "x": "hidden"})
    assert ">\nshown\n<" in asked.backend.asked[0].messages[1]["content"]


def test_a_name_that_no_map_gives_is_refused():
    with pytest.raises(ValueError, match=r"topic.*expected one of: inputs"):
        judge("fits", "{{topic}}")


@loop_over("name", ["case", "trace", "self", "class", "two words", ""])
def test_a_map_names_no_whole_records_and_no_words_of_python(name):
    with pytest.raises(ValueError, match="cannot be the name of a placeholder"):
        judge("fits", POLITE, map={name: "outputs"})


def test_the_run_tree_is_a_value_like_others():
    asked = says("yes")
    root = Run(trace_id="1" * 32, span_id="a" * 16, name="agent", outputs="done", end_ns=1)
    score(judge("fits", "{trajectory}", judge=asked), Trace(root, (root,)))
    assert "1. chain 'agent'\n   outputs: done" in asked.backend.asked[0].messages[1]["content"]


def test_examples_are_shown_before_the_question():
    asked = says("yes")
    score(judge("polite", POLITE, judge=asked, examples=[SHOT]), outputs="Please.")
    roles = [(message["role"], "Go away." in message["content"]) for message in asked.backend.asked[0].messages]
    assert roles == [("system", False), ("user", True), ("assistant", False), ("user", False)]
    assert json.loads(asked.backend.asked[0].messages[2]["content"]) == {"rationale": "That is rude.", "rating": "no"}


@loop_over(
    ("example", "why"),
    [
        (
            {**SHOT, "output": "x"},
            "example 2 has the unknown column 'output'; expected one of: outputs, rationale.*did you mean 'outputs'",
        ),
        ({"outputs": "x", "rating": "no"}, "example 2 lacks rationale"),
        ({"rationale": "x", "rating": "no"}, "example 2 lacks outputs"),
        ({"outputs": "x", "rationale": "y"}, "example 2 lacks rating"),
        ({**SHOT, "rating": "perhaps"}, "the rating 'perhaps', which is none of 'yes', 'no'"),
        ({**SHOT, "rationale": " "}, "has no rationale"),
        ("Go away.", "examples must be a list of dicts"),
    ],
)
def test_examples_are_checked_against_the_columns(example, why):
    with pytest.raises(ValueError, match=why):
        judge("polite", POLITE, examples=[SHOT, example])


def test_a_definition_goes_through_json_and_yaml(tmp_path):
    one = judge("polite", POLITE, {1: "rude", 2: "warm"}, judge="m", examples=[{**SHOT, "rating": 1}], threshold=2)
    for again in (json.loads(json.dumps(one.to_dict())), yaml.safe_load(yaml.safe_dump(one.to_dict()))):
        made = from_dict(again)
        assert (made.key, made.version, made.metrics, made.needs) == (one.key, one.version, one.metrics, one.needs)
        assert made.function == one.function
    file = tmp_path / "polite.yaml"
    file.write_text(yaml.safe_dump(one.to_dict()))
    assert as_evaluator(file).version == one.version


def test_a_definition_holds_no_key():
    secret = judge("polite", POLITE, judge=Judge(model="m", base_url="http://x/v1", api_key="sk-secret", max_calls=3))
    assert "sk-secret" not in repr(secret.origin)
    assert secret.to_dict()["init_parameters"]["judge"] == {"model": "m", "base_url": "http://x/v1", "max_calls": 3}
    assert "sk-secret" not in repr(get_evaluator("goal_reached", judge={"model": "m", "api_key": "sk-secret"}).origin)


def test_a_definition_with_a_function_as_its_judge_is_told_to_be_none():
    with pytest.raises(ValueError, match="is not a JSON value"):
        judge("polite", POLITE, judge=says("yes")).to_dict()


YAML = """
type: judge
init_parameters:
  key: polite
  prompt: "Polite? {{outputs}}"
  scale: {}
  examples: [{{outputs: Go!, rationale: It orders., rating: no}}]
"""


@pytest.mark.parametrize("scale", ["[yes, no]", "[Yes, No]", "{yes: it is kind, no: it is not}"])
def test_yes_and_no_need_no_quotes_in_yaml(tmp_path, scale):
    (tmp_path / "polite.yaml").write_text(YAML.format(scale))
    made = as_evaluator(tmp_path / "polite.yaml")
    assert list(made.to_dict()["init_parameters"]["scale"]) == ["yes", "no"]
    assert from_dict(made.to_dict()).version == made.version


@pytest.mark.parametrize("text", ["", "just words", "type: 3", "[1]", "{type: judge", "init_parameters: {}"])
def test_a_file_that_defines_nothing_is_refused(tmp_path, text):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"x\.yaml"):
        as_evaluator(file)


def test_the_version_follows_prompt_scale_examples_judge_and_map():
    versions = [
        judge("polite", POLITE).version,
        judge("polite", POLITE + " ").version,
        judge("polite", POLITE, ("no", "yes")).version,
        judge("polite", POLITE, {"yes": 1, "no": 0}).version,
        judge("polite", POLITE, examples=[SHOT]).version,
        judge("polite", POLITE, judge="m").version,
        judge("polite", POLITE, map={"outputs": "outputs.text"}).version,
        judge("polite", POLITE, higher_is_better=False).version,
        judge("polite", POLITE, max_characters=10).version,
    ]
    assert judge("polite", POLITE).version == versions[0]
    assert len(set(versions)) == len(versions) - 1  # trailing space is not sent


def test_feedback_bears_its_name_and_version():
    one = judge("polite", POLITE, judge=says("yes"))
    [said] = score(one, outputs="x")
    assert (said.key, said.evaluator, said.version, said.source) == ("polite", "polite", one.version, "model")


def test_it_is_used_in_an_experiment(store):
    one = judge("polite", POLITE, judge=scripted(lambda ask: {"rationale": "r", "rating": "yes"}))
    rows = [{"inputs": {"q": "a"}}, {"inputs": {"q": "b"}}]
    done = evaluate(rows, lambda q: f"Please, {q}.", evaluators=[one, "not_empty"], store=store)
    assert (done.summary()["polite"].mean, done.summary()["polite"].n) == (1.0, 2)


def test_it_is_called_with_a_case():
    row = asyncio.run(judge("polite", POLITE, judge=says("no"))(case=Case(outputs="y"), outputs="x"))
    assert (row["score"], row["label"]) == (False, "no")


def test_a_case_of_ones_own_is_judged():
    assert score(judge("polite", POLITE, judge=says("yes")), Case(outputs="x"))[0].score is True


def test_a_name_that_no_endpoint_takes_for_a_schema_is_made_one():
    asked = says("yes")
    score(judge("Is it polite? " * 9, POLITE, judge=asked), outputs="x")
    assert asked.backend.asked[0].name == ("Is_it_polite__" * 9)[:64]


def test_unknown_parameters_are_refused():
    with pytest.raises(ValueError, match="no parameter 'treshold'"):
        judge("polite", POLITE, treshold=1)
    with pytest.raises(ValueError, match="needs key"):
        get_evaluator("judge", prompt=POLITE)


@pytest.mark.parametrize("on", [None, "trace"])
def test_a_function_judges_too_and_changes_nothing(on):
    def cautious(messages: list) -> dict:
        messages.clear()
        return {"rationale": "Because.", "rating": "no"}

    root = Run(trace_id="1" * 32, span_id="a" * 16, name="agent", inputs={"q": "x"}, outputs="done", end_ns=1)
    case = Case(outputs="done") if on is None else Case(outputs="done", trace=Trace(root, (root,)))
    prompt = POLITE if on is None else "{outputs} {trajectory}"
    assert [said.label for said in score(judge("polite", prompt, judge=cautious), case)] == ["no"]


def test_history_is_found_in_inputs_that_are_messages():
    asked = says("yes")
    talk = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "So?"},
    ]
    score(judge("fits", "{history} / {inputs}", judge=asked), inputs={"messages": talk})
    content = asked.backend.asked[0].messages[1]["content"]
    assert ">\nuser: Hello\nassistant: Hi.\n<" in content
    assert ">\nSo?\n<" in content


def test_a_graded_score_is_weighted_by_how_likely_each_rating_was():
    tokens = (
        Token('{"rationale": "r", "rating": ', 0.0, {}),
        Token("4", -0.69, {"4": -0.6931, "5": -0.6931}),
        Token("}", 0.0, {}),
    )
    reply = Completion(text='{"rationale": "r", "rating": 4}', logprobs=tokens)
    [said] = score(judge("tone", POLITE, range(1, 6), judge=scripted(reply), logprobs=True), outputs="x")
    assert (round(said.score, 2), said.label, said.metadata["probabilities"].keys()) == (4.5, "4", {"4", "5"})


def test_a_placeholder_may_have_the_name_of_a_parameter():
    own = judge("kept", "{prompt} {own}", judge=says("yes"), map={"prompt": "inputs.p", "own": "inputs.o"})
    [row] = score(own, inputs={"p": "first", "o": "second"})
    assert row.score is True
