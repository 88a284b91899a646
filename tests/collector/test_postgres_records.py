"""Alerts, notifications and the audit log on PostgreSQL: the tests of SQLite's store, with another store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import test_alerts, test_audit, test_notification_store
from collector.alerting import Traffic
from collector.conftest import combined
from spanwise.collector.stores import Store

pytestmark = pytest.mark.process
# Not those that open a file, a server or a transaction of SQLite
OMITTED = {"test_a_rolled_back_change_of_state_leaves_no_notification"}


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with combined(request, tmp_path, "sqlite", "postgres") as made:
        yield made


@pytest.fixture
def traffic(store: Store) -> Traffic:
    store.save_rule(test_alerts.RULE)
    return Traffic(store)


for module in (test_alerts, test_audit, test_notification_store):
    globals().update(
        {
            name: test
            for name, test in vars(module).items()
            if name.startswith("test_") and callable(test) and name not in OMITTED
        }
    )
