"""Judges behind an OpenAI-compatible endpoint, through openai's own client: what each malady comes to."""

import asyncio
import gzip
import json

import pytest

from evaluators.judge_server import Reply, completion, error, serving
from spanwise.evaluators.interface import Unjudged, is_transient
from spanwise.evaluators.judges import Ask, Judge, Token
from spanwise.evaluators.judges.llm_client.chat_completions import CutOff
from spanwise.evaluators.judges.llm_client.openai_backend import MAX_RESPONSE_BYTES, clear_capabilities
from spanwise.evaluators.judges.ratings import YES_NO_SCHEMA

YES = {"rationale": "It is.", "rating": "yes"}


@pytest.fixture(autouse=True)
def _nothing_known():
    """Ports come again."""
    clear_capabilities()


def an_ask(schema=YES_NO_SCHEMA, **more):
    return Ask(
        messages=({"role": "system", "content": "You judge."}, {"role": "user", "content": "Is it?"}),
        schema=schema,
        **more,
    )


def complete(server, ask=None, **judge):
    """What one call comes to, without what surrounds it."""
    made = Judge(**{"model": "m", "base_url": server.url, "api_key": "secret-key", **judge})
    return asyncio.run(made.answering.complete(ask or an_ask()))


def failing(server, kind=Unjudged, ask=None, **judge):
    with pytest.raises(kind) as raised:
        complete(server, ask, **judge)
    return raised.value


def test_what_is_sent():
    with serving([YES]) as server:
        complete(server, an_ask(name="is it polite?"), max_tokens=77, seed=3)
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer secret-key"
    body = server.bodies[0]
    form = body.pop("response_format")["json_schema"]
    assert (form["name"], form["strict"]) == ("is_it_polite_", True)
    assert list(form["schema"]["properties"]) == ["rationale", "rating"]
    assert form["schema"]["properties"]["rating"] == {"type": "string", "enum": ["yes", "no"]}
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "You judge."}, {"role": "user", "content": "Is it?"}],
        "temperature": 0.0,
        "seed": 3,
        "max_tokens": 77,
    }


def test_what_comes_back():
    more = {"logprobs": [("yes", -0.1, {"yes": -0.1, "no": -2.5})], "usage": (7, 3)}
    with serving([Reply(body=completion("yes", **more))]) as server:
        came = complete(server, an_ask(None, logprobs=5))
    assert (came.text, came.model, came.finish) == ("yes", "scripted-1", "stop")
    assert (came.usage.input_tokens, came.usage.output_tokens) == (7, 3)
    assert came.logprobs == (Token("yes", -0.1, {"yes": -0.1, "no": -2.5}),)
    assert (server.bodies[0]["logprobs"], server.bodies[0]["top_logprobs"]) == (True, 5)
    assert "response_format" not in server.bodies[0]


