"""Tasks that return an iterator, as clients of models do: what it yields is the output."""

import io
import json

import pytest

from spanwise.evaluators import evaluate

ROWS = [{"inputs": {"question": "?"}, "reference_outputs": "Paris"}]


class Stream:
    """The shape of openai.Stream."""

    def __init__(self):
        self._pieces = iter(["Par", "is"])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._pieces)


class AsyncStream:
    """The shape of openai.AsyncStream."""

    def __aiter__(self):
        return self._pieces()

    async def _pieces(self):
        yield "Par"
        yield "is"


def generator(question):
    yield from ["Par", "is"]


async def of_async_stream(question):
    return AsyncStream()


async def of_iterator(question):
    return Stream()


TASKS = {
    "generator": generator,
    "map": lambda question: map(str, ["Par", "is"]),
    "stream": lambda question: Stream(),
    "file": lambda question: io.StringIO("Paris"),
    "async stream": lambda question: AsyncStream(),
    "async stream of an async task": of_async_stream,
    "iterator of an async task": of_iterator,
}


@pytest.mark.parametrize("name", TASKS)
def test_what_an_iterator_yields_is_the_output(store, name):
    (row,) = evaluate(ROWS, TASKS[name], ["exact"], store=store, progress=False).rows()
    assert (row.outputs, row.scores["exact"]) == ("Paris", 1.0)


def test_pieces_that_are_no_texts_are_a_list(store):
    (row,) = evaluate(ROWS, lambda question: zip("ab", [1, 2], strict=True), store=store, progress=False).rows()
    assert row.outputs == [["a", 1], ["b", 2]]


@pytest.mark.parametrize("value", [{"a": 1}, [1], (1, 2), "text", range(2)])
def test_values_that_are_no_iterators_stay_as_they_are(store, value):
    (row,) = evaluate(ROWS, lambda question: value, store=store, progress=False).rows()
    assert row.outputs == (json.loads(json.dumps(value)) if not isinstance(value, range) else repr(value))


def test_an_iterator_that_fails_is_a_failed_task(store):
    def broken():
        yield "Par"
        raise ConnectionError("the stream broke off")

    (row,) = evaluate(ROWS, lambda question: iter(broken()), ["exact"], store=store, progress=False).rows()
    assert "the stream broke off" in row.error
    assert row.scores == {"exact": None}
