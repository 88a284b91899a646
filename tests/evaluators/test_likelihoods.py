"""Evaluators on likelihoods with functions as models: what is asked, what becomes of what comes back, who is refused."""

from __future__ import annotations

import json
import math

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case
from spanwise.evaluators import from_dict, get_evaluator, interface, score
from spanwise.evaluators.judges import Judge
from spanwise.evaluators.models import LikelihoodModel, NoModel, likelihood_model

IDS = ["gptscore_mt", "gptscore_qa", "gptscore_sum_noref", "gptscore_sum_ref", "perplexity"]
FULL = {"inputs": "Where?", "outputs": "In the Alps.", "reference_outputs": "Alps"}


class Noting:
    """A model that notes what it is asked, and finds every word as likely as one of e."""

    def __init__(self):
        self.asked = []

    def __call__(self, pairs):
        self.asked += pairs
        return [[-1.0] * len(text.split()) for _, text in pairs]


def test_what_perplexity_asks():
    model = Noting()
    [found] = score(get_evaluator("perplexity", model=model), outputs="In the Alps.")
    assert model.asked == [("", "In the Alps.")]
    assert found.score == pytest.approx(math.e)


def test_what_a_translation_asks():
    model = Noting()
    rows = score(get_evaluator("gptscore_mt", model=model), **FULL)
    assert [row.key for row in rows] == ["gptscore_mt_accuracy", "gptscore_mt_fluency", "gptscore_mt_mqm"]
    first = "Rewrite the following text with its core information and consistent facts:"
    assert model.asked[:2] == [
        (f"{first} Alps In other words,", " In the Alps."),
        (f"{first} In the Alps. In other words,", " Alps"),
    ]
    assert "".join(model.asked[2]).startswith(
        "Rewrite the following text to make it more grammatical and well-written: A"
    )
    assert "".join(model.asked[4]).startswith(
        "Rewrite the following text into high-quality text with its core information: A"
    )


def test_what_a_summary_with_a_reference_asks():
    model = Noting()
    rows = score(get_evaluator("gptscore_sum_ref", model=model), **FULL)
    aspects = [row.key.removeprefix("gptscore_sum_ref_") for row in rows]
    assert aspects == ["semantic_coverage", "factuality", "informativeness", "coherence", "relevance", "fluency"]
    assert ["".join(pair) for pair in model.asked[::2]] == [
        f"Rewrite the following text {aspect} Alps In other words, In the Alps."
        for aspect in (
            "with the same semantics.",
            "with consistent facts.",
            "with its core information.",
            "into a coherent text.",
            "with consistent details.",
            "into a fluent and grammatical text.",
        )
    ]
    assert model.asked[1][1] == " Alps"


def test_what_a_summary_alone_asks():
    model = Noting()
    rows = score(get_evaluator("gptscore_sum_noref", model=model), **FULL)
    aspects = [row.key.removeprefix("gptscore_sum_noref_") for row in rows]
    assert aspects == [
        "semantic_coverage",
        "factuality",
        "consistency",
        "informativeness",
        "coherence",
        "relevance",
        "fluency",
    ]
    assert model.asked == [
        (f"Generate {summary} the following text: Where?\nTl;dr\n", "In the Alps.")
        for summary in (
            "a summary with as much semantic coverage as possible for",
            "a summary with consistent facts for",
            "a factually consistent summary for",
            "an informative summary that captures the key points of",
            "a coherent summary for",
            "a relevant summary with consistent details for",
            "a fluent and grammatical summary for",
        )
    ]


def test_what_an_answer_asks():
    model = Noting()
    rows = score(get_evaluator("gptscore_qa", model=model), **FULL)
    assert len({row.key for row in rows}) == 8
    assert model.asked == [
        (
            "Answer the question based on the conversation between a human and AI.\n"
            f"Question: Are the responses of AI {aspect}? (a) Yes. (b) No.\n"
            "Conversation: Human: Where?\nAI: In the Alps.\nAnswer:",
            " Yes",
        )
        for aspect in (
            "interesting",
            "engaging",
            "understandable",
            "relevant to the conversation",
            "generic or specific to the conversation",
            "correct to conversations",
            "semantically appropriate",
            "fluently written",
        )
    ]


