"""Embeddings of an OpenAI-compatible endpoint, asked over HTTP."""

from __future__ import annotations

import base64
import os
import struct
import threading

import pytest

from evaluators.judge_server import Reply, error, serving
from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.models import Embedder, NoModel, embedder


def vector(text):
    return [float(len(text)), 1.0]


def data(texts, packed=False):
    vectors = [vector(text) for text in texts]
    shown = [base64.b64encode(struct.pack("<2f", *v)).decode() for v in vectors] if packed else vectors
    return [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(shown)]


def embeddings(request):
    """What OpenAI says, in the form that was asked for."""
    texts = request.body["input"]
    return Reply(body={"object": "list", "data": data(texts, request.body.get("encoding_format") == "base64")})


def asked(server, texts=("a", "bb"), **options):
    return Embedder("small", base_url=server.url, cache=False, **options).embed(list(texts)).tolist()


def test_texts_go_to_the_address_with_its_key_and_come_back_in_order():
    with serving(embeddings) as server:
        assert asked(server, ("a", "bb", "a"), api_key="sk-1") == [[1.0, 1.0], [2.0, 1.0], [1.0, 1.0]]
    [request] = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/embeddings", "Bearer sk-1")
    assert (request.body["model"], request.body["input"]) == ("small", ["a", "bb"])


@pytest.mark.parametrize("packed", [True, False])
def test_the_order_is_that_of_index_and_numbers_may_be_packed_or_not(packed):
    with serving([Reply(body={"data": data(["a", "bb", "ccc"], packed)[::-1]})]) as server:
        assert asked(server, ("a", "bb", "ccc")) == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]


def test_a_request_has_as_many_texts_as_it_may_and_no_more_characters():
    texts = [str(n) for n in range(5)] + ["x" * 150_000, "y" * 150_000]
    with serving(embeddings) as server:
        asked(server, texts, batch_size=4)
    assert [len(body["input"]) for body in server.bodies] == [4, 2, 1]


def test_an_empty_text_is_sent_as_a_space():
    with serving(embeddings) as server:
        assert asked(server, [""]) == [[1.0, 1.0]]
    assert server.bodies[0]["input"] == [" "]


@pytest.mark.process
def test_what_may_pass_is_tried_again():
    refused = error(429, "slow down", headers={"retry-after": "0"})
    with serving([refused, 500, Reply(body={"data": data(["a", "bb"])})]) as server:
        assert asked(server) == [[1.0, 1.0], [2.0, 1.0]]


def test_what_hangs_ends_at_the_deadline():
    with (
        serving(lambda request: Reply(hang=True)) as server,
        pytest.raises(TimeoutError, match=r"small at .* returned no vectors within 0.3 s after \d attempt"),
    ):
        asked(server, deadline=0.3)


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (401, "refused the key"),
        (404, "there is no model 'small' at .*, or no embeddings"),
        (413, "give a smaller batch_size"),
        (Reply(body="<html>", headers={"content-type": "text/html"}), "no embeddings .*check base_url"),
        (Reply(body={"data": data(["a"])}), "the indexes of 1 embeddings do not match 2 texts"),
        (Reply(body={"data": data(["a"]) * 2}), "the indexes of 2 embeddings do not match 2 texts"),
        (
            Reply(body={"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]}),
            "the endpoint returned",
        ),
        (Reply(body={"data": [{"embedding": [1.0]}, {"embedding": "%%"}]}), "no embeddings"),
        (Reply(body={"data": [{"embedding": [1.0]}, {"embedding": None}]}), "no embeddings"),
        (Reply(body=b'{"data": [{"embedding": [1e999]}, {"embedding": [1]}]}'), "no embeddings"),
        (Reply(body={"error": {"message": "no"}}), "no list of embeddings"),
    ],
)
def test_what_no_other_try_can_mend_is_said(reply, what):
    with serving([reply]) as server, pytest.raises(Unjudged, match=what):
        asked(server)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("retry", [{}, {"Retry-After": "0"}], ids=["", "retry after"])
def test_a_redirect_is_refused_and_no_other_address_gets_a_request(status, retry):
    with serving(embeddings) as other:
        headers = {"Location": f"{other.url}/embeddings", **retry}
        with (
            serving([Reply(status=status, body="", headers=headers)]) as server,
            pytest.raises(
                Unjudged, match=rf"redirects to '{other.url}/embeddings' \({status}\), and redirects are not"
            ),
        ):
            asked(server)
    assert (len(server.requests), other.requests) == (1, [])


def test_the_key_is_in_no_message():
    told = error(400, "the key sk-secret is not welcome")
    with serving([told]) as server, pytest.raises(Unjudged, match="the key … is not welcome"):
        asked(server, api_key="sk-secret")


def test_the_key_is_in_no_part_of_what_is_shown_of_an_answer():
    answer = Reply(body=b"<html>" + b"x " * 144 + b"sk-secret" + b" y" * 100)
    with serving([answer]) as server, pytest.raises(Unjudged) as raised:
        asked(server, api_key="sk-secret")
    assert "sk-s" not in str(raised.value)


