"""Who is waited for before a commit: callers that came together before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.making import run
from spanwise.collector.stores.sqlite import SQLiteStore, encode
from spanwise.collector.stores.sqlite.database import group_commit
from spanwise.collector.stores.sqlite.database.group_commit import ENOUGH_WEIGHT, Writer

HALF = ENOUGH_WEIGHT // 2


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SQLiteStore]:
    """With nothing behind the writer, who waits for others as long as it takes."""
    monkeypatch.setattr(group_commit, "GATHER_SECONDS", 3600.0)
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        made._behind.close()
        yield made


def writer(store: SQLiteStore, company: int) -> Writer:
    """After commits in which so many callers came together."""
    store._file.writer._company = company
    return store._file.writer


def test_two_requests_of_100_spans_that_come_together_are_one_commit(store: SQLiteStore) -> None:
    commits = writer(store, company=3).commits
    first = store.write(encode([run() for _ in range(HALF)]))
    second = store.write(encode([run() for _ in range(HALF)]))
    assert (first.result(60), second.result(60), writer(store, company=1).commits) == (None, None, commits + 1)


def test_who_is_alone_waits_for_nobody(store: SQLiteStore) -> None:
    assert writer(store, company=1).commits >= 0
    assert store.write(encode([run() for _ in range(HALF)])).result(60) is None


def test_what_is_no_batch_waits_for_nobody(store: SQLiteStore) -> None:
    assert writer(store, company=2).call(lambda _: "done") == "done"


def test_a_store_that_is_closed_waits_for_nobody(store: SQLiteStore) -> None:
    writer(store, company=2)
    waiting = store.write(encode([run() for _ in range(HALF)]))
    store.close()
    assert waiting.result(60) is None