REFUSALS = {
    "temperature, OpenAI": (
        error(400, "Unsupported value: 'temperature' does not support 0 with this model.", param="temperature"),
        {"temperature"},
        "asked without a temperature",
    ),
    "temperature, Azure": (
        error(
            400, "Unsupported parameter: 'temperature' is not supported with this model.", code="unsupported_parameter"
        ),
        {"temperature"},
        "asked without a temperature",
    ),
    "seed, vLLM and FastAPI": (
        Reply(
            status=422,
            body={"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 0}]},
        ),
        {"seed"},
        "asked without a seed",
    ),
    "seed, Mistral": (
        Reply(
            status=422,
            body={"object": "error", "message": "seed: extra fields not permitted", "type": "invalid_request_error"},
        ),
        {"seed"},
        "asked without a seed",
    ),
    "seed, Ollama": (Reply(status=400, body={"error": 'unknown field "seed"'}), {"seed"}, "asked without a seed"),
    "logprobs, OpenAI": (
        error(403, "You are not allowed to request logprobs from this model"),
        {"logprobs", "top_logprobs"},
        "asked without log-probabilities",
    ),
    "logprobs, llama.cpp": (
        error(400, "logprobs is not supported with stream=false", type="invalid_request_error"),
        {"logprobs", "top_logprobs"},
        "asked without log-probabilities",
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_what_is_refused_is_left_out_noted_and_remembered(case):
    refusal, names, note = case
    with serving(lambda request: refusal if names & request.body.keys() else YES) as server:
        first, second = (complete(server, an_ask(logprobs=3)) for _ in range(2))
    assert note in first.notes
    assert first.notes == second.notes
    assert len(server.requests) == 3


def test_several_refusals_are_found_out_one_by_one_and_once():
    def picky(request):
        if "max_tokens" in request.body:
            return error(
                400,
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            )
        if "temperature" in request.body:
            return error(400, "temperature: only the default is supported", param="temperature")
        return error(400, "'seed' is unknown") if "seed" in request.body else YES

    with serving(picky) as server:
        assert json.loads(complete(server).text) == YES
        assert complete(server).notes == ("asked without a temperature", "asked without a seed")
    assert len(server.requests) == 5
    assert server.bodies[-1]["max_completion_tokens"] == 2048


def test_other_models_of_the_same_endpoint_are_asked_for_all_of_it():
    with serving(
        lambda request: (
            error(400, "no", param="seed") if request.body["model"] == "m" and "seed" in request.body else YES
        )
    ) as server:
        complete(server)
        assert complete(server, model="other").notes == ()


@pytest.mark.parametrize(
    ("refusal", "form"),
    [
        (
            error(
                400,
                "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
                param="response_format",
            ),
            "json_object",
        ),
        (error(400, "This response_format type is unavailable now"), "json_object"),
        (
            Reply(
                status=422,
                body={
                    "detail": [
                        {"loc": ["body", "response_format", "type"], "msg": "Input should be 'text' or 'json_object'"}
                    ]
                },
            ),
            "json_object",
        ),
        (error(500, "failed to parse grammar", type="server_error"), "json_object"),
    ],
)
def test_where_schemas_are_refused_json_is_asked_for_with_the_schema_in_words(refusal, form):
    def without_schema(request):
        return refusal if request.body["response_format"]["type"] == "json_schema" else YES

    with serving(without_schema) as server:
        came = complete(server)
    assert "asked for JSON as json_object: the schema was refused" in came.notes
    assert server.bodies[1]["response_format"] == {"type": form}
    assert '"enum":["yes","no"]' in server.bodies[1]["messages"][-1]["content"]
    assert server.bodies[1]["messages"][-1]["content"].startswith("Is it?\n\n")


def test_where_json_objects_are_refused_too_words_are_left():
    with serving(
        lambda request: error(400, "response_format is not supported") if "response_format" in request.body else YES
    ) as server:
        came = complete(server)
    assert came.notes == ("asked for JSON in words alone: the schema was refused",)
    assert len(server.requests) == 3


def test_one_bad_schema_does_not_cost_the_others_theirs():
    odd = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7}}}
    refusal = error(
        400, "Invalid schema for response_format 'reply': 'multipleOf' is not permitted.", param="response_format"
    )

    def picky(request):
        return refusal if "multipleOf" in json.dumps(request.body.get("response_format")) else '{"n": 7}'

    with serving(picky) as server:
        complete(server, an_ask(odd))
        complete(server, an_ask(odd))
        assert complete(server).notes == ()
    assert len(server.requests) == 4
    assert server.bodies[0]["response_format"]["json_schema"]["strict"] is False


def test_an_error_that_only_quotes_a_parameter_teaches_nothing():
    quoting = error(400, "the message 'what is the temperature and the seed?' is not allowed")
    with serving(lambda request: quoting if len(server.requests) <= 3 else YES) as server:
        assert "what is the temperature" in str(failing(server))
        assert complete(server).notes == ()


def test_fewer_alternatives_where_twenty_are_too_many():
    def five(request):
        many = request.body["top_logprobs"] > 5
        return (
            error(400, "top_logprobs must be at most 5")
            if many
            else Reply(body=completion("yes", logprobs=[("yes", -0.1, {})]))
        )

    with serving(five) as server:
        came = complete(server, an_ask(None, logprobs=20))
    assert came.notes == ("asked for 5 alternatives per token instead of 20",)


