"""A clock that is set back: what came before is found, and complete, as ever."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from collector.conformance_traces import eventually
from collector.making import run
from spanwise.collector.stores.sqlite import SQLiteStore

HOUR = 3600 * 10**9


def an_hour_ago(file: Path) -> None:
    """Make the file one that was written while the clock was an hour ahead of now, and closed ten seconds later."""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE feed SET clock_ns = clock_ns + ?", (HOUR + 10 * 10**9,))
        db.execute("UPDATE traces SET updated_ns = updated_ns + ?, changed_ns = changed_ns + ?", (HOUR, HOUR))
        db.execute("UPDATE unindexed SET since_ns = since_ns + ?", (HOUR,))


@pytest.mark.process
def test_text_is_found_and_traces_are_complete_though_the_clock_was_set_back(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([run(inputs="xylophone")])
    an_hour_ago(tmp_path / "a.db")
    with SQLiteStore(tmp_path / "a.db") as store:
        assert [one.complete for one in store.traces(complete=True)] == [True]
        store.append([run(inputs="xylophone")])
        assert eventually(lambda: len(store.traces(text="xylophone")), 2)
        assert store.health()["text_index_lag_seconds"] == 0
