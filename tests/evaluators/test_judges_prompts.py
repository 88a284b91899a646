"""Prompts: placeholders, versions, hashes, and what users put in their place."""

import subprocess
import sys

import pytest

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, judge, score
from spanwise.evaluators.judges import Prompt, prompt, scripted
from spanwise.evaluators.judges.prompt_templates import PLACEHOLDERS, render_value

YES = {"rationale": "Because.", "rating": "yes"}


def asked_for(text, names=PLACEHOLDERS):
    return Prompt("q", text, names=names).asked


@loop_over(
    ("text", "asked"),
    [
        ("{outputs} {inputs} {outputs}", ("outputs", "inputs")),
        ("{{outputs}} {{ inputs }}", ("outputs", "inputs")),
        ("{{{outputs}}}", ("outputs",)),
        ('Reply {"score": 1} or {{"score": 1}} {outputs}', ("outputs",)),
        ("{ } {} {0} { outputs } {outputs!r} {outputs.answer} {outputs:>9} {a b}", ()),
        (r"$\frac{a}{b}$ \text{inputs} x_{n} x^{k} \sqrt[n]{x} \hat{y} {outputs}", ("inputs", "outputs")),
        ("for (x of xs) { return x; } {outputs}", ("outputs",)),
        ("f'{x + 1}' {x:.2f} {'a'} {outputs}", ("outputs",)),
    ],
)
def test_only_names_of_arguments_are_placeholders(text, asked):
    assert asked_for(text) == asked


@pytest.mark.parametrize("text", ["{output}", "{{output}}", "{outputs} and {reference}", "{{ question }}", "{Inputs}"])
def test_an_unknown_name_is_refused_with_the_list(text):
    with pytest.raises(
        ValueError, match=r"expected one of: inputs, outputs, reference_outputs, documents, .*trajectory"
    ):
        asked_for(text)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"placeholder \{outptus\}.*did you mean 'outputs'"):
        judge("polite", "Is it polite? {outptus}")


def test_all_other_braces_are_sent_as_they_are():
    text = 'Reply {"score": 1}, { }, {0}, $\\frac{a}{b}$.\n{outputs}'
    assert Prompt("q", text).messages({"outputs": "x"})[1]["content"].startswith(text.removesuffix("{outputs}"))


def test_a_prompt_without_a_placeholder_is_refused():
    with pytest.raises(ValueError, match="has no placeholder, so the judge would see nothing"):
        get_evaluator("relevance_to_query", prompt="mine.txt")


def test_a_prompt_that_cannot_be_sent_is_refused():
    with pytest.raises(ValueError, match="surrogates not allowed"):
        judge("polite", "Is it \ud800 polite? {outputs}")


