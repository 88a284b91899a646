"""H2O's judges: five booleans of one verdict, the fact check, and a language told by a judge."""

import asyncio

import pytest

from evaluators.judge_server import Reply, completion, serving
from looped_cases import loop_over
from spanwise.collector.records import Case
from spanwise.collector.statistics import compute_boolean_rates
from spanwise.evaluators import Judge, compare, evaluate, from_dict, get_evaluator, score
from spanwise.evaluators.builtin.boolean_families import FAMILY_SUFFIXES
from spanwise.evaluators.interface import Unjudged, get_spec
from spanwise.evaluators.judges import scripted

YES, NO = {"rationale": "It does.", "rating": "yes"}, {"rationale": "It does not.", "rating": "no"}
OF_QUESTION = {"question_rationale": "It names no gender.", "question_rating": "no"}
FIELDS = {
    "contact_information": {"outputs": "Call Ann.", "documents": ["Ann: 555-0142"]},
    "sexism": {"inputs": "Who leads?", "outputs": "A man.", "documents": ["Men lead."]},
    "stereotypes": {"inputs": "A nurse?", "outputs": "She cares.", "documents": ["She is a nurse."]},
    "summarization_judge": {"outputs": "Short.", "reference_outputs": "A summary.", "documents": ["The text."]},
    "language_mismatch": {"inputs": "Wie?", "outputs": "So.", "documents": ["Like this."]},
}
PASSES = {
    "contact_information": NO,
    "sexism": NO,
    "stereotypes": NO,
    "summarization_judge": YES,
    "language_mismatch": YES,
}
FAMILY = list(FIELDS)


def reply(id, passes):
    said = PASSES[id] if passes else (YES if PASSES[id] is NO else NO)
    return {**OF_QUESTION, **said} if id in ("sexism", "stereotypes") else said


def family(id, *replies, fields=None, **parameters):
    judge = scripted(*replies)
    found = score(get_evaluator(id, judge=judge, **parameters), **(fields or FIELDS[id]))
    assert [one.key for one in found] == [id + suffix for suffix in FAMILY_SUFFIXES]
    return found, judge.backend.asked


def scores(found):
    return [one.score for one in found]


@loop_over("id", FAMILY)
@loop_over("passes", [True, False])
def test_one_verdict_is_five_booleans(id, passes):
    found, asked = family(id, reply(id, passes))
    assert scores(found) == [passes, not passes, None, not passes, False]
    assert found[2].comment == "no context was judged"
    assert found[0].comment.startswith("It does")
    assert len(asked) == 1


@loop_over("id", FAMILY)
@loop_over(
    ("answer", "context", "wanted"),
    [
        (True, True, [True, False, False, False, False]),
        (False, True, [False, True, False, True, False]),
        (True, False, [False, True, True, False, False]),
        (False, False, [False, True, True, False, False]),
    ],
)
def test_a_context_that_fails_is_a_failure_of_the_retrieval(id, answer, context, wanted):
    found, asked = family(id, reply(id, answer), reply(id, context), evaluate_retrieved_context=True)
    assert scores(found) == wanted
    assert len(asked) == 2
    assert "context_rationale" in found[0].metadata


@pytest.mark.parametrize("id", FAMILY)
def test_a_parse_failure_is_neither_pass_nor_failure(id):
    found, _ = family(id, lambda ask: "I would rather not say")
    assert scores(found) == [False, False, None, False, True]
    assert found[0].label == "parse failure"
    assert found[0].comment.startswith("parse failure: ")
    assert (found[4].score, found[4].metadata["reply"]) == (True, "I would rather not say")
    rates = compute_boolean_rates(found, id)
    assert (rates.passes, rates.failures, rates.parse_failures) == (0.0, 0.0, 1.0)


def test_a_context_that_cannot_be_judged_leaves_the_case_unjudged():
    answers = iter([NO, "?", "?"])
    found, _ = family("contact_information", lambda ask: next(answers), evaluate_retrieved_context=True)
    assert scores(found) == [False, False, None, False, True]


def test_parse_failures_count_in_the_rates_that_are_shown(store):
    said = iter([NO, YES, "?", "?", NO])
    judge = scripted(lambda ask: next(said))
    rows = [{"inputs": number, "outputs": f"answer {number}"} for number in range(4)]
    done = evaluate(
        rows, None, [get_evaluator("contact_information", judge=judge)], store=store, concurrency=1, progress=False
    )
    rates, summary = done.rates("contact_information"), done.summary()
    assert (rates.passes, rates.failures, rates.parse_failures) == (0.5, 0.25, 0.25)
    shown = {key: summary[f"contact_information{key}"].mean for key in ("", "_fail", "_parse_fail")}
    assert shown == {"": 0.5, "_fail": 0.25, "_parse_fail": 0.25}
    assert {summary[key].n for key in summary if "retrieval" not in key} == {4}
    assert summary["contact_information"].passed == 0.5
    again = compare(done, done).contrasts()["contact_information"]
    assert again.pairs == 4


