"""Our own errors: counted, said once, never raised into the traced application."""

from __future__ import annotations

import pytest

from spanwise.tracer import _errors
from spanwise.tracer._errors import ours


@pytest.fixture
def lenient(own_runtime: None) -> None:
    """As in an application, not as in our tests."""
    _errors.strict = False


@pytest.mark.usefixtures("lenient")
def test_an_error_of_ours_ends_with_its_block(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with ours("place"):
            raise ValueError("no")
    assert _errors.counts == {"place": 2}
    assert [r.message for r in caplog.records] == [
        "spanwise: place failed: ValueError: no (said once; see spanwise.tracer.stats())"
    ]


@pytest.mark.usefixtures("lenient")
def test_another_kind_of_error_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("a"), KeyError("b")):
        with ours("place"):
            raise error
    assert len(caplog.records) == 2


@pytest.mark.usefixtures("lenient")
def test_a_decorated_function_gives_what_it_gives_or_none() -> None:
    @ours("place")
    def inverse(x: int, *, of: float = 1.0) -> float:
        """Its docstring."""
        return of / x

    assert (inverse(2, of=3.0), inverse(0), inverse.__doc__) == (1.5, None, "Its docstring.")
    assert _errors.counts == {"place": 1}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_an_error_goes_through(error: type[BaseException]) -> None:
    @ours("place")
    def interrupted() -> None:
        raise error

    with pytest.raises(error), ours("place"):
        raise error
    with pytest.raises(error):
        interrupted()
    assert _errors.counts == {}


@pytest.mark.usefixtures("lenient")
def test_one_guard_serves_blocks_within_blocks() -> None:
    guard, done = ours("place"), []
    with guard:
        with guard:
            raise ValueError
        done.append("went on")
        raise KeyError
    assert (done, _errors.counts) == (["went on"], {"place": 2})


def test_under_our_own_tests_it_is_raised_and_counted() -> None:
    @ours("place")
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), ours("place"):
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"):
        fails()
    assert _errors.counts == {"place": 2}


def test_an_error_that_cannot_be_described_is_named() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert _errors.describe(Mute()) == "Mute"
