"""Which failures are tried again, and after how long."""

import email.utils
import errno
import http.client
import random
import socket
import ssl
import time
import urllib.error
from types import SimpleNamespace

import httpx
import pytest

from looped_cases import loop_over
from spanwise.collector.errors import NotFound, Unavailable
from spanwise.evaluators import Skip
from spanwise.evaluators.interface import compile_retry_on, compute_retry_delay, is_transient

REQUEST = httpx.Request("POST", "http://judge")


def answered(status, headers=None):
    return httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(status, headers=headers))


def with_attributes(**attributes):
    error = RuntimeError("no")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def raised_from(error, cause):
    error.__cause__ = cause
    return error


class APIConnectionError(Exception):
    """As openai has it: no status, no OSError."""


class RpcError(Exception):
    """As grpc has it: the status is behind a method."""

    def __init__(self, name):
        self.code = lambda: SimpleNamespace(name=name)


PASSING = [
    ConnectionResetError("gone"),
    TimeoutError("too long"),
    OSError(errno.EHOSTUNREACH, "no route"),
    socket.gaierror(socket.EAI_AGAIN, "try again"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    *(answered(status) for status in (408, 409, 425, 429, 500, 502, 503, 529)),
    urllib.error.URLError(ConnectionRefusedError("no")),
    urllib.error.HTTPError("http://judge", 503, "busy", http.client.HTTPMessage(), None),
    APIConnectionError("no connection"),
    RpcError("UNAVAILABLE"),
    with_attributes(status_code=429),
    with_attributes(retry_after=3),
    with_attributes(headers={"Retry-After": "3"}),
    with_attributes(response={"ResponseMetadata": {"HTTPStatusCode": 503}}),
    Unavailable("busy"),
    raised_from(RuntimeError("the judge failed"), ConnectionResetError("gone")),
]
LASTING = [
    TypeError("mistake"),
    ValueError("no JSON"),
    KeyError("answer"),
    ZeroDivisionError("by zero"),
    FileNotFoundError("prompt.txt"),
    PermissionError("prompt.txt"),
    NotFound("dataset"),
    Skip("nothing to say"),
    httpx.UnsupportedProtocol("ftp"),
    ssl.SSLCertVerificationError("self-signed"),
    *(answered(status) for status in (400, 401, 403, 404, 422)),
    urllib.error.HTTPError("http://judge", 401, "no", http.client.HTTPMessage(), None),
    with_attributes(status_code=429, code="insufficient_quota"),
    RpcError("INVALID_ARGUMENT"),
    raised_from(ValueError("no number"), ConnectionResetError("gone")),
    raised_from(with_attributes(status_code=401), ConnectionResetError("gone")),
    raised_from(RuntimeError("mine"), KeyError("a")),
    KeyboardInterrupt(),
    SystemExit(1),
]


@loop_over("error", PASSING, ids=repr)
def test_the_network_and_busy_servers_are_tried_again(error):
    assert is_transient(error)


@loop_over("error", LASTING, ids=repr)
def test_what_would_fail_again_is_not(error):
    assert not is_transient(error)


class Hostile(Exception):
    @property
    def status_code(self):
        raise RuntimeError("no")

    def code(self):
        raise RuntimeError("no")


def test_an_exception_that_raises_while_it_is_looked_at_lasts():
    assert not is_transient(Hostile())


def test_a_chain_of_causes_that_has_no_end_is_left_after_some():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_transient(first)


@pytest.mark.parametrize("given", [ValueError, (KeyError, ValueError), lambda error: "again" in str(error)])
def test_an_option_says_which(given):
    again = compile_retry_on(given)
    assert (again(ValueError("again")), again(TypeError("no")), again(SystemExit("again"))) == (True, False, False)


@pytest.mark.parametrize("given", ["ValueError", 3, (), (ValueError, "no"), int])
def test_an_option_that_says_nothing_is_refused(given):
    with pytest.raises(ValueError, match="retry_on must be an exception type"):
        compile_retry_on(given)


def test_waits_double_with_some_of_them_left_to_chance_and_have_an_end():
    waits = [[compute_retry_delay(attempt, ValueError()) for _ in range(50)] for attempt in (0, 1, 40)]
    for wait, longest in zip(waits, (0.25, 0.5, 60.0), strict=True):
        assert all(longest / 2 <= seconds <= longest for seconds in wait)
        assert len(set(wait)) > 1


def test_a_server_that_says_when_is_asked_then_but_not_in_an_hour():
    assert 3.0 <= compute_retry_delay(5, answered(429, {"Retry-After": "3"})) <= 3.75
    assert 2.0 <= compute_retry_delay(0, with_attributes(retry_after=2)) <= 2.5
    assert compute_retry_delay(0, with_attributes(retry_after=3600)) == 60.0


def test_a_server_may_say_when_as_a_date():
    date = email.utils.formatdate(time.time() + 40, usegmt=True)
    assert 20 <= compute_retry_delay(0, answered(503, {"Retry-After": date})) <= 50


@pytest.mark.parametrize("said", ["soon", "", True, float("nan"), [3]])
def test_what_is_no_time_is_not_waited_for(said):
    assert compute_retry_delay(0, with_attributes(retry_after=said)) <= 0.25


def test_waiting_leaves_a_seeded_sequence_alone():
    random.seed(7)
    expected = random.random()
    random.seed(7)
    compute_retry_delay(0, ValueError())
    assert random.random() == expected