@pytest.mark.parametrize("key", ["groundedness", "sas", "hallucination", "toxicity", "perplexity"])
def test_no_token_is_a_parameter_of_an_evaluator(key):
    with pytest.raises(
        ValueError, match=r"must not be among an evaluator's parameters, because these are stored: set HF_TOKEN"
    ) as raised:
        get_evaluator(key, model={"model": "m", "token": "hf_secret"})
    assert "hf_secret" not in str(raised.value)


def test_vectors_that_change_their_length_are_an_error():
    replies = [Reply(body={"data": data(["a"])}), Reply(body={"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]})]
    with serving(replies) as server, pytest.raises((ValueError, Unjudged)):
        asked(server, ("x" * 150_000, "y" * 150_000), batch_size=1)


def test_what_came_before_a_failure_is_not_asked_for_again():
    with serving(lambda request: 400 if "bad" in request.body["input"] else embeddings(request)) as server:
        made = Embedder("small", base_url=server.url, cache=False, batch_size=1)
        with pytest.raises(Unjudged):
            made.embed(["a", "bad"])
        assert made.embed(["a"]).tolist() == [[1.0, 1.0]]
    assert [body["input"] for body in server.bodies].count(["a"]) == 1


def test_a_bad_text_takes_no_other_case_with_it():
    import asyncio

    from spanwise.collector.records import Case, Target

    with serving(lambda request: 400 if "bad" in request.body["input"] else embeddings(request)) as server:
        model = {"model": "small", "base_url": server.url, "cache": False}
        cases = [Case(outputs=text, reference_outputs="r") for text in ("a", "bad", "ccc")]
        targets = [Target(trace_id=f"{n:032x}") for n in range(3)]
        rows = asyncio.run(get_evaluator("semantic_similarity", model=model).evaluate_batch(cases, targets))
    assert [row[0].outcome for row in rows] == ["score", "error", "score"]
    assert "refused to embed (400)" in rows[1][0].error


def test_a_key_of_the_environment_goes_to_its_own_address_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    with serving(embeddings) as other, serving(embeddings) as ours:
        monkeypatch.setenv("SPANWISE_EMBEDDINGS_URL", ours.url)
        monkeypatch.setenv("SPANWISE_EMBEDDINGS_KEY", "sk-ours")
        asked(other), asked(ours)
        monkeypatch.setenv("OPENAI_BASE_URL", other.url + "/")
        asked(other)
    assert [request.headers["authorization"] for request in other.requests] == ["Bearer none", "Bearer sk-openai"]
    assert [request.headers["authorization"] for request in ours.requests] == ["Bearer sk-ours"]


def test_without_a_key_openai_is_not_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = Embedder("text-embedding-3-small", base_url="https://api.openai.com/v1", cache=False)
    [found] = score(get_evaluator("semantic_similarity", model=model), outputs="a", reference_outputs="b")
    assert "needs a key: give api_key or set OPENAI_API_KEY" in found.error


@loop_over(
    ("given", "what"),
    [
        ({"base_url": "http://localhost:1/v1"}, "needs the name of a model"),
        ({"model": len, "base_url": "http://localhost:1/v1"}, "needs the name of a model"),
        ({"base_url": "http://u:p@h/v1"}, "the endpoint 'h/v1' needs the name of a model"),
        (
            {"model": "m", "base_url": "http://h/v1#sk-1?x"},
            "must not have a query or a fragment .*, got 'http://h/v1'$",
        ),
        (
            {"model": "m", "token": "hf_1"},
            "must not be among an evaluator's parameters, because these are stored: set HF_TOKEN, or give Embedder",
        ),
        ({"model": "m", "base_url": "localhost"}, "base_url must be an address such as"),
        ({"model": "m", "base_url": "http://h/v1/embeddings"}, "base_url must not include the route /embeddings"),
        ({"model": "m", "base_url": "http://u:p@h/v1"}, "contains a user name or password"),
        (
            {"model": "m", "base_url": "http://h/v1", "api_key": "k"},
            "must not be among an evaluator's parameters, because these are stored: set SPANWISE_EMBEDDINGS_KEY",
        ),
        ({"model": "m", "base_url": "http://h/v1", "deadline": 0}, "deadline must be a number of seconds above 0"),
        ({"model": len, "cache": True}, "with a function needs name="),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(given, what):
    with pytest.raises(ValueError, match=what):
        embedder(given)


def test_a_key_without_an_address_is_refused():
    with pytest.raises(ValueError, match="api_key needs base_url"):
        Embedder("m", api_key="k")


def test_the_version_knows_the_address_and_never_the_key():
    one, two = (Embedder("m", base_url=f"http://{host}/v1", api_key="sk-1") for host in ("a", "b"))
    assert get_evaluator("groundedness", model=one).version != get_evaluator("groundedness", model=two).version
    assert "sk-1" not in repr(one.identity)


def test_without_the_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(
        NoModel, match=r"needs 'openai', which is not installed: pip install '\.\[server\]' in a checkout of Spanwise"
    ):
        Embedder("m", base_url="http://localhost:1/v1", cache=False).embed(["a"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_asks_over_its_own_connection():
    with serving(embeddings) as server:
        made = Embedder("small", base_url=server.url, cache=False)
        made.load(), made.embed(["a"])
        child = os.fork()
        if child == 0:
            os._exit(0 if made.embed(["bb"]).tolist() == [[2.0, 1.0]] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert made.embed(["ccc"]).tolist() == [[3.0, 1.0]]
    assert threading.active_count() >= 1
