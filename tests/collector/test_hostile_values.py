"""Whatever a run holds, it is kept, and so are its neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.making import run
from spanwise.collector.records import Document, Event, Usage
from spanwise.collector.stores.sqlite import SQLiteStore

texts = st.text(st.characters(), max_size=12)  # lone surrogates and NUL included
numbers = st.integers(-(2**80), 2**80) | st.floats()
odd = st.sampled_from([object(), {1, 2}, b"bytes", (1, "two"), ValueError("no"), 1j])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=8,
)
runs = st.builds(
    lambda **fields: run(fields.pop("name"), **fields),
    name=texts,
    kind=texts,
    error=texts | st.none(),
    model=texts | st.none(),
    session_id=texts | st.none(),
    inputs=values,
    outputs=values,
    metadata=st.dictionaries(texts, values, max_size=3),
    attributes=st.dictionaries(texts, values, max_size=3),
    tags=st.lists(texts, max_size=2).map(tuple),
    start_ns=st.integers(-(2**70), 2**70),
    end_ns=st.integers(-(2**70), 2**70),
    usage=st.none() | st.builds(Usage, st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70)),
    cost=st.none() | st.floats(),
    documents=st.lists(st.builds(Document, texts, texts, st.none() | st.floats()), max_size=2).map(tuple),
    events=st.lists(st.builds(Event, texts, st.integers(-(2**70), 2**70)), max_size=1).map(tuple),
    resource=st.dictionaries(texts, values, max_size=2),
)


@pytest.mark.process
@given(found=st.lists(runs, min_size=1, max_size=4))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_values_are_kept_and_can_be_read(tmp_path: Path, found: list[Any]) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([*found, fine := run("fine", inputs={"a": 1})])
        assert store.trace(fine.trace_id).root == fine
        assert len(store.many([one.trace_id for one in found])) == len(found)
        assert store.traces(limit=10).items
        assert store.aggregate()
        assert store.delete(trace_ids=[one.trace_id for one in found]) == len(found)
