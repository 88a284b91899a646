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

from assay.evaluators.judges import Ask, Judge, scripted
from assay.evaluators.judges._headers import room_of, seconds, wait_asked
from assay.evaluators.judges._limits import MOST, Limiter, limiter_of
from assay.evaluators.judges._loop import kept, on_judges_loop
from assay.evaluators.judges._pace import Pace, Room
from assay.evaluators.protocol import headers_of
from evaluators.judge_server import Reply, serving

RATE = 20


def bucket(size):
    """An endpoint whose bucket of so many tokens refills at RATE: seconds to wait at a time, None when it takes a call."""
    held, at = size, 0.0

    def take(now):
        nonlocal held, at
        held, at = min(size, held + (now - at) * RATE), now
        if held < 1 - 1e-9:
            return (1 - held) / RATE
        held -= 1
        return None

    return take


def window(length, sliding):
    """One that takes RATE calls a second, counted over so many seconds."""
    taken = deque()

    def take(now):
        begins = now - length if sliding else math.floor(now / length) * length
        while taken and taken[0] < begins:
            taken.popleft()
        if len(taken) < RATE * length:
            taken.append(now)
            return None
        return (taken[0] if sliding else begins) + length - now

    return take


def simulated(take, told, *, calls=500, latency=0.1, bound=16, seed=0):
    """Seconds until all calls were taken, and how many were refused on the way."""
    chance, now, refused = random.Random(seed), 0.0, 0
    pace = Pace(chance)
    waiting, events, order, under_way, ended = calls, [], itertools.count(), 0, 0.0
    while waiting or under_way:
        while waiting and under_way < bound and pace.delay(now) <= 1e-9:
            pace.start(now)
            waiting, under_way = waiting - 1, under_way + 1
            arrives = now + latency * (0.35 + 0.3 * chance.random())
            heapq.heappush(events, (arrives, next(order), "arrives", now, None))
        resumes = now + pace.delay(now) if waiting and under_way < bound else math.inf
        if not events or resumes < events[0][0]:
            now = resumes
            continue
        now, _, what, started, wait = heapq.heappop(events)
        if what == "arrives":
            event = (now + latency / 2, next(order), "replies", started, take(now))
            heapq.heappush(events, event)
            continue
        under_way, ended = under_way - 1, now
        pace.end()
        if wait is None:
            pace.accept(started)
        else:
            refused, waiting = refused + 1, waiting + 1
            pace.refuse(started, now, told(wait))
    return ended, refused


@pytest.mark.parametrize("latency", [0.02, 0.1])
@pytest.mark.parametrize(
    ("limit", "told", "ideals"),
    [
        (lambda: bucket(20), lambda wait: wait, 1.15),
        (lambda: bucket(20), math.ceil, 1.15),
        (lambda: bucket(20), lambda wait: None, 1.15),
        (lambda: bucket(100), math.ceil, 1.15),
        (lambda: bucket(5), lambda wait: wait, 1.2),
        (lambda: bucket(5), lambda wait: None, 1.15),
        (lambda: bucket(5), math.ceil, 1.3),  # each refusal costs a second that it asks for
        (lambda: window(1, sliding=False), lambda wait: wait, 1.15),
        (lambda: window(1, sliding=False), math.ceil, 1.3),
        (lambda: window(1, sliding=True), lambda wait: wait, 1.15),
        (lambda: window(1, sliding=True), math.ceil, 1.3),
        (lambda: window(10, sliding=False), math.ceil, 1.15),
        (lambda: window(10, sliding=True), math.ceil, 1.15),
        (lambda: window(1, sliding=True), lambda wait: None, 1.2),
        (lambda: window(10, sliding=True), lambda wait: None, 1.3),
    ],
)
def test_an_endpoint_is_asked_about_as_fast_as_it_allows(limit, told, ideals, latency):
    outcomes = [simulated(limit(), told, latency=latency, seed=seed) for seed in range(3)]
    assert max(ended for ended, _ in outcomes) <= ideals * 500 / RATE
    assert max(refused for _, refused in outcomes) < 500 * 0.2


