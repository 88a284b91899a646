"""Budgets: enforced before a call, settled after it."""

import asyncio
import dataclasses

import pytest

from evaluators.judge_server import Reply, completion, error, serving
from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Skip, Unjudged
from spanwise.evaluators.judges import Ask, Completion, CutOff, Judge, ParseFailure, make_judge, scripted
from spanwise.evaluators.judges.llm_client.judge_settings import (
    Amount,
    Budget,
    compute_cost,
    compute_max_cost,
    look_up_price,
)

OK = Completion(text="yes", usage=Usage(1_000, 100))


def ask(number: int = 0) -> Ask:
    return Ask(messages=({"role": "user", "content": f"question {number}?"},))


async def until(true):
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  # it changes on the judges' loop
            await asyncio.sleep(0.001)


def with_budget(judge, **bounds):
    return dataclasses.replace(judge, **bounds)


def test_twenty_at_once_with_room_for_three_make_exactly_three_calls():
    async def all_of_them(judge):
        return await asyncio.gather(*(judge.ask(ask(n)) for n in range(20)), return_exceptions=True)

    with serving(lambda request: Reply(body=completion("yes"), delay=0.05)) as server:
        outcomes = asyncio.run(all_of_them(Judge(model="m", base_url=server.url, max_calls=3)))
    assert len(server.requests) == 3
    assert sum(isinstance(outcome, Skip) for outcome in outcomes) == 17


def test_the_skip_names_the_budget_and_what_is_spent():
    judge = with_budget(scripted(lambda ask: OK), max_calls=1)
    asyncio.run(judge.ask(ask()))
    with pytest.raises(Skip, match=r"^over budget: max_calls=1, 1 made, 0 under way$"):
        asyncio.run(judge.ask(ask()))


def test_dollars_are_reserved_before_and_settled_after():
    judge = with_budget(scripted(lambda ask: OK), max_usd=0.01, price=(1.0, 1.0))
    answer = asyncio.run(judge.ask(ask()))
    assert answer.cost == pytest.approx(0.0011)
    assert judge.budget.spent == (pytest.approx(0.0011), 1)
    assert judge.budget.reserved == (0, 0)


def test_no_call_is_made_that_could_cost_more_than_is_left():
    judge = with_budget(scripted(lambda ask: OK), max_usd=0.0001, price=(1.0, 1.0))
    with pytest.raises(Skip, match=r"over budget: max_usd=0.0001, \$0.000000 spent, .* may cost \$0.00"):
        asyncio.run(judge.ask(ask()))
    assert judge.asked == []


def test_what_others_have_only_reserved_is_waited_for():
    async def all_of_them(judge):
        return await asyncio.gather(*(judge.ask(ask(n)) for n in range(10)))

    room_for_one = compute_max_cost(with_budget(scripted("x"), price=(1.0, 1.0)), ask()).usd
    judge = with_budget(scripted(lambda ask: Completion(text="yes", usage=Usage(1, 1))), price=(1.0, 1.0))
    judge = with_budget(judge, max_usd=room_for_one * 1.1)
    assert len(asyncio.run(all_of_them(judge))) == 10


def test_the_most_covers_each_byte_and_the_longest_reply():
    judge = with_budget(scripted("x"), price=(1.0, 2.0), max_tokens=500)
    wordy = Ask(messages=({"role": "user", "content": "é" * 10_000},))
    assert compute_max_cost(judge, wordy).usd >= (20_000 * 1.0 + 500 * 2.0) / 1e6


@pytest.mark.process
def test_refused_calls_are_given_back():
    with serving([429, 500, "yes", 401]) as server:
        judge = Judge(model="m", base_url=server.url, api_key="k", max_calls=1)
        assert asyncio.run(judge.ask(ask())).calls == 3
        assert judge.budget.spent.calls == 1


@pytest.mark.process
def test_a_call_that_hung_may_have_been_billed():
    with serving(lambda request: Reply(hang=True)) as server:
        judge = Judge(model="m", base_url=server.url, max_calls=1, deadline=2.0)
        with pytest.raises(Unjudged, match="gave no answer"):
            asyncio.run(judge.ask(ask()))
        assert judge.budget.spent.calls == 1
        assert len(server.requests) <= 1  # no room for another attempt


