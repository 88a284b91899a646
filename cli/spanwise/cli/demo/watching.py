"""The monitor beside the demo: in a thread of its own, as the demo's evaluators are known to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from spanwise.cli.demo.rules import OWNER, PROJECT, rules
from spanwise.collector.records import RuleStatus
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors import Monitor, Monitored

PATIENCE = 20.0  # seconds until all that came in is decided and scored
_STEP = 0.05
_OPEN = ("waiting", "running", "throttled")


@contextmanager
def watching(store: Store) -> Iterator[None]:
    """While it lasts the demo's rules are carried out."""
    owned = [Monitored(replace(rule.record, owner=OWNER), rule.evaluators) for rule in rules()]
    store.save_rule(
        *(rule.record for rule in owned), owner=OWNER
    )  # before there is traffic: older traces are no rule's
    monitor = Monitor(store, owned, holder="the demo")
    thread = threading.Thread(target=monitor.run, name="demo-monitor")
    thread.start()
    try:
        yield
    finally:
        monitor.stop(1.0)
        thread.join()


def wait(store: Store) -> bool:
    """Until the rules have caught up with the traffic; False if they have not after a while."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        found = store.status(project=PROJECT)
        if found and not any(map(_goes_on, found)):
            return True
        time.sleep(_STEP)
    return False


def _goes_on(status: RuleStatus) -> bool:
    return bool(status.behind) or any(status.counts.get(verdict) for verdict in _OPEN)
