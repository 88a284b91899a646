"""The scripted server that judges are tried against, through the real client."""

import asyncio
import time

import pytest

from evaluators.judge_server import Reply, completion, error, serving
from lazy_modules import LazyModule

openai = LazyModule("openai")


def ask(server, n=1, timeout=60.0):
    """What `n` calls at once came to: completions and the client's errors."""

    async def once(client):
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url, api_key="key", max_retries=0, timeout=timeout) as client:
            return await asyncio.gather(*[once(client) for _ in range(n)], return_exceptions=True)

    return asyncio.run(all_of_them())


def test_a_text_is_the_content_of_a_completion_and_a_dict_its_json():
    with serving(["yes", {"rating": "no"}]) as server:
        contents = [ask(server)[0].choices[0].message.content for _ in range(2)]
    assert contents == ["yes", '{"rating": "no"}']
    assert server.bodies[0]["model"] == "m"
    assert server.requests[0].headers["authorization"] == "Bearer key"


def test_a_function_sees_the_request():
    with serving(lambda request: completion(request.body["model"])["choices"][0]["message"]["content"]) as server:
        assert ask(server)[0].choices[0].message.content == "m"


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "raised"),
    [
        (500, "InternalServerError"),
        (error(400, "no", param="seed"), "BadRequestError"),
        (Reply(hang=True), "APITimeoutError"),
        (Reply(body=completion("yes"), cut=20), "APIConnectionError"),
        (Reply(body=completion("yes"), cut=32, chunked=True), "APIConnectionError"),
    ],
    ids=["500", "400", "hang", "cut", "cut chunks"],
)
def test_what_goes_wrong_is_the_clients_own_error(said, raised):
    with serving([said]) as server:
        (came,) = ask(server, timeout=0.3 if raised == "APITimeoutError" else 60.0)
    assert type(came) is getattr(openai, raised)


def test_chunks_that_are_whole_are_a_reply():
    with serving([Reply(body=completion("yes"), chunked=True)]) as server:
        assert ask(server)[0].choices[0].message.content == "yes"


def test_a_script_that_has_run_out_says_so():
    with serving([]) as server:
        assert "no more replies" in str(ask(server)[0])


def test_beyond_what_it_allows_it_says_when_to_come_again():
    with serving(lambda request: "yes", allows=3, per=1000.0) as server:
        came = ask(server, n=5)
    refused = [each for each in came if isinstance(each, openai.RateLimitError)]
    assert len(refused) == server.refused == 2
    assert 0 < int(refused[0].response.headers["retry-after"]) <= 1000


@pytest.mark.process
def test_what_hangs_does_not_keep_it_open():
    began = time.monotonic()
    with serving([Reply(hang=True), Reply(delay=60)]) as server:
        ask(server, n=2, timeout=0.2)
    assert time.monotonic() - began < 50  # less than the delay