@pytest.mark.process
def test_who_is_cancelled_in_line_gives_the_reservation_back():
    async def cancelled_in_line(judge):
        running = asyncio.ensure_future(judge.ask(ask(1)))
        await until(lambda: judge.budget.reserved.calls == 1)
        waiting = asyncio.ensure_future(judge.ask(ask(2)))
        await until(lambda: judge.budget.reserved.calls == 2)
        waiting.cancel()
        await until(lambda: judge.budget.reserved.calls == 1)
        return await running

    with serving(lambda request: Reply(body=completion("yes"), delay=0.5)) as server:
        judge = Judge(model="m", base_url=server.url, max_calls=2, concurrency=1)
        assert asyncio.run(asyncio.wait_for(cancelled_in_line(judge), 60)).text == "yes"
    assert (judge.budget.spent.calls, len(server.requests)) == (1, 1)


def test_without_room_to_ask_again_it_is_a_parse_failure():
    schema = {"type": "object", "properties": {"rating": {"enum": ["yes"]}}, "required": ["rating"]}
    judge = with_budget(scripted("maybe", '{"rating": "yes"}'), max_calls=1)
    with pytest.raises(ParseFailure) as told:
        asyncio.run(judge.ask(dataclasses.replace(ask(), schema=schema)))
    assert "over budget" in told.value.metadata["asked_again"]


def test_a_changed_judge_spends_from_the_same_budget():
    judge = with_budget(scripted(lambda ask: OK), max_calls=1)
    asyncio.run(dataclasses.replace(judge, temperature=1.0).ask(ask()))
    with pytest.raises(Skip, match="over budget"):
        asyncio.run(judge.ask(ask()))
    assert dataclasses.replace(judge, max_calls=2).budget.spent.calls == 0


def test_several_judges_may_share_a_budget():
    budget = Budget(max_calls=1)
    first, second = (with_budget(scripted(lambda ask: OK), budget=budget, max_calls=1) for _ in range(2))
    asyncio.run(first.ask(ask()))
    with pytest.raises(Skip, match="over budget"):
        asyncio.run(second.ask(ask()))


def test_the_same_id_books_once():
    async def twice(budget):
        await budget.book("a", Amount(0, 1))
        await budget.book("a", Amount(0, 1))
        await budget.settle("a", Amount(0, 1))
        await budget.settle("a", Amount(0, 1))

    budget = Budget(max_calls=1)
    asyncio.run(twice(budget))
    assert budget.spent.calls == 1


@pytest.mark.parametrize("bounds", [{"max_usd": float("nan")}, {"max_usd": -1}, {"max_calls": -1}, {"max_calls": 1.5}])
def test_a_budget_that_is_none_is_refused(bounds):
    with pytest.raises(ValueError, match=next(iter(bounds))):
        Judge(model="gpt-4o-mini", **bounds)


def test_a_budget_in_dollars_needs_a_known_price():
    with pytest.raises(ValueError, match=r"max_usd=1\.0 cannot be enforced.*price="):
        Judge(model="my-own-model", base_url="http://127.0.0.1:1/v1", max_usd=1.0)
    assert Judge(model="my-own-model", base_url="http://127.0.0.1:1/v1", max_usd=1.0, price=(0, 0)).budget is not None


def test_nothing_may_be_spent():
    with pytest.raises(Skip, match="over budget: max_calls=0"):
        asyncio.run(with_budget(scripted("yes"), max_calls=0).ask(ask()))


def test_prices_come_from_genai_prices():
    judge = Judge(model="gpt-4o-mini", base_url="https://api.openai.com/v1")
    given, made = look_up_price("gpt-4o-mini", "https://api.openai.com/v1")
    assert compute_cost(judge, Usage(1_000_000, 1_000_000)) == pytest.approx(given + made)
    assert compute_cost(judge, Usage(1_000_000, 0, {"cache_read.input_tokens": 1_000_000})) < given


def test_a_price_of_ones_own_takes_precedence():
    judge = Judge(model="gpt-4o-mini", price=(3.0, 5.0))
    assert compute_cost(judge, Usage(1_000_000, 1_000_000)) == 8.0
    assert compute_cost(Judge(model="gpt-4o-mini", base_url="http://127.0.0.1:1/v1"), Usage(1, 1)) is None