def test_missing_log_probabilities_are_noted():
    with serving(["yes"]) as server:
        came = complete(server, an_ask(None, logprobs=3))
    assert (came.logprobs, came.notes) == ((), ("no log-probabilities came",))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            error(401, "Incorrect API key provided: secret-key.", code="invalid_api_key"),
            "refused the key (401): Incorrect API key provided: ….",
        ),
        (error(403, "Project has no access"), "denied access with this key (403): Project has no access"),
        (error(404, "The model `m` does not exist", code="model_not_found"), "has no model 'm'"),
        (error(400, "filtered", code="content_filter"), "the content filter of"),
        (error(400, "too many tokens", code="context_length_exceeded"), "the question is too long for 'm'"),
        (
            error(400, "'max_tokens' is too large: 2048. This model's maximum context length is 2048 tokens"),
            "the question is too long",
        ),
        (
            error(400, "the request exceeds the available context size", type="exceed_context_size_error"),
            "the question is too long",
        ),
        (error(429, "You exceeded your current quota", code="insufficient_quota"), "no credit is left (429)"),
        (error(402, "Payment required"), "refused the question (402): Payment required"),
        (
            Reply(status=404, body="<html>not here</html>", headers={"Content-Type": "text/html"}),
            "<html>not here</html>",
        ),
        (
            Reply(body="<html>Welcome</html>", headers={"Content-Type": "text/html"}),
            "answered with text/html instead of a chat completion",
        ),
        (Reply(body={"hello": "world"}), "instead of a chat completion"),
        (Reply(body=[1, 2]), "instead of a chat completion"),
        (Reply(body={"error": {"message": "no such model", "code": 404}}), "with an error: no such model"),
    ],
)
def test_what_no_other_try_can_mend_is_said_in_one_line(said, words):
    with serving([said]) as server:
        raised = failing(server)
    assert words in str(raised)
    assert server.url in str(raised)
    assert "\n" not in str(raised)
    assert "secret-key" not in str(raised)
    assert not is_transient(raised)


@pytest.mark.process
@pytest.mark.parametrize(
    "said",
    [
        429,
        500,
        502,
        Reply(hang=True),
        Reply(body=completion("yes"), cut=30),
        Reply(body=completion("yes"), cut=32, chunked=True),
        Reply(body=b'{"choices": [{"mess'),
        Reply(body=b"\xff\xfe not JSON"),
        Reply(body={"error": {"message": "upstream", "code": 502}}),
    ],
    ids=["429", "500", "502", "hang", "cut", "cut chunks", "broken JSON", "no JSON", "error within 200"],
)
def test_what_may_pass_is_raised_for_those_who_try_again(said):
    with serving([said]) as server:
        raised = failing(server, Exception, deadline=0.4)
    assert is_transient(raised)
    assert not isinstance(raised, Unjudged)


@pytest.mark.process
@pytest.mark.parametrize("packed", [False, True])
def test_a_reply_without_an_end_is_not_read_to_its_end(packed):
    body = json.dumps(completion("x" * (MAX_RESPONSE_BYTES + 2))).encode()
    body, headers = (gzip.compress(body, 1), {"Content-Encoding": "gzip"}) if packed else (body, {})
    with serving([Reply(body=body, headers=headers)]) as server:
        assert "answered with more than 32 MiB" in str(failing(server, Unjudged))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("retry", [{}, {"Retry-After": "0"}], ids=["", "retry after"])
def test_a_redirect_is_refused_and_no_other_address_gets_a_request(status, retry):
    with serving([YES]) as other:
        headers = {"Location": f"{other.url}/chat/completions?secret=1", **retry}
        with serving([Reply(status=status, body="", headers=headers)]) as server:
            told = str(failing(server, Unjudged))
    assert told.startswith(f"{server.url} redirects to '{other.url}/chat/completions' ({status})")
    assert (len(server.requests), other.requests) == (1, [])


