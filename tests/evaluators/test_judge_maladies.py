"""What becomes of a judgement when the endpoint is ill: one outcome per malady, through evaluator, client and HTTP.

A score, an error or a skip, never confused: no malady is a 0, and none is a yes.
"""

import json

import pytest

from evaluators.judge_server import Reply, completion, error, serving
from spanwise.evaluators import Judge, get_evaluator, score
from spanwise.evaluators.judges.llm_client.openai_backend import clear_capabilities

YES = {"rationale": "It is.", "rating": "yes"}
NO = {"rationale": "It is not.", "rating": "no"}
RAW = "The rating is yes."


@pytest.fixture(autouse=True)
def _nothing_known():
    clear_capabilities()


def judged(server, **judge):
    judge = Judge(**{"model": "m", "base_url": server.url, "api_key": "secret-key", **judge})
    (feedback,) = score(get_evaluator("relevance_to_query", judge=judge), inputs="How big is it?", outputs="Quite big.")
    return feedback


def body(content, **more):
    return Reply(body=completion(content, **more))


# What the server says first and after that, and how many requests that takes.
MENDED = {
    "429": ([error(429, headers={"Retry-After": "0"})], 2),
    "429 with milliseconds": ([error(429, headers={"retry-after-ms": "20"})] * 3, 4),
    "500": ([500], 2),
    "broken JSON of the body": ([Reply(body=b'{"choices": [')], 2),
    "cut body": ([Reply(body=completion("x"), cut=25)], 2),
    "cut stream": ([Reply(body=completion("x"), cut=32, chunked=True)], 2),
    "hang": ([Reply(hang=True)], 2),
    "error within 200": ([Reply(body={"error": {"code": 503, "message": "busy"}})], 2),
    "words instead of JSON": ([RAW], 2),
    "wrong enum": ([{"rationale": "r", "rating": "perhaps"}], 2),
    "two verdicts": (['{"rationale": "a", "rating": "yes"} {"rationale": "b", "rating": "no"}'], 2),
    "thoughts without room": ([body("", finish="length", reasoning_tokens=2048)], 2),
    "temperature refused": ([error(400, "temperature does not support 0", param="temperature")], 2),
    "max_tokens refused": (
        [error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")],
        2,
    ),
    "schema refused": ([error(400, "response_format json_schema is not supported")], 2),
    "fence": (["```json\n" + json.dumps(NO) + "\n```"], 1),
    "words around": ([f"Here you are: {json.dumps(NO)} Anything else?"], 1),
    "curly quotes": (["{“rationale”: “It is not.”, “rating”: “no”}"], 1),
    "a quoted score": ([{"rationale": 'It says "score: 5" and "rating: yes".', "rating": "no"}], 1),
    "fake JSON in the rationale": ([{"rationale": json.dumps(YES), "rating": "no"}], 1),
    "case of the label": ([{"rationale": "r", "rating": " No."}], 1),
}


@pytest.mark.process
@pytest.mark.parametrize("case", MENDED.values(), ids=MENDED)
def test_what_passes_or_can_be_read_ends_in_the_score_that_was_given(case):
    first, requests = case
    with serving([*first, NO]) as server:
        feedback = judged(
            server, deadline=2.0 if any(isinstance(said, Reply) and said.hang for said in first) else 30.0
        )
    assert (feedback.outcome, feedback.score, feedback.error) == ("score", False, None)
    assert len(server.requests) == requests


# What the server says always, and how the error begins or what it holds.
LASTING = {
    "wrong key": (
        error(401, "Incorrect API key provided: secret-key"),
        "refused the key (401): Incorrect API key provided: …",
    ),
    "unknown model": (error(404, "The model `m` does not exist"), "has no model 'm'"),
    "no credit": (error(429, "quota", code="insufficient_quota"), "no credit is left (429)"),
    "content filter of the question": (error(400, "filtered", code="content_filter"), "the content filter of"),
    "content filter of the answer": (
        body("It is", finish="content_filter"),
        "the content filter of the endpoint stopped",
    ),
    "too long a question": (error(400, "x", code="context_length_exceeded"), "the question is too long"),
    "refusal": (body(None, refusal="I cannot help with that."), "the judge refused: I cannot help with that."),
    "empty answer": (body(""), "the judge's answer is empty"),
    "no content": (body(None), "the judge's answer is empty"),
    "no choices": (body("", choices=[]), "the judge's answer is empty (it ended with 'no choices')"),
    "cut off": (body('{"rationale": "It is', finish="length"), "the judge's answer was truncated after 5 tokens"),
    "HTML": (
        Reply(body="<html>Hello</html>", headers={"Content-Type": "text/html"}),
        "answered with text/html instead of a chat completion",
    ),
    "words instead of JSON": (RAW, "parse failure: the reply holds no JSON object"),
    "wrong enum": (
        {"rationale": "r", "rating": "perhaps"},
        'parse failure: \'rating\' is "perhaps", which is none of "yes", "no"',
    ),
    "a quoted score alone": ('The page says "score: 5".', "parse failure: the reply holds no JSON object"),
    "500 always": (500, "gave no answer within 0.3 s after"),
    "hang always": (Reply(hang=True), "gave no answer within 0.3 s after"),
    "429 always": (error(429, headers={"Retry-After": "60"}), "gave no answer within 0.3 s after"),
}


@pytest.mark.process
@pytest.mark.parametrize("case", LASTING.values(), ids=LASTING)
def test_what_lasts_is_an_error_that_says_so_and_no_score(case):
    said, words = case
    with serving(lambda request: said) as server:
        feedback = judged(server, deadline=0.3 if "0.3 s" in words else 30.0)
    assert (feedback.outcome, feedback.score) == ("error", None)
    assert words in feedback.error
    assert "\n" not in feedback.error
    assert "traceback" not in feedback.metadata
    assert "secret-key" not in f"{feedback}"


def test_a_parse_failure_keeps_what_was_said_both_times():
    with serving([RAW, "Still yes."]) as server:
        feedback = judged(server)
    assert (feedback.metadata["reply"], feedback.metadata["first_reply"]) == ("Still yes.", RAW)
    assert "could not be read" in server.bodies[1]["messages"][-1]["content"]
    assert server.bodies[1]["messages"][-2] == {"role": "assistant", "content": RAW}


def test_a_server_that_is_not_there_is_an_error():
    with serving([]) as server:
        pass
    assert "cannot be reached, after " in judged(server, deadline=1.0).error


def test_a_host_without_an_address_is_an_error_at_once():
    judge = Judge(model="m", base_url="http://judge.invalid/v1")
    (feedback,) = score(get_evaluator("relevance_to_query", judge=judge), inputs="?", outputs="!")
    assert feedback.error == "the host name of http://judge.invalid/v1 cannot be resolved; check the judge's base_url"


def test_nobody_to_ask_is_an_error(monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    (feedback,) = score(get_evaluator("relevance_to_query"), inputs="?", outputs="!")
    assert feedback.error.startswith("no judge is configured: pass judge=")


def test_what_was_left_out_or_forgiven_is_noted_on_the_feedback():
    def picky(request):
        return (
            error(400, "no", param="seed")
            if "seed" in request.body
            else "```json\n{}\n```".format(json.dumps({"rationale": "r", "rating": "YES"}))
        )

    with serving(picky) as server:
        notes = judged(server).metadata["judge"]["notes"]
    assert notes == ["asked without a seed", "read 'YES' as 'yes'"]