def test_both_directions_count_the_same_however_long_they_are():
    losses = {" In the Alps.": [-1.0, -2.0, -3.0], " Alps": [-8.0]}
    found, *_ = score(
        get_evaluator("gptscore_sum_ref", model=lambda pairs: [losses[text] for _, text in pairs]), **FULL
    )
    assert found.score == pytest.approx((2.0 + 8.0) / 2)


def test_values_with_braces_stay_as_they_are():
    model = Noting()
    score(
        get_evaluator("gptscore_mt", model=model),
        outputs="{hypo_ref}",
        reference_outputs="{0} {ref_hypo} %s In other words,",
    )
    assert "facts: {0} {ref_hypo} %s In other words, In other words," in model.asked[0][0]
    assert model.asked[0][1] == " {hypo_ref}"


def test_equal_texts_are_asked_once():
    model = Noting()
    cases = [Case(outputs="a b"), Case(outputs="c"), Case(outputs="a b")]
    assert [row[0]["score"] for row in get_evaluator("perplexity", model=model).function.batch(cases)] == [math.e] * 3
    assert model.asked == [("", "a b"), ("", "c")]


@pytest.mark.parametrize("id", ["gptscore_mt", "gptscore_sum_ref", "gptscore_sum_noref", "perplexity"])
def test_without_a_token_it_is_undefined(id):
    rows = score(get_evaluator(id, model=Noting()), inputs="Where?", outputs="", reference_outputs="")
    assert {row.outcome for row in rows} == {"skip"}


def test_a_text_that_the_model_cannot_take_fails_alone():
    def model(pairs):
        if any("bad" in text for _, text in pairs):
            raise RuntimeError("no likelihood of that")
        return [[-1.0] for _ in pairs]

    cases = [Case(outputs=text) for text in ("a", "bad", "b", "bad too", "c")]
    came = get_evaluator("perplexity", model=model).function.batch(cases)
    assert [str(one) if isinstance(one, Exception) else one[0]["score"] for one in came] == [
        math.e,
        "no likelihood of that",
        math.e,
        "no likelihood of that",
        math.e,
    ]


@loop_over(
    ("gives", "what"),
    [
        (lambda pairs: [], "returned .* for 1 texts"),
        (lambda pairs: "no", "returned 'no' for 1 texts"),
        (lambda pairs: None, "returned None"),
        (lambda pairs: [-1.0], "must be finite and at most 0"),
        (lambda pairs: [["no"]], "a list of log-probabilities"),
        (lambda pairs: [[None, -1.0]], "must be finite and at most 0"),
        (lambda pairs: [[float("-inf")]], "must be finite and at most 0"),
        (lambda pairs: [[0.4]], "must be finite and at most 0"),
    ],
)
def test_what_is_no_log_probability_is_said(gives, what):
    with pytest.raises(ValueError, match=what):
        LikelihoodModel(gives).log_probabilities([("", "a")])


@loop_over(
    "chat",
    [
        "https://api.openai.com/v1",
        "http://localhost:8000/v1/chat/completions",
        "gpt-4o-mini",
        "openai/gpt-4.1",
        "openai:gpt-5-mini",
        "o3",
        "claude-sonnet-4-5",
        "anthropic/claude-3-opus",
        "openrouter/anthropic/claude-3-opus",
        "gemini-2.5-pro",
        Judge(model="any", base_url="http://localhost:1/v1", api_key="k"),
    ],
)
def test_a_chat_endpoint_is_refused_with_the_reason(chat):
    with pytest.raises(
        NoModel, match="is a chat endpoint, which returns log-probabilities only for the text that it generates"
    ):
        get_evaluator("perplexity", model=chat)