def test_a_reply_that_says_it_took_nothing_may_have_taken_the_most():
    said = completion("yes", usage=(0, 0))
    with serving(lambda request: Reply(body=said)) as server:
        judge = Judge(model="m", base_url=server.url, price=(1, 1), max_usd=1, cache=False)
        assert asyncio.run(judge.ask(ask())).cost is None
    assert judge.budget.spent == compute_max_cost(judge, ask())


def test_what_waits_in_line_while_calls_become_dearer_is_booked_anew():
    """A model is found to think: it may have four times as many tokens, for which there is no room."""
    thinking = completion("", finish="length", usage=(10, 1_000), reasoning_tokens=1_000)

    async def both(judge):
        return await asyncio.gather(judge.ask(ask(1)), judge.ask(ask(2)), return_exceptions=True)

    with serving(lambda request: Reply(body=thinking, delay=0.05)) as server:
        bounds = {"max_tokens": 1_000, "price": (0, 1_000), "max_usd": 2.5, "concurrency": 1, "cache": False}
        outcomes = asyncio.run(both(Judge(model="m", base_url=server.url, **bounds)))
    assert [body["max_tokens"] for body in server.bodies] == [1_000]
    assert {type(outcome) for outcome in outcomes} == {CutOff, Skip}


def test_dollars_are_not_spent_where_a_reply_has_no_bound():
    def refusing(request):
        named = next((name for name in ("max_tokens", "max_completion_tokens") if name in request.body), None)
        return error(400, f"unknown parameter {named}", param=named) if named else "yes"

    with serving(refusing) as server:
        judge = Judge(model="m", base_url=server.url, price=(1, 1), max_usd=1, cache=False)
        with pytest.raises(Unjudged, match="accepts no token limit, so max_usd cannot be enforced"):
            asyncio.run(judge.ask(ask()))
    assert judge.budget.spent == Amount()
    assert all(len(body.keys() & {"max_tokens", "max_completion_tokens"}) == 1 for body in server.bodies)


def test_a_booking_that_was_broken_off_is_given_back():
    class Slow(Budget):
        async def book(self, id, amount, model):
            await super().book(id, amount, model)
            await asyncio.Event().wait()  # as a store's reply that is on its way

    async def cancelled(judge):
        asking = asyncio.ensure_future(judge.ask(ask()))
        await until(lambda: ledger.reserved.calls)
        asking.cancel()
        await until(lambda: not ledger.reserved.calls)

    ledger = Slow(max_calls=3)
    asyncio.run(cancelled(with_budget(scripted(OK), max_calls=3, budget=ledger)))
    assert ledger.spent == Amount()


@pytest.mark.parametrize(
    ("reply", "billed"),
    [
        (Reply(body="<html>", headers={"Content-Type": "text/html"}), True),
        (Reply(body={"error": {"message": "upstream failed"}}), True),
        (error(400, "blocked", code="content_filter"), True),
        (error(400, "maximum context length is 10 tokens"), True),
        (error(400, "no such thing"), False),
        (error(404, "no such model"), False),
        (Reply(status=302, headers={"Location": "https://elsewhere.example/"}), False),
    ],
)
def test_a_permanent_error_costs_the_most_if_the_endpoint_may_have_billed_it(reply, billed):
    with serving([reply]) as server:
        judge = Judge(model="m", base_url=server.url, price=(1, 1), max_usd=1, cache=False)
        with pytest.raises(Unjudged):
            asyncio.run(judge.ask(ask()))
    assert judge.budget.spent == (compute_max_cost(judge, ask()) if billed else Amount())


@pytest.mark.process
def test_a_timeout_that_the_endpoint_reports_may_have_been_billed():
    with serving([error(408), "yes"]) as server:
        judge = Judge(model="m", base_url=server.url, max_calls=5, cache=False)
        assert asyncio.run(judge.ask(ask())).calls == 2
    assert judge.budget.spent.calls == 2


def test_a_function_whose_reply_is_unusable_may_have_been_billed():
    judge = dataclasses.replace(make_judge(lambda prompt: None), max_calls=5)
    with pytest.raises(Unjudged, match="expected a text or a dict"):
        asyncio.run(judge.ask(ask()))
    assert judge.budget.spent.calls == 1


def test_a_question_that_cannot_be_sent_costs_nothing():
    judge = Judge(model="m", base_url="http://[::1]:1/v1", max_calls=5, cache=False, deadline=0.5)
    with pytest.raises(Unjudged):
        asyncio.run(judge.ask(ask()))
    assert judge.budget.spent == Amount()