def test_a_redirect_to_the_same_host_is_refused_too():
    with serving(lambda request: Reply(status=307, body="", headers={"Location": request.path})) as server:
        assert "redirects to '/v1/chat/completions' (307)" in str(failing(server, Unjudged))


def test_a_host_without_an_address_is_told_at_once():
    with pytest.raises(Unjudged, match=r"the host name of http://judge\.invalid/v1 cannot be resolved"):
        asyncio.run(Judge(model="m", base_url="http://judge.invalid/v1").answering.complete(an_ask()))


def test_a_server_that_is_down_may_come_back():
    with serving([]) as server:
        pass
    assert is_transient(failing(server, Exception))


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        (completion("", choices=[]), "", "no choices"),
        (completion(None), "", "stop"),
        (completion("", refusal="I will not."), "", "stop"),
        (completion("", finish="content_filter"), "", "content_filter"),
        (completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", "stop"),
        (completion("x", finish=None, usage=None), "x", None),
        ({"choices": [{"message": None}]}, "", None),
        ({"choices": "none"}, "", "no choices"),
        (
            {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many", "completion_tokens": -1}},
            "x",
            None,
        ),
    ],
)
def test_odd_completions_are_read_as_far_as_they_go(body, text, finish):
    with serving([Reply(body=body)]) as server:
        came = complete(server)
    assert (came.text, came.finish) == (text, finish)


@pytest.mark.parametrize(
    "thinking",
    [
        completion("", finish="length", reasoning_tokens=90),
        completion("", finish="length"),
        completion('{"rationale": "so', finish="length", reasoning_tokens=90),
        completion("<think>Let me see", finish="length"),
    ],
)
def test_a_model_that_thinks_gets_room_and_keeps_it(thinking):
    def thinks(request):
        return Reply(body=thinking) if request.body["max_tokens"] < 400 else YES

    with serving(thinks) as server:
        assert failing(server, CutOff, max_tokens=100).again
        assert json.loads(complete(server, max_tokens=100).text) == YES
        judge = Judge(model="m", base_url=server.url, max_tokens=100)
        assert (judge.max_tokens, judge.most_tokens) == (100, 400)


def test_room_has_an_end():
    with serving(lambda request: Reply(body=completion("", finish="length"))) as server:
        cuts = [failing(server, CutOff, max_tokens=100) for _ in range(3)]
    assert [cut.again for cut in cuts] == [True, True, False]
    assert [body["max_tokens"] for body in server.bodies] == [100, 400, 1600]
    assert "increase max_tokens" in str(cuts[-1])
    assert cuts[-1].usage.output_tokens == 5


def test_room_that_the_endpoint_does_not_have_is_given_up():
    def small(request):
        if request.body["max_tokens"] > 100:
            return error(400, "max_tokens is too large: this model's maximum context length is 300 tokens")
        return Reply(body=completion("", finish="length")) if len(server.requests) == 1 else YES

    with serving(small) as server:
        failing(server, CutOff, max_tokens=100)
        failing(server, Unjudged, max_tokens=100)
        assert json.loads(complete(server, max_tokens=100).text) == YES


@pytest.mark.process
def test_fifty_at_once_find_out_together():
    def picky(request):
        return error(400, "no", param="temperature") if "temperature" in request.body else YES

    async def all_of_them(judge):
        return await asyncio.gather(*[judge.answering.complete(an_ask()) for _ in range(50)])

    with serving(picky) as server:
        came = asyncio.run(all_of_them(Judge(model="m", base_url=server.url)))
        assert {each.notes for each in came} == {("asked without a temperature",)}
        before = len(server.requests)
        complete(server)
        assert len(server.requests) == before + 1


def test_one_client_serves_many_loops():
    with serving(lambda request: YES) as server:
        for _ in range(3):
            complete(server)
        ports = {request.headers["host"] for request in server.requests}
    assert len(server.requests) == 3
    assert len(ports) == 1
