"""Retention: traces that the rules expire, and the thread that prunes them every hour."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable

from spanwise.collector.clock_skew import DAY_NS
from spanwise.collector.errors import Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.records import Retention
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.maintenance.integrity import used_bytes
from spanwise.collector.stores.sqlite.write import pending_amendments

log = logging.getLogger("spanwise.collector")

FIRST_RUN_SECONDS, INTERVAL_SECONDS = 60.0, 3600.0  # seconds from the start to the first round, then between rounds


def find_expired(db: sqlite3.Connection, rule: Retention) -> Filter | None:
    """Return a filter for the traces that a retention rule expires now; None if the rule has no limits."""
    cutoffs = []
    if rule.max_age_ns is not None:
        cutoffs.append(time.time_ns() - rule.max_age_ns)
    if rule.max_bytes is not None:
        cutoffs.append(_cutoff_by_size(db, rule.project, rule.max_bytes))
    return Filter(project=rule.project, until_ns=max(cutoffs)) if cutoffs else None


def find_future_traces(db: sqlite3.Connection, rule: Retention) -> Filter | None:
    """Return a filter for at most 5,000 expired traces with a start time after tomorrow; None if there are none.

    Such traces were ingested before start times were limited. Whether they expire depends on the time of their last
    change.
    """
    if rule.max_age_ns is None:
        return None
    now = time.time_ns()
    sql = "SELECT trace_id FROM traces WHERE start_ns > ? AND updated_ns < ? AND (? IS NULL OR project = ?) LIMIT 5000"
    found = db.execute(sql, (now + DAY_NS, now - rule.max_age_ns, rule.project, rule.project)).fetchall()
    return Filter(trace_ids=tuple(row[0] for row in found)) if found else None


def _cutoff_by_size(db: sqlite3.Connection, project: str | None, max_bytes: int) -> int:
    """Return the start time before which traces expire so that a project uses at most `max_bytes`.

    The bytes that a project uses in the file are estimated from its share of all payloads.
    """
    where = "span_count > 0 AND (:project IS NULL OR project = :project)"
    of_project = {"project": project}
    total = int(db.execute("SELECT coalesce(sum(size), 0) FROM traces").fetchone()[0])
    own = int(db.execute(f"SELECT coalesce(sum(size), 0) FROM traces WHERE {where}", of_project).fetchone()[0])
    share = used_bytes(db) * own // max(total, 1)
    excess = own * max(0, share - max_bytes) // max(share, 1)
    cutoff = 0
    for start, size in db.execute(f"SELECT start_ns, size FROM traces WHERE {where} ORDER BY start_ns", of_project):
        if excess <= 0:
            break
        excess -= size
        cutoff = start + 1
    return cutoff


class RetentionThread:
    """Thread that calls `prune` about hourly until `stop` is set, and deletes expired tombstones and pending data."""

    def __init__(self, file: DatabaseFile, prune: Callable[[], object], stop: threading.Event) -> None:
        self._file, self._prune, self._stop = file, prune, stop
        self._thread = threading.Thread(target=self._run, name="spanwise-hourly", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the current round. The caller has set `stop`."""
        self._thread.join()

    def _run(self) -> None:
        wait = FIRST_RUN_SECONDS
        with self._file.aside():
            while not self._stop.wait(wait):
                wait = INTERVAL_SECONDS
                try:
                    self.round()
                except Unavailable:
                    pass
                except Exception:
                    log.exception("hourly maintenance failed; retrying in an hour")

    def round(self) -> None:
        """Run all hourly jobs."""
        appender, call = self._file.appender, self._file.writer.call
        self._prune()
        while not self._stop.is_set() and call(lambda _: appender.tombstones.prune()):
            pass
        call(lambda _: appender.waiting.trim())
        call(pending_amendments.prune_response_ids)
