"""How fast an endpoint is asked: simulated ones on a clock of their own, headers of real ones, and a server that limits."""

import asyncio
import heapq
import itertools
import math
import random
import threading
import time
from collections import deque
from email.utils import formatdate

import pytest

from evaluators.judge_server import Reply, serving
from looped_cases import loop_over
from spanwise.evaluators.interface import get_response_headers
from spanwise.evaluators.judges import Ask, Judge, scripted
from spanwise.evaluators.judges.llm_client.judge_event_loop import get_loop_singleton, run_on_judge_loop
from spanwise.evaluators.judges.llm_client.judge_rate_limiter import (
    MAX_LIMITERS,
    AdaptiveRate,
    EndpointLimiter,
    get_limiter,
    get_requested_wait,
    parse_duration,
)

RATE = 20


def bucket(size, rate=RATE):
    """An endpoint whose bucket of so many tokens refills at a rate: seconds to wait at a time, None when it takes a call."""
    held, at = size, 0.0

    def take(now):
        nonlocal held, at
        held, at = min(size, held + (now - at) * rate), now
        if held < 1 - 1e-9:
            return (1 - held) / rate
        held -= 1
        return None

    return take


def window(length, sliding, rate=RATE):
    """One that takes so many calls a second, counted over so many seconds."""
    taken = deque()

    def take(now):
        begins = now - length if sliding else math.floor(now / length) * length
        while taken and taken[0] < begins:
            taken.popleft()
        if len(taken) < rate * length:
            taken.append(now)
            return None
        return (taken[0] if sliding else begins) + length - now

    return take


def simulated(take, asked, *, calls=500, latency=0.1, bound=16, seed=0, refuses_at_once=False):
    """Seconds until all calls were taken, and how many were refused on the way."""
    chance, now, refused = random.Random(seed), 0.0, 0
    pace = AdaptiveRate()
    waiting, events, order, under_way, ended = calls, [], itertools.count(), 0, 0.0
    while waiting or under_way:
        while waiting and under_way < bound and pace.delay(now) <= 1e-9:
            pace.start(now)
            waiting, under_way = waiting - 1, under_way + 1
            arrives = now + (0.01 if refuses_at_once else latency * (0.35 + 0.3 * chance.random()))
            heapq.heappush(events, (arrives, next(order), "arrives", now, None))
        resumes = now + pace.delay(now) if waiting and under_way < bound else math.inf
        if not events or resumes < events[0][0]:
            now = resumes
            continue
        now, _, what, started, wait = heapq.heappop(events)
        if what == "arrives":
            wait = take(now)
            replies = now + (0.01 if refuses_at_once and wait is not None else latency / 2)
            heapq.heappush(events, (replies, next(order), "replies", started, wait))
            continue
        under_way, ended = under_way - 1, now
        if wait is None:
            pace.accept()
        else:
            refused, waiting = refused + 1, waiting + 1
            pace.refuse(started, now, asked(wait))
    return ended, refused


@loop_over("refuses_at_once", [True, False])
@loop_over("asked", [lambda wait: wait, math.ceil, lambda wait: None], ids=["exact", "seconds", "nothing"])
@loop_over(
    ("limit", "rate", "latency"),
    [
        (lambda: bucket(5, 5), 5, 1.0),
        (lambda: bucket(25, 5), 5, 1.0),
        (lambda: window(10, sliding=False, rate=5), 5, 1.0),
        (lambda: window(10, sliding=True, rate=5), 5, 1.0),
        (lambda: bucket(20), 20, 0.1),
        (lambda: bucket(100), 20, 0.1),
        (lambda: bucket(20), 20, 0.02),
        (lambda: window(10, sliding=False), 20, 0.1),
    ],
)
def test_an_endpoint_is_asked_about_as_fast_as_it_allows(limit, rate, latency, asked, refuses_at_once):
    calls = 60 * rate
    options = {"calls": calls, "latency": latency, "refuses_at_once": refuses_at_once}
    outcomes = [simulated(limit(), asked, seed=seed, **options) for seed in range(3)]
    assert max(ended for ended, _ in outcomes) <= 1.1 * calls / rate


def test_five_calls_a_second_with_replies_of_a_second_take_few_refusals():
    for asked in (lambda wait: wait, math.ceil, lambda wait: None):
        _, refused = simulated(bucket(5, 5), asked, calls=300, latency=1.0, refuses_at_once=True)
        assert refused <= 45


def test_an_endpoint_without_a_limit_is_not_slowed_down():
    ended, refused = simulated(lambda now: None, None)
    assert refused == 0
    assert ended < 500 * 0.1 / 16 * 1.5


def test_an_endpoint_that_is_closed_for_a_minute_is_not_hammered():
    ended, refused = simulated(lambda now: 60 - now if now < 60 else None, lambda wait: None, calls=100)
    assert refused < 16 + 30
    assert ended < 60 + 90


def test_nobody_starts_before_the_time_that_was_asked_for():
    pace = AdaptiveRate()
    pace.start(0.0)
    pace.refuse(0.0, 0.1, 7.0)
    assert pace.delay(0.1) == pytest.approx(7.0)
    assert pace.delay(7.2) == 0


def paced(*, refusals=()):
    """One that has been refused after ten calls in two seconds, then by further calls, each started after the last."""
    pace = AdaptiveRate()
    for n in range(11):
        pace.start(0.2 * n)
    for _ in range(10):
        pace.accept()
    pace.refuse(2.0, 2.0, 0.0)
    for started in refusals:
        pace.accept()
        pace.refuse(started, started, 0.0)
    return pace


def test_the_first_interval_is_what_the_endpoint_took():
    assert paced().interval == pytest.approx(2.0 / 10)