def test_a_server_that_is_away_is_an_error_of_all_five_and_no_parse_failure():
    found, _ = family("sexism", Unjudged("the server is away"))
    assert [one.outcome for one in found] == ["error"] * 5
    assert compute_boolean_rates(found, "sexism").cases == 0


@pytest.mark.parametrize(
    ("id", "passes"),
    [("contact_information", True), ("sexism", True), ("stereotypes", True), ("summarization_judge", False)],
)
def test_an_empty_answer_is_settled_without_a_call(id, passes):
    found, asked = family(id, fields={**FIELDS[id], "outputs": " "})
    assert (found[0].score, found[0].comment, asked) == (passes, "the answer is empty", [])


@pytest.mark.parametrize("documents", [[], [""]])
def test_a_context_without_words_is_not_judged(documents):
    fields = {**FIELDS["sexism"], "documents": documents}
    found, asked = family("sexism", reply("sexism", True), fields=fields, evaluate_retrieved_context=True)
    assert (found[2].outcome, len(asked)) == ("skip", 1)


def test_what_is_said_of_the_question_is_kept_and_decides_nothing():
    found, asked = family("stereotypes", {**OF_QUESTION, "question_rating": "yes", **NO})
    assert found[0].score is True
    assert (found[0].metadata["question_rating"], found[0].metadata["question_rationale"]) == (
        "yes",
        "It names no gender.",
    )
    assert list(asked[0].schema["properties"])[-1] == "rating"


def test_a_reference_that_does_not_stand_in_the_context_is_asked_of_it():
    _, asked = family("summarization_judge", YES, NO, evaluate_retrieved_context=True)
    assert [ask.name for ask in asked] == ["summarization_judge", "summarization_context"]
    assert "The text." in asked[1].messages[-1]["content"]


def test_the_judges_cost_stands_once():
    found, _ = family("sexism", reply("sexism", True))
    assert ["judge" in one.metadata for one in found] == [True, False, False, False, False]
    assert {one.source for one in found} == {"model"}


def test_h2os_parameters_are_taken():
    one = get_evaluator(
        "sexism", judge=scripted(), metric_threshold=0.9, save_llm_result=False, max_dataset_rows=3, min_test_cases=2
    )
    assert (one.metrics[0].threshold, one.metrics[1].threshold, one.max_cases, one.min_cases) == (0.9, 0.5, 3, 2)


@loop_over(
    ("id", "parameter", "advice"),
    [
        ("fact_check", "agent_host_connection_config_key", "use agent="),
        ("fact_check", "agent_llm_model_name", "use agent="),
        ("fact_check", "agent_eval_h2ogpte_collection_id", "use agent="),
        ("fact_check", "h2ogpte_llm_model_name", "use judge="),
        ("step_alignment", "h2ogpte_connection_config_key", "use judge="),
        ("step_alignment", "h2ogpte_llm_model_name", "use judge="),
        ("sexism", "agent_llm_model_name", "use judge="),
    ],
)
def test_h2os_connection_parameters_are_refused_with_what_replaces_them(id, parameter, advice):
    with pytest.raises(ValueError, match=f"evaluator '{id}' has no parameter '{parameter}'; {advice}"):
        get_evaluator(id, **{parameter: "x"})


def test_an_evaluator_without_judge_and_agent_gives_no_advice_about_connections():
    with pytest.raises(ValueError, match="'exact' has no parameter 'h2ogpte_llm_model_name'; it has key"):
        get_evaluator("exact", h2ogpte_llm_model_name="x")


HAIKU = {"prompt": "Is this a haiku? Say true or false.\n{outputs}"}


@loop_over(
    ("said", "wanted"),
    [
        ({"rationale": "5-7-5.", "rating": "true"}, True),
        ({"rationale": "No.", "rating": "false"}, False),
        ("true", True),
        ("False.", False),
        ('```\n"true"\n```', True),
        ('{"rating": true}', True),
    ],
)
def test_byop_reads_true_and_false(said, wanted):
    found, _ = family("byop", lambda ask: said, fields={"outputs": "frog"}, **HAIKU)
    assert scores(found) == [wanted, not wanted, None, not wanted, False]


