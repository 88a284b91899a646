"""Rows that were compressed elsewhere, on their way into the file: by its dictionary, an old one, or another's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collector.compressed import adopt, dictionaries_of, dictionary
from collector.conformance_traces import eventually
from collector.making import child, run
from spanwise.collector.dialects import Amendment
from spanwise.collector.errors import Unavailable
from spanwise.collector.records import Run, Usage
from spanwise.collector.stores.run_codec import Fact, SamplingInfo
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write.run_codec import MIN_COLUMNAR_FACTS, RunEncoder
from spanwise.tracer import attribute_names as names


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as opened:
        adopt(opened, 1)
        yield opened


def send(store: SQLiteStore, *runs: Run) -> None:
    """As from another process, which knows nothing but what the encoder brings along."""
    encoder = pickle.loads(pickle.dumps(store.encoder()))
    store.write(pickle.loads(pickle.dumps(encoder(runs)))).result(60)


def read(store: SQLiteStore, one: Run) -> Run:
    [found] = [other for other in store.trace(one.trace_id).runs if other.span_id == one.span_id]
    return found


def test_rows_are_kept_as_they_were_compressed(store):
    whole = [run(inputs={"text": f"words {n}"}) for n in range(10)]
    send(store, *whole)
    assert [read(store, one) for one in whole] == whole
    assert dictionaries_of(store) == {1}


def test_so_are_few(store):
    one = run(inputs="words")
    send(store, one)
    assert (read(store, one), dictionaries_of(store)) == (one, {1})


def test_rows_by_a_dictionary_that_has_been_followed_can_be_read(store):
    before, one = store.encoder(), run(inputs="words")
    adopt(store, 2)
    store.write(before([one])).result(60)
    send(store, run())
    assert (read(store, one), dictionaries_of(store)) == (one, {1, 2})


def test_rows_by_a_dictionary_that_the_file_has_not_are_put_off(store):
    with pytest.raises(Unavailable, match="dictionary 9, which the file lacks"):
        store.write(RunEncoder(dictionary(9))([run()]))
    assert store.count()["spans"] == 0


def test_after_a_start_the_newest_dictionary_is_used(tmp_path):
    with SQLiteStore(tmp_path / "b.db") as store:
        adopt(store, 1)
        adopt(store, 2)
    with SQLiteStore(tmp_path / "b.db") as store:
        one = run(inputs="words")
        send(store, one)
        assert (read(store, one), dictionaries_of(store)) == (one, {2})


def test_a_fuller_version_takes_the_place_of_another(store):
    one = run(inputs="words")
    fuller = replace(one, outputs="more words", end_ns=one.end_ns + 1)
    for sent in (fuller, one, fuller):
        send(store, sent)
    assert (read(store, one), store.count()["spans"]) == (fuller, 1)


def test_rows_from_here_and_from_there_go_into_one_trace(store):
    one = run(inputs="words")
    below = [child(one, inputs=f"words {n}") for n in range(8)]
    store.append([one, *below[:4]])
    send(store, *below[4:])
    assert [read(store, other) for other in (one, *below)] == [one, *below]


@pytest.mark.parametrize("early", [True, False])
def test_a_run_is_amended_before_it_comes_and_after(store, early):
    one = run(inputs="words")
    said = Amendment(one.trace_id, one.span_id, {"outputs": "said"})
    fuller = replace(one, end_ns=one.end_ns + 1)
    for step in (lambda: store.add_amendments([said]), lambda: send(store, one))[:: 1 if early else -1]:
        step()
    assert read(store, one) == replace(one, outputs="said")
    send(store, fuller)
    assert read(store, one) == replace(fuller, outputs="said")


@pytest.mark.process
def test_words_are_found(store):
    one = run(inputs="an unheard word")
    send(store, one)
    assert eventually(lambda: [found.trace_id for found in store.traces(text="unheard")], [one.trace_id])
    assert store.check() == []


@pytest.mark.parametrize("count", [0, 1, MIN_COLUMNAR_FACTS, 3 * MIN_COLUMNAR_FACTS])
def test_rows_go_to_another_process_as_they_are(count):
    attributes = {names.LOCAL_ROOT: "1" * 16, names.SPANS_STARTED: 2, names.SPANS_OPEN: 0, names.PARTIAL: True}
    kinds = [
        {"attributes": attributes},
        {"tags": ("a", "b"), "cost": 0.5},
        {"usage": Usage(1, 2), "metadata": {"a": 1}},
    ]
    batch = RunEncoder()([run(**kinds[number % 3]) for number in range(count)])
    there = pickle.loads(pickle.dumps(batch))
    assert (there, [*map(type, there.facts)]) == (batch, [Fact] * count)
    assert [(type(one.counts), type(one.sampling)) for one in there.facts] == [
        (type(o.counts), SamplingInfo) for o in batch.facts
    ]


class Name(str):
    """A text that is none of the kind that Python marshals."""


def test_rows_of_foreign_values_go_there_too():
    batch = RunEncoder()([run(name=Name(f"n{number}")) for number in range(MIN_COLUMNAR_FACTS)])
    assert pickle.loads(pickle.dumps(batch)) == batch
