"""What surrounds a call: attempts under one deadline, one more question on a parse failure, what is told at the end."""

import asyncio
import dataclasses
import re
import selectors
import time

import pytest

from evaluators.judge_server import Reply, completion, serving
from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.judges import Ask, Completion, Judge, ParseFailure, scripted
from spanwise.evaluators.judges.llm_client import judge_rate_limiter
from spanwise.evaluators.judges.llm_client.judge_call import JudgeCall

SCHEMA = {"type": "object", "properties": {"rating": {"enum": ["yes", "no"]}}, "required": ["rating"]}
ASK = Ask(messages=({"role": "user", "content": "good?"},), schema=SCHEMA)
YES = '{"rating": "yes"}'


def asked(script, ask=ASK, **judge):
    """The answer and the requests that it took."""
    with serving(script) as server:
        made = Judge(model="m", base_url=server.url, api_key="sk-secret-key", **judge)
        return asyncio.run(made.ask(ask)), server.requests


class Refused(Exception):
    def __init__(self, status, **headers):
        super().__init__(f"status {status}")
        self.status_code, self.headers = status, {name.replace("_", "-"): str(said) for name, said in headers.items()}


def refused(script, ask=ASK, **judge):
    with pytest.raises(Unjudged) as told:
        asked(script, ask, **judge)
    return told.value


@pytest.mark.process
def test_what_may_pass_is_tried_again():
    answer, requests = asked([500, 503, YES])
    assert (answer.value, answer.calls, len(requests)) == ({"rating": "yes"}, 3, 3)


@pytest.mark.process
def test_a_server_that_hangs_ends_at_the_deadline():
    began = time.monotonic()
    error = refused(lambda request: Reply(hang=True), deadline=1.0)
    assert time.monotonic() - began < 30
    assert re.search("gave no answer within 1 s after [12] attempts?: no reply within", str(error))


def test_a_server_in_trouble_is_told_of_once_the_deadline_leaves_no_room_for_it():
    error = refused(lambda request: Reply(status=500, headers={"Retry-After": "1000"}), deadline=60.0)
    assert "gave no answer within 60 s after 1 attempt" in str(error)
    assert "500" in str(error)


class NoWaiting(selectors.DefaultSelector):
    """What a loop waits for is there at once: its clock jumps to when that would be, however slow the machine."""

    passed = 0.0

    def select(self, timeout=None):
        found = super().select(0 if timeout else timeout)
        self.passed += 0 if found else timeout or 0
        return found


def in_line(reply, count, **judge):
    """What questions that come at once end with, and the seconds of a simulated clock until the last one has."""

    class Backend:
        model, where = "m", "here"

        async def complete(self, ask):
            return await reply()

    async def all_of_them():
        made = Judge(backend=Backend(), **judge)
        asks = (dataclasses.replace(ASK, sample=sample) for sample in range(count))
        questions = (JudgeCall(made, ask).answer() for ask in asks)
        return await asyncio.gather(*questions, return_exceptions=True)

    loop = asyncio.SelectorEventLoop(clock := NoWaiting())
    loop.time = lambda: clock.passed
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(all_of_them()), clock.passed


async def hangs():
    await asyncio.sleep(1e9)


def test_a_judge_that_hangs_once_leaves_time_for_another_attempt():
    replies = iter([hangs, lambda: asyncio.sleep(0.4, Completion(text=YES))])
    [(answer, _)], seconds = in_line(lambda: next(replies)(), 1, deadline=6.0)
    assert (answer.value, answer.calls) == ({"rating": "yes"}, 2)
    assert seconds < 6


def test_a_judge_that_hangs_ends_at_the_deadline_after_two_attempts():
    [error], seconds = in_line(hangs, 1, deadline=1.0)
    assert "gave no answer within 1 s after 2 attempts: no reply within" in str(error)
    assert seconds == pytest.approx(1.0, abs=0.01)


def test_a_judge_in_trouble_is_asked_until_the_deadline_leaves_no_room():
    async def fails():
        await asyncio.sleep(0.01)
        raise Refused(500)

    [error], seconds = in_line(fails, 1, deadline=60.0)
    assert re.search(r"gave no answer within 60 s after ([4-9]|\d\d) attempts: .*500", str(error))
    assert seconds < 60


@pytest.mark.parametrize("wait", [None, 0.2])
def test_a_line_that_does_not_move_ends_at_the_deadline_too(wait):
    async def refuses():
        if wait is None:
            await hangs()
        raise Refused(429, retry_after=wait)

    outcomes, seconds = in_line(refuses, 40, concurrency=2, deadline=0.6)
    assert seconds < 2  # 12 s, if each waited for its own deadline
    assert all(isinstance(outcome, Unjudged) for outcome in outcomes)
    assert "waited in the queue, and no call before it was answered" in str(outcomes[-1])


def test_a_line_that_moves_may_be_longer_than_the_deadline():
    async def answers():
        await asyncio.sleep(0.1)
        return Completion(text=YES)

    outcomes, seconds = in_line(answers, 10, concurrency=1, deadline=0.4)
    assert [answer.value for answer, _ in outcomes] == [{"rating": "yes"}] * 10
    assert seconds == pytest.approx(1.0)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_what_cannot_pass_is_not_tried_again(status):
    answered = []
    error = refused(lambda request: answered.append(1) or status, Ask(messages=ASK.messages))
    assert len(answered) == 1 or status == 400  # something may be left out of what is refused
    assert str(status) in str(error)


def test_no_message_shows_the_key():
    body = {"error": {"message": "sk-secret-key is over its limit"}}
    error = refused(lambda request: Reply(status=500, body=body, headers={"Retry-After": "1000"}), deadline=60.0)
    assert "sk-secret-key" not in str(error)
    assert "… is over its limit" in str(error)