def test_an_endpoint_without_a_limit_is_not_slowed_down():
    ended, refused = simulated(lambda now: None, None)
    assert refused == 0
    assert ended < 500 * 0.1 / 16 * 1.5


def test_an_endpoint_that_is_closed_for_a_minute_is_not_hammered():
    ended, refused = simulated(lambda now: 60 - now if now < 60 else None, lambda wait: None, calls=100)
    assert refused < 16 + 30
    assert ended < 60 + 15


def test_nobody_starts_before_the_time_that_was_asked_for():
    pace = Pace()
    pace.start(0.0)
    pace.refuse(0.0, 0.1, 7.0)
    assert pace.delay(0.1) == pytest.approx(7.0)
    assert pace.delay(7.2) == 0


def test_after_a_refusal_without_anything_taken_one_asks_at_a_time():
    pace = Pace()
    pace.start(0.0)
    pace.refuse(0.0, 0.1, 1.0)
    pace.start(2.0)
    assert pace.delay(2.0) > 0
    pace.accept(2.0)
    pace.end()
    assert pace.delay(2.1) == 0


def test_what_an_endpoint_tells_is_kept_to():
    pace = Pace()
    numbers = [pace.start(0.0) for _ in range(3)]
    pace.tell(Room(calls=3, wait=0.5), numbers[0], 0.1)  # two of the three have started since
    assert pace.delay(0.1) == 0
    pace.start(0.1)
    assert pace.delay(0.1) == pytest.approx(0.5)
    assert pace.delay(0.6) == 0


def test_an_older_reply_does_not_take_the_place_of_a_newer():
    pace = Pace()
    first, second = pace.start(0.0), pace.start(0.0)
    pace.tell(Room(calls=0, wait=1.0), second, 0.1)
    pace.tell(Room(calls=5, wait=1.0), first, 0.2)
    assert pace.delay(0.2) > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("6m0s", 360), ("20ms", 0.02), ("1m2.5s", 62.5), ("1h", 3600), ("2", 2), ("0.5", 0.5), (" 1S ", 1)],
)
def test_seconds_in_the_forms_of_endpoints(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1x", "-3", "nan", "5m later"])
def test_what_is_no_time_is_no_time(text):
    assert seconds(text) is None


def test_a_reset_may_be_a_date():
    assert 900 < seconds(str(time.time() + 1000)) <= 1000


class Refused(Exception):
    """An error as clients raise it."""

    status_code = 429

    def __init__(self, **headers):
        self.response = type("Response", (), {"headers": {name.replace("_", "-"): headers[name] for name in headers}})


@pytest.mark.parametrize(
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
    assert wait_asked(error, headers_of(error)) == expected


def test_retry_after_may_be_a_date():
    error = Refused(retry_after=formatdate(time.time() + 1000, usegmt=True))
    assert 900 < wait_asked(error, headers_of(error)) <= 1000


def test_room_is_the_narrowest_of_what_is_said():
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "400",
        "x-ratelimit-reset-tokens": "6s",
    }
    assert room_of(headers) == Room(59, 1.0)
    assert room_of(headers, tokens=200) == Room(2, pytest.approx(2.0))
    assert room_of({"x-ratelimit-remaining-requests": "nonsense"}) is None


def test_judges_of_the_same_model_place_and_key_share_a_limit():
    async def same(one, other):
        return limiter_of(one) is limiter_of(other)

    def together(**other):
        judge = {"model": "m", "base_url": "http://a/v1", "api_key": "k"}
        return asyncio.run(on_judges_loop(lambda: same(Judge(**judge), Judge(**{**judge, **other}))))

    assert together(temperature=1.0)
    assert not any(together(**{name: "http://b/v1"}) for name in ("model", "base_url", "api_key"))


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
        return len(kept(Limiter, dict)) <= MOST

    for _ in range(300):
        asyncio.run(scripted("yes").ask(Ask(messages=({"role": "user", "content": "?"},))))
    assert asyncio.run(on_judges_loop(held))


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
