"""`store=` takes a path or URL wherever it takes a store."""

import os

import pytest

from spanwise.collector import connect
from spanwise.collector.errors import NotFound
from spanwise.collector.server import Server
from spanwise.evaluators import Experiment, compare, datasets, evaluate
from spanwise.evaluators.monitors import diff

ROWS = [{"inputs": {"q": "a"}, "reference_outputs": "a"}]


@pytest.fixture(params=["text", "path", "url"])
def where(request, tmp_path):
    file = tmp_path / "s.db"
    if request.param != "url":
        yield str(file) if request.param == "text" else file
        return
    with connect(str(file)) as store, Server(store) as server:
        yield server.url


@pytest.mark.process
def test_a_path_or_url_is_a_store_everywhere(where):
    for name in ("one", "two"):
        evaluate(ROWS, lambda q: q, ["exact"], name=name, store=where, progress=False)
    assert compare("one", "two", store=where).keys == ["exact", "latency"]
    assert Experiment.load(where, "one").summary()["exact"].mean == 1.0
    assert datasets.save(where, "d", ROWS).example_count == 1
    assert [one.inputs for one in datasets.from_traces(where)] == [{"q": "a"}]
    with pytest.raises(NotFound, match="r"):
        diff(where, "r")


def test_a_file_that_was_opened_is_released(tmp_path):
    file = tmp_path / "s.db"
    datasets.save(file, "d", ROWS)
    datasets.from_traces(os.fspath(file))
    with connect(file) as store:
        assert store.dataset("d").example_count == 1