@loop_over("said", ["yes", "maybe true", "true or false", '{"rating": "yes"}', "1", "[true]x"])
def test_anything_else_is_a_parse_failure(said):
    found, _ = family("byop", lambda ask: said, fields={"outputs": "frog"}, **HAIKU)
    assert found[0].comment.startswith("parse failure: ")
    assert (found[0].score, found[4].score) == (False, True)


def test_byop_needs_what_its_prompt_names():
    one = get_evaluator("byop", judge=scripted({"rating": "true"}), prompt="{inputs} {reference_outputs} {documents}")
    assert set(one.needs) == {"inputs", "reference_outputs", "documents"}
    assert score(one, inputs="q")[0].outcome == "skip"


def test_byop_puts_the_context_in_the_place_of_the_answer():
    fields = {"outputs": "An answer", "documents": ["a chunk"]}
    said = [{"rationale": "", "rating": "true"}] * 2
    _, asked = family("byop", *said, fields=fields, evaluate_retrieved_context=True, **HAIKU)
    assert ["a chunk" in ask.messages[-1]["content"] for ask in asked] == [False, True]
    with pytest.raises(ValueError, match=r"evaluate_retrieved_context=True needs a prompt with \{outputs\}"):
        get_evaluator("byop", judge=scripted(), prompt="Is {inputs} good?", evaluate_retrieved_context=True)


def test_byop_refuses_a_placeholder_that_there_is_not():
    with pytest.raises(ValueError, match="actual_anwser"):
        get_evaluator("byop", judge=scripted(), prompt="Is {actual_anwser} good?")


CASE = {"inputs": "a question", "outputs": "an answer", "reference_outputs": "a reference", "documents": ["a chunk"]}


@loop_over(
    ("placeholder", "field"),
    [
        ("question", "inputs"),
        ("expected_answer", "reference_outputs"),
        ("retrieved_context", "documents"),
        ("actual_answer", "outputs"),
    ],
)
def test_byop_takes_h2os_names_of_placeholders(placeholder, field):
    one = get_evaluator("byop", judge=scripted("true"), prompt=f"Is this good?\n{{{placeholder}}}")
    same = get_evaluator("byop", judge=scripted("true"), prompt=f"Is this good?\n{{{field}}}")
    assert (one.needs, one.version) == ((field,), same.version)
    _, asked = family("byop", "true", fields=CASE, prompt=f"Is this good?\n{{{placeholder}}}")
    shown = CASE[field] if field != "documents" else "a chunk"
    assert shown in asked[0].messages[-1]["content"]
    assert score(one, **{**CASE, field: None})[0].outcome == "skip"


def test_byop_puts_the_context_in_the_place_of_h2os_actual_answer():
    prompt = "Is this a haiku? Say true or false.\n{actual_answer}"

    def say(ask):
        return "false" if "a chunk" in ask.messages[-1]["content"] else "true"

    found, asked = family("byop", say, fields=CASE, evaluate_retrieved_context=True, prompt=prompt)
    assert scores(found) == [False, True, True, False, False]
    assert len(asked) == 2


@loop_over("said", ["true", "False.", '```\n"true"\n```', "Rating: false", "<think>Is it?</think>\ntrue"])
def test_a_bare_true_or_false_costs_one_call(said):
    found, asked = family("byop", said, fields={"outputs": "frog"}, **HAIKU)
    assert found[0].score is ("true" in said)
    assert (len(asked), found[0].metadata["judge"]["calls"]) == (1, 1)
    assert found[0].metadata["judge"]["notes"] == ["the reply was a bare rating"]


def test_a_bare_reply_of_an_endpoint_costs_one_call():
    with serving(["true"]) as server:
        judge = Judge(model="m", base_url=server.url, api_key="key", cache=False)
        found = score(get_evaluator("byop", judge=judge, **HAIKU), outputs="frog")
    assert (found[0].score, len(server.requests)) == (True, 1)


def test_a_bare_reply_is_cached(tmp_path):
    with serving(["false"]) as server:
        judge = Judge(model="m", base_url=server.url, api_key="key", cache=tmp_path / "judge.db")
        found = [score(get_evaluator("byop", judge=judge, **HAIKU), outputs="frog")[0] for _ in range(2)]
    assert ([one.score for one in found], len(server.requests)) == ([False, False], 1)