@pytest.mark.parametrize("hub", ["gpt2", "distilbert/distilgpt2", "openai/gpt-oss-20b", "EleutherAI/gpt-j-6b", "o"])
def test_a_model_of_the_hub_is_none(hub):
    assert get_evaluator("perplexity", model=hub).function._likelihood.name in (hub, "distilgpt2")


def test_a_folder_may_have_the_name_of_a_chat_model(tmp_path, monkeypatch):
    (tmp_path / "o3").mkdir()
    monkeypatch.chdir(tmp_path)
    assert likelihood_model("o3").name == "o3"


def test_what_names_no_model_is_refused():
    with pytest.raises(
        NoModel, match="a likelihood model is a model's name, a folder, or a function that maps a list of"
    ):
        get_evaluator("perplexity", model=5)


@pytest.mark.parametrize(
    "options", [{"dtype": "int4"}, {"max_length": 1}, {"stride": 0}, {"batch_tokens": 0}, {"max_length": True}]
)
def test_what_is_no_way_of_reading_is_refused(options):
    with pytest.raises(ValueError, match=rf"{next(iter(options))} must be .* not {next(iter(options.values()))!r}"):
        likelihood_model({"model": "gpt2", **options})


def test_a_gguf_file_is_found_or_said(tmp_path):
    file = tmp_path / "tiny.Q4.gguf"
    with pytest.raises(NoModel, match=r"there is no file '.*tiny.Q4.gguf'"):
        likelihood_model(file).name  # noqa: B018
    file.touch()
    assert [likelihood_model(given).name for given in (file, str(file))] == ["tiny.Q4"] * 2
    assert likelihood_model(tmp_path)._found[1] == "tiny.Q4.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(NoModel, match=r"contains 2 GGUF files: give the path of one of them, such as 'other.gguf'"):
        likelihood_model(tmp_path).name  # noqa: B018
    assert likelihood_model("owner/repository/a.gguf")._place.where == "owner/repository"


def test_nothing_passes_or_fails_a_perplexity_until_a_threshold_is_given():
    [found] = score(get_evaluator("perplexity", model=Noting()), outputs="a")
    assert get_evaluator("perplexity").metrics[0].passes(found.score) is None
    assert get_evaluator("perplexity", threshold=20).metrics[0].passes(found.score)
    with pytest.raises(ValueError, match=r"must be a number from 1 to inf, got 0\.5"):
        get_evaluator("perplexity", metric_threshold=0.5)


@pytest.mark.parametrize("id", IDS[:-1])
def test_everything_passes_the_documents_infinite_threshold(id):
    primary, *others = get_evaluator(id).metrics
    assert primary.passes(1e300)
    assert primary.primary
    assert not any(metric.primary or metric.higher_is_better for metric in others)


@pytest.mark.parametrize("id", IDS)
def test_each_survives_the_way_through_json_and_says_what_it_is(id):
    one = get_evaluator(id, model={"model": "gpt2", "bos": True})
    again = from_dict(json.loads(json.dumps(one.to_dict())))
    assert (again.key, again.version, again.metrics, again.needs) == (one.key, one.version, one.metrics, one.needs)
    said = interface.get_spec(id)
    assert (said.model, said.gpu, said.judge) == (True, True, False)
    assert {"Conceptual Soundness (SR 11-7)"} <= set(said.standards)


def test_the_version_changes_with_what_scores_depend_on():
    options = [{}, {"bos": True}, {"dtype": "float16"}, {"stride": 7}, {"max_length": 64}, {"batch_tokens": 1}]
    versions = [get_evaluator("perplexity", model={"model": "gpt2", **one}).version for one in options]
    assert len(set(versions)) == 5
    assert versions[0] == versions[-1] != get_evaluator("perplexity").version