def test_a_refusal_makes_the_interval_longer_and_a_success_makes_it_shorter():
    assert paced(refusals=[3.0]).interval == pytest.approx(0.2 * 0.98 * 1.25)
    pace = paced()
    pace.accept()
    assert pace.interval == pytest.approx(0.2 * 0.98)


def test_calls_start_one_interval_apart():
    pace = paced()
    pace.start(10.0)
    assert pace.delay(10.0) == pytest.approx(0.0)  # one that was due long ago is not waited for
    pace.start(10.0)
    assert pace.delay(10.0) == pytest.approx(0.2)


def test_refusals_of_calls_under_way_count_once():
    pace = paced(refusals=[3.0])
    before = pace.interval
    for _ in range(5):
        pace.refuse(2.9, 3.1, 0.5)
    assert pace.interval == before


def test_a_refusal_with_nothing_taken_before_it_makes_the_pause_longer_and_not_the_interval():
    pace = paced()
    before = pace.interval
    pauses = []
    for now in (10.0, 20.0, 30.0):
        pace.refuse(now, now, None)
        pauses.append(pace.delay(now))
    assert pace.interval == before
    assert pauses == [0.5, 1.0, 2.0]


def test_a_much_longer_pause_of_another_limit_counts():
    pace = paced(refusals=[3.0])
    pace.refuse(2.9, 3.1, 30.0)
    assert pace.delay(3.1) == pytest.approx(30.0)


@loop_over(
    ("text", "expected"),
    [("6m0s", 360), ("20ms", 0.02), ("1m2.5s", 62.5), ("1h", 3600), ("2", 2), ("0.5", 0.5), (" 1S ", 1)],
)
def test_seconds_in_the_forms_of_endpoints(text, expected):
    assert parse_duration(text) == expected


@loop_over("text", ["", "soon", "1x", "-3", "nan", "5m later"])
def test_what_is_no_time_is_no_time(text):
    assert parse_duration(text) is None


def test_a_reset_may_be_a_date():
    assert 900 < parse_duration(str(time.time() + 1000)) <= 1000


class Refused(Exception):
    """An error as clients raise it."""

    status_code = 429

    def __init__(self, **headers):
        self.response = type("Response", (), {"headers": {name.replace("_", "-"): headers[name] for name in headers}})


@loop_over(
    ("headers", "expected"),
    [
        ({"retry_after": "3"}, 3),
        ({"retry_after_ms": "250", "retry_after": "1"}, 0.25),
        ({"x_ratelimit_reset_requests": "6m0s", "x_ratelimit_remaining_requests": "0"}, 360),
        ({"x_ratelimit_reset_tokens": "20ms", "x_ratelimit_remaining_tokens": "0"}, 0.02),
        ({"x_ratelimit_reset_tokens": "20", "x_ratelimit_remaining_tokens": "90"}, None),
        ({"x_ratelimit_reset": "4"}, 4),
        ({}, None),
    ],
)
def test_how_long_a_refusal_asks_to_wait(headers, expected):
    error = Refused(**headers)
    assert get_requested_wait(error, get_response_headers(error)) == expected


def test_retry_after_may_be_a_date():
    error = Refused(retry_after=formatdate(time.time() + 1000, usegmt=True))
    assert 900 < get_requested_wait(error, get_response_headers(error)) <= 1000


def test_judges_of_the_same_model_place_and_key_share_a_limit():
    async def same(one, other):
        return get_limiter(one) is get_limiter(other)

    def together(**other):
        judge = {"model": "m", "base_url": "http://a/v1", "api_key": "k"}
        return asyncio.run(run_on_judge_loop(lambda: same(Judge(**judge), Judge(**{**judge, **other}))))

    assert together(temperature=1.0)
    assert not any(together(**{name: "http://b/v1"}) for name in ("model", "base_url", "api_key"))


@pytest.mark.process
def test_no_more_are_under_way_than_the_bound():
    under_way, most = 0, 0

    def count(request):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.02)
        under_way -= 1
        return "yes"

    async def all_of_them(judge):
        await asyncio.gather(*(judge.ask(Ask(messages=({"role": "user", "content": str(n)},))) for n in range(20)))

    with serving(count) as server:
        asyncio.run(all_of_them(Judge(model="m", base_url=server.url, concurrency=3)))
    assert most <= 3


def test_many_functions_leave_no_limits_behind():
    async def held():
        return len(get_loop_singleton(EndpointLimiter, dict)) <= MAX_LIMITERS

    for _ in range(300):
        asyncio.run(scripted("yes").ask(Ask(messages=({"role": "user", "content": "?"},))))
    assert asyncio.run(run_on_judge_loop(held))


@pytest.mark.slow
@pytest.mark.parametrize("headers", [True, False])
def test_judgements_against_a_server_that_allows_twenty_a_second(headers):
    async def all_of_them(judge):
        asks = (Ask(messages=({"role": "user", "content": f"{n}?"},)) for n in range(200))
        return await asyncio.gather(*map(judge.ask, asks))

    take, began = bucket(RATE), time.monotonic()

    def limited(request):
        wait = take(time.monotonic() - began)
        return "yes" if wait is None else Reply(status=429, headers={"Retry-After": "1"} if headers else {})

    lock = threading.Lock()

    def one_at_a_time(request):
        with lock:
            return limited(request)

    with serving(one_at_a_time) as server:
        judge = Judge(model="m", base_url=server.url)
        asyncio.run(judge.ask(Ask(messages=({"role": "user", "content": "ready?"},))))  # the client is loaded
        began_asking = time.monotonic()
        answers = asyncio.run(all_of_them(judge))
    assert len(answers) == 200
    assert time.monotonic() - began_asking <= 3 * 200 / RATE  # how close it comes is shown by the simulated ones