@pytest.mark.process
def test_nobody_listens():
    with serving([]) as server:
        url = server.url
    with pytest.raises(Unjudged, match=r"cannot be reached, after \d+ attempts: connection refused"):
        asyncio.run(Judge(model="m", base_url=url, deadline=2.0).ask(ASK))


def test_an_error_of_a_function_is_told_as_it_is():
    with pytest.raises(TypeError, match="my mistake"):
        asyncio.run(Judge(backend=scripted(TypeError("my mistake")).backend).ask(ASK))


def test_a_reply_that_cannot_be_read_is_shown_to_the_judge_once():
    judge = scripted("I would say maybe", YES)
    answer = asyncio.run(judge.ask(ASK))
    shown = judge.asked[1].messages[1:]
    assert (answer.value, answer.calls) == ({"rating": "yes"}, 2)
    assert [message["role"] for message in shown] == ["assistant", "user"]
    assert shown[0]["content"] == "I would say maybe"
    assert "parse failure" in shown[1]["content"]
    assert answer.notes[-1].startswith("asked again: parse failure")


def test_a_second_reply_that_cannot_be_read_is_a_parse_failure_with_both():
    with pytest.raises(ParseFailure) as told:
        asyncio.run(scripted("maybe", "x" * 20_000, YES).ask(ASK))
    assert told.value.metadata["first_reply"] == "maybe"
    assert len(told.value.metadata["reply"]) == 8_000
    assert told.value.metadata["calls"] == 2


def test_when_asking_again_fails_it_is_the_first_reply_that_counts():
    with pytest.raises(ParseFailure) as told:
        asyncio.run(scripted("maybe", Unjudged("the model is away")).ask(ASK))
    assert told.value.metadata["asked_again"] == "the model is away"
    assert told.value.metadata["reply"] == "maybe"


def test_usage_and_cost_are_of_all_calls_together():
    judge = scripted(Completion(text="maybe", usage=Usage(100, 10)), Completion(text=YES, usage=Usage(200, 20)))
    answer = asyncio.run(dataclasses.replace(judge, price=(1.0, 10.0)).ask(ASK))
    assert answer.usage == Usage(300, 30)
    assert answer.cost == pytest.approx(300e-6 + 300e-6)


def test_a_reply_without_usage_has_no_cost():
    answer, _ = asked([Reply(body=completion(YES, usage=None))], price=(1.0, 1.0))
    assert (answer.usage, answer.cost) == (None, None)


def test_nineteen_failures_of_twenty_do_not_hold_up_the_one():
    async def all_of_them():
        judge = scripted(lambda ask: YES if ask.sample == 7 else Unjudged("not you"))
        asks = (Ask(messages=ASK.messages, schema=SCHEMA, sample=n) for n in range(20))
        return await asyncio.gather(*map(judge.ask, asks), return_exceptions=True)

    outcomes = asyncio.run(all_of_them())
    assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Unjudged)] == [7]


@pytest.fixture
def nowhere():
    """The address of a server that is gone."""
    with serving([]) as server:
        pass
    return server.url


def unreachable(url, count=1, **judge):
    made = Judge(model="m", base_url=url, api_key="sk-secret-key", cache=False, **judge)

    async def all_of_them():
        asks = (dataclasses.replace(ASK, sample=n) for n in range(count))
        return await asyncio.gather(*map(made.ask, asks), return_exceptions=True)

    return asyncio.run(all_of_them())


@pytest.mark.process
def test_a_judge_that_cannot_be_reached_is_given_up_soon_and_that_is_logged_at_once(nowhere, monkeypatch, caplog):
    monkeypatch.setattr(judge_rate_limiter, "CONNECTION_PATIENCE", 0.4)
    began = time.monotonic()
    errors = unreachable(nowhere, 5, concurrency=2)
    assert time.monotonic() - began < 5
    assert len(errors) == 5
    for error in errors:
        assert re.fullmatch(f"m at {nowhere} cannot be reached, after [0-9]+ attempts?: connection refused", str(error))
        assert "calls" not in error.metadata
    [said] = [record.getMessage() for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert said == (
        f"spanwise: the judge m at {nowhere} cannot be reached: connection refused; retrying for up to 0.4 s"
    )


def test_after_that_each_question_tries_once(nowhere, monkeypatch):
    monkeypatch.setattr(judge_rate_limiter, "CONNECTION_PATIENCE", 0.2)
    unreachable(nowhere)
    [error] = unreachable(nowhere)
    assert "cannot be reached, after 1 attempt:" in str(error)


@pytest.mark.process
def test_an_endpoint_that_has_answered_may_restart(monkeypatch):
    monkeypatch.setattr(judge_rate_limiter, "CONNECTION_PATIENCE", 0.05)
    with serving([YES]) as server:
        made = Judge(model="m", base_url=server.url, api_key="k", cache=False, deadline=30.0)
        asyncio.run(made.ask(ASK))
    port = int(server.url.rpartition(":")[2].partition("/")[0])

    async def later():
        asked = asyncio.create_task(made.ask(dataclasses.replace(ASK, sample=1)))
        await asyncio.sleep(0.4)
        with serving([YES], port=port):
            return await asked

    answer = asyncio.run(later())
    assert (answer.value, answer.calls) == ({"rating": "yes"}, 1)


def test_refused_connections_take_nothing_of_a_budget(nowhere, monkeypatch):
    monkeypatch.setattr(judge_rate_limiter, "CONNECTION_PATIENCE", 0.2)
    made = Judge(model="m", base_url=nowhere, api_key="k", cache=False, max_calls=1)
    for _ in range(2):
        with pytest.raises(Unjudged, match="cannot be reached"):
            asyncio.run(made.ask(ASK))
    assert made.budget.spent.calls == 0
