"""Our own errors: counted, said once, never raised into the traced application."""

from __future__ import annotations

import pytest

from spanwise.tracer import internal_errors
from spanwise.tracer.internal_errors import error_boundary


@pytest.fixture
def lenient(own_runtime: None) -> None:
    """As in an application, not as in our tests."""
    internal_errors.strict = False


@pytest.mark.usefixtures("lenient")
def test_an_error_of_ours_ends_with_its_block(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with error_boundary("place"):
            raise ValueError("no")
    assert internal_errors.counts == {"place": 2}
    assert [r.message for r in caplog.records] == [
        "spanwise: place failed: ValueError: no (logged once; see spanwise.tracer.stats())"
    ]


@pytest.mark.usefixtures("lenient")
def test_another_kind_of_error_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("a"), KeyError("b")):
        with error_boundary("place"):
            raise error
    assert len(caplog.records) == 2


@pytest.mark.usefixtures("lenient")
def test_a_decorated_function_gives_what_it_gives_or_none() -> None:
    @error_boundary("place")
    def inverse(x: int, *, of: float = 1.0) -> float:
        """Its docstring."""
        return of / x

    assert (inverse(2, of=3.0), inverse(0), inverse.__doc__) == (1.5, None, "Its docstring.")
    assert internal_errors.counts == {"place": 1}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_an_error_goes_through(error: type[BaseException]) -> None:
    @error_boundary("place")
    def interrupted() -> None:
        raise error

    with pytest.raises(error), error_boundary("place"):
        raise error
    with pytest.raises(error):
        interrupted()
    assert internal_errors.counts == {}


@pytest.mark.usefixtures("lenient")
def test_one_guard_serves_blocks_within_blocks() -> None:
    guard, done = error_boundary("place"), []
    with guard:
        with guard:
            raise ValueError
        done.append("went on")
        raise KeyError
    assert (done, internal_errors.counts) == (["went on"], {"place": 2})


def test_under_our_own_tests_it_is_raised_and_counted() -> None:
    @error_boundary("place")
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), error_boundary("place"):
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"):
        fails()
    assert internal_errors.counts == {"place": 2}


def test_an_error_that_cannot_be_described_is_named() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert internal_errors.describe_error(Mute()) == "Mute"