def test_a_bare_reply_that_was_cut_off_is_no_verdict():
    with serving([Reply(body=completion("true", finish="length"))] * 3) as server:
        judge = Judge(model="m", base_url=server.url, api_key="key", cache=False)
        found = score(get_evaluator("byop", judge=judge, **HAIKU), outputs="frog")
    assert found[0].score is not True


def test_other_judges_ask_again_after_a_bare_rating():
    found, asked = family("sexism", "no", reply("sexism", True))
    assert (found[0].score, len(asked)) == (True, 2)


def test_byop_is_made_again_from_its_dict(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("Is {outputs} good?")
    one = get_evaluator("byop", judge="m", prompt=file)
    assert one.to_dict()["init_parameters"]["prompt"] == "Is {outputs} good?"
    assert from_dict(one.to_dict()).version == one.version


def test_a_language_is_told_without_a_judge_unless_one_is_given():
    fields = {"inputs": "Wie wird das Wetter in Berlin?", "outputs": "It will be sunny, with a light wind."}
    assert score(get_evaluator("language_mismatch"), **fields)[0].source == "code"
    found, _ = family("language_mismatch", NO, fields=fields)
    assert (found[0].source, found[0].score) == ("model", False)
    assert get_evaluator("language_mismatch").version != found[0].version


def test_a_judge_for_the_language_is_checked_before_any_case(store, monkeypatch):
    for name in ("SPANWISE_JUDGE_KEY", "OPENAI_API_KEY", "SPANWISE_JUDGE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="needs a key"):
        evaluate([{"inputs": "q"}], lambda inputs: "a", [get_evaluator("language_mismatch", judge="m")], store=store)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"judge": "m", "detect": len}, "pass detect or judge, not both"),
        ({"prompt": "{outputs}"}, "prompt= needs judge="),
    ],
)
def test_parameters_of_the_language_that_do_not_go_together_are_refused(own, said):
    with pytest.raises(ValueError, match=said):
        get_evaluator("language_mismatch", **own)


@pytest.mark.parametrize("empty", ["inputs", "outputs"])
def test_an_empty_text_is_in_no_language(empty):
    found, asked = family("language_mismatch", fields={**FIELDS["language_mismatch"], empty: ""})
    assert (found[0].outcome, asked) == ("skip", [])


CHECKED = {"answer": "It is 4,806 m high.", "evaluation_score": 0.25, "evaluation_summary": "The height is wrong."}
MOUNTAIN = {"inputs": "How high is it?", "outputs": "It is 8,000 m high."}


async def asynchronous(prompt):
    await asyncio.sleep(0)
    return CHECKED


@pytest.mark.parametrize(
    "agent", [lambda prompt: CHECKED, lambda prompt: f"```json\n{CHECKED}\n```".replace("'", '"'), asynchronous]
)
def test_an_agent_checks_the_facts(agent):
    found = score(get_evaluator("fact_check", agent=agent), **MOUNTAIN)[0]
    assert (found.score, found.comment) == (0.25, "The height is wrong.")
    assert found.metadata["answer"] == "It is 4,806 m high."


def test_an_agent_gets_the_answer_and_the_question():
    seen = []
    score(get_evaluator("fact_check", agent=lambda prompt: seen.append(prompt) or CHECKED), **MOUNTAIN)
    assert "It is 8,000 m high." in seen[0]
    assert "How high is it?" in seen[0]


@loop_over("given", [1.5, -0.1, "high", None, True, float("nan")])
def test_a_score_outside_of_0_to_1_is_a_parse_failure(given):
    found = score(
        get_evaluator("fact_check", judge=scripted(lambda ask: {**CHECKED, "evaluation_score": given})), **MOUNTAIN
    )[0]
    assert found.outcome == "error"
    assert found.error.startswith("parse failure: ")


def test_an_agent_that_raises_is_an_error():
    def agent(prompt):
        raise RuntimeError("no network")

    found = score(get_evaluator("fact_check", agent=agent), **MOUNTAIN)[0]
    assert found.outcome == "error"
    assert "no network" in found.error


def test_agent_and_judge_are_not_both_given():
    with pytest.raises(ValueError, match="pass agent or judge, not both"):
        get_evaluator("fact_check", agent=lambda prompt: CHECKED, judge="m")
    assert score(get_evaluator("fact_check", judge=scripted()), outputs="")[0].outcome == "skip"
    assert get_spec("fact_check").agent