def test_a_file_says_its_version_in_a_line_that_is_not_sent(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# version: 7b\nIs it good?\n{outputs}")
    made = prompt("relevance_to_query", file)
    assert (made.version, made.text) == ("7b", "Is it good?\n{outputs}")
    assert made.label == f"relevance_to_query 7b {made.hash}"


@pytest.mark.parametrize("written", ["\ufeff# version: 2\nGood?\n{outputs}", "# version: 2\r\nGood?\r\n{outputs}"])
def test_a_file_of_another_editor_is_the_same_prompt(tmp_path, written):
    (tmp_path / "mine.txt").write_bytes(written.encode())
    made = prompt("q", tmp_path / "mine.txt")
    assert (made.version, made.hash) == ("2", Prompt("q", "Good?\n{outputs}").hash)


def test_a_file_in_another_encoding_is_named(tmp_path):
    (tmp_path / "mine.txt").write_bytes("Höflich? {outputs}".encode("latin-1"))
    with pytest.raises(ValueError, match=r"mine\.txt' is not UTF-8 text"):
        prompt("q", tmp_path / "mine.txt")


def test_the_hash_is_over_what_is_sent():
    plain, said = prompt("q", "{outputs}"), prompt("q", "# version: 2\n{outputs}")
    assert plain.hash == said.hash == Prompt("q", "{outputs}").hash
    assert plain.hash != prompt("q", "{outputs} ").hash


def test_a_users_prompt_is_told_from_ours():
    assert prompt("relevance_to_query").version == "1"
    assert prompt("relevance_to_query", "{outputs}").version == "own"


def test_a_text_takes_the_place_of_a_prompt_and_changes_the_version():
    asked = scripted(YES)
    own = get_evaluator("relevance_to_query", judge=asked, prompt="Does it fit?\n{outputs}")
    [said] = score(own, inputs="a", outputs="b")
    assert asked.backend.asked[0].messages[1]["content"].startswith("Does it fit?\n<data-")
    assert said.version == own.version != get_evaluator("relevance_to_query", judge=scripted(YES)).version


def test_a_folder_of_the_environment_takes_the_place_of_ours_and_an_argument_of_both(tmp_path, monkeypatch):
    (tmp_path / "relevance_to_query.txt").write_text("# version: 9\nFits?\n{outputs}")
    monkeypatch.setenv("SPANWISE_PROMPTS", str(tmp_path))
    assert get_evaluator("relevance_to_query").function.prompts[0].text == "Fits?\n{outputs}"
    assert get_evaluator("relevance_to_query", prompt="{inputs}").function.prompts[0].text == "{inputs}"
    assert get_evaluator("goal_reached").function.prompts[0].version == "1"  # none there


def test_a_file_that_is_not_there_is_told_when_the_evaluator_is_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        get_evaluator("relevance_to_query", prompt=tmp_path / "no.txt")


def test_prompts_are_given_by_their_ids_too():
    own = get_evaluator("relevance_to_query", prompt={"relevance_to_query": "{outputs}"})
    assert own.function.prompts[0].text == "{outputs}"
    with pytest.raises(
        ValueError,
        match="unknown prompt 'relevance'; expected one of: relevance_to_query; did you mean 'relevance_to_query'",
    ):
        get_evaluator("relevance_to_query", prompt={"relevance": "{outputs}"})


def test_values_are_bounded_together_the_longest_first():
    values = {"inputs": "short", "outputs": "a" * 5_000 + "z" * 5_000}
    sent = Prompt("q", "{inputs}{outputs}", bound=1_005).messages(values)[1]["content"]
    assert "short" in sent
    assert "[… 9,000 characters left out …]" in sent
    assert (sent.count("a" * 500), sent.count("z" * 500), len(sent) < 1_300) == (1, 1, True)


def test_the_bound_is_a_parameter():
    asked = scripted(YES)
    score(get_evaluator("relevance_to_query", judge=asked, max_characters=100), inputs="q", outputs="x" * 1_000)
    assert "[… 901 characters left out …]" in asked.backend.asked[0].messages[1]["content"]
    with pytest.raises(ValueError, match="max_characters must be an integer >= 1"):
        get_evaluator("relevance_to_query", max_characters=0)


@pytest.mark.process
def test_a_question_is_the_same_in_every_process():
    code = (
        "from spanwise.evaluators.judges import Prompt; from spanwise.evaluators.judges.prompt_templates import render_value;"
        "print(Prompt('q', '{inputs}{outputs}').messages({'outputs': render_value({'b', 'a', 'c'}), 'inputs': 'x'}))"
    )
    around = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=around, capture_output=True, text=True, check=True)
    values = {"outputs": render_value({"c", "b", "a"}), "inputs": "x"}
    assert done.stdout == f"{Prompt('q', '{inputs}{outputs}').messages(values)}\n"


@loop_over(
    ("name", "ours"),
    [
        *((name, "inputs") for name in ("input", "question", "query")),
        *((name, "outputs") for name in ("output", "answer", "response")),
        ("context", "documents"),
        ("reference", "reference_outputs"),
    ],
)
@loop_over("braces", ["{%s}", "{{%s}}"])
def test_usual_names_of_fields_are_synonyms(name, ours, braces):
    one, other = (judge("polite", f"Is it polite? {braces % word}") for word in (name, ours))
    assert one.needs == other.needs == (ours,)
    assert judge("polite", "{" + name + "}", map={name: "metadata.x"}).function.prompts[0].asked == (name,)


def test_a_prompt_without_placeholders_is_shown_inputs_and_outputs():
    asked = []

    def reply(ask):
        asked.append(ask.messages[-1]["content"])
        return {"rationale": "r", "rating": "yes"}

    (one,) = score(judge("polite", "Is the answer polite?", judge=scripted(reply)), inputs="HELLO", outputs="GO AWAY")
    assert one.score is True
    assert asked[0].startswith("Is the answer polite?")
    assert "HELLO" in asked[0]
    assert "GO AWAY" in asked[0]
    assert get_evaluator("relevance_to_query", prompt="Is it relevant?").function.prompts[0].asked == (
        "inputs",
        "outputs",
    )