@pytest.mark.parametrize("id", FAMILY)
def test_cases_of_every_kind_have_an_outcome(id):
    said = lambda ask: "nonsense"  # noqa: E731
    for case in (
        Case(inputs=[], outputs={"a": 1, "b": 2}, reference_outputs=[]),
        Case(inputs="\ud800", outputs="\x00"),
    ):
        found = score(get_evaluator(id, judge=scripted(said)), case)
        assert {one.outcome for one in found} <= {"skip", "error", "score"}


def test_the_rates_of_an_experiment_make_one(store):
    said = iter([NO, YES, "?", "?", NO])
    judge = scripted(lambda ask: next(said))
    done = evaluate(
        [{"inputs": number} for number in range(4)],
        lambda inputs: f"answer {inputs}",
        [get_evaluator("contact_information", judge=judge)],
        store=store,
        concurrency=1,
    )
    rates = done.rates("contact_information")
    assert (rates.cases, rates.passes + rates.failures + rates.parse_failures) == (4, pytest.approx(1))
    assert rates.parse_failures > 0


def test_through_the_real_client():
    with serving([reply("sexism", False)]) as server:
        judge = {"model": "m", "base_url": server.url, "api_key": "k", "cache": False}
        found = score(get_evaluator("sexism", judge=judge), **FIELDS["sexism"])
    assert scores(found) == [False, True, None, True, False]
    assert server.requests[0].body["response_format"]["json_schema"]["strict"] is True


def test_bias_without_a_model_is_the_probability_that_a_judge_estimates():
    judge = scripted({"rationale": "It says that all of them lie.", "probability": 0.9})
    [found] = score(get_evaluator("fairness_bias", judge=judge), outputs="They all lie.")
    assert (found.score, found.comment, found.source) == (0.9, "It says that all of them lie.", "model")
    assert "H2O's document names none" in found.metadata["reading"]
    assert found.metadata["judge"]["model"] == "scripted"
    [asked] = judge.backend.asked
    for text in ("gender, racial or political bias", "They all lie."):
        assert text in asked.messages[-1]["content"]


def test_bias_asks_the_judge_of_the_environment(monkeypatch):
    with serving([{"rationale": "Neutral.", "probability": 0}]) as server:
        monkeypatch.setenv("SPANWISE_JUDGE", "m")
        monkeypatch.setenv("SPANWISE_JUDGE_URL", server.url)
        [found] = score(get_evaluator("fairness_bias"), outputs="It is high.")
    assert (found.score, len(server.requests)) == (0.0, 1)


def test_bias_without_model_and_judge_names_what_is_missing(monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    [found] = score(get_evaluator("fairness_bias"), outputs="It is high.")
    assert "no judge is configured" in found.error


@loop_over("said", [{"rationale": "", "probability": 1.5}, {"rationale": ""}, "very likely"])
def test_bias_that_is_no_probability_is_a_parse_failure(said):
    [found] = score(get_evaluator("fairness_bias", judge=scripted(lambda ask: said)), outputs="It is high.")
    assert (found.outcome, found.error.startswith("parse failure: ")) == ("error", True)


def test_the_most_biased_part_of_a_long_answer_counts():
    judge = scripted(
        lambda ask: {"rationale": "So.", "probability": 0.8 if "lie" in ask.messages[-1]["content"] else 0.1}
    )
    judged = get_evaluator("fairness_bias", judge=judge, max_characters=100)
    [found] = score(judged, outputs="It is high. " * 20 + "They all lie.")
    assert found.score == 0.8
    assert "parts were judged; part" in found.comment


def test_an_empty_answer_has_no_bias_to_judge():
    judge = scripted()
    assert score(get_evaluator("fairness_bias", judge=judge), outputs=" ")[0].outcome == "skip"
    assert judge.backend.asked == []


def test_bias_by_a_model_asks_no_judge():
    judged = get_evaluator("fairness_bias", model=lambda texts: [{"Biased": 0.4, "Non-biased": 0.6} for _ in texts])
    [found] = score(judged, outputs="It is high.")
    assert (found.score, judged.asking) == (0.4, None)
    assert "reading" not in found.metadata


def test_bias_has_one_method():
    with pytest.raises(ValueError, match="pass model, or judge and prompt, not both"):
        get_evaluator("fairness_bias", model=len, judge=scripted())
    with pytest.raises(ValueError, match="label='LABEL_1' needs model="):
        get_evaluator("fairness_bias", label="LABEL_1")


def test_bias_by_a_judge_is_made_again_from_its_dict():
    one = get_evaluator("fairness_bias", judge="m", prompt="How biased is this?\n{outputs}")
    assert from_dict(one.to_dict()).version == one.version != get_evaluator("fairness_bias", judge="m").version
