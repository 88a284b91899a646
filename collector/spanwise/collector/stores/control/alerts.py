"""Alerts: definitions with versions, the state of each group, the history of status changes, recorded looks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from spanwise.collector import record_encoding
from spanwise.collector.alert_policy import CLOCK_TOLERANCE_NS, assign_alert_version, close_group, validate_alert
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import (
    JSON,
    Alert,
    AlertEvent,
    AlertGroup,
    AlertResult,
    Page,
    apply_changes,
    make_test_notification,
)
from spanwise.collector.request_context import get_current_actor
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.control.notifications import enqueue_notifications
from spanwise.collector.stores.table_rows import Connection, decode_record, encode_record, parse_cursor

MAX_SNOOZE_NS = 366 * 86_400 * 1_000_000_000
MAX_EVENTS = 50_000  # status changes that are kept
PRUNE_INTERVAL = 100  # changes added between two deletions of old ones
_COLUMNS = "id, version, token, looked_ns, off, snoozed_until_ns, snoozed_by, left_out, data"
_GROUP_COLUMNS = "g.data, g.acknowledged_event, g.acknowledged_by, g.acknowledged_ns, g.snoozed_until_ns, g.snoozed_by"
LOCK = "/*pg FOR NO KEY UPDATE*/"  # of the alert's row; its groups are changed only under this lock


class _StoredAlert(NamedTuple):
    id: int
    version: str
    token: int
    looked_ns: int
    off: int  # paused by a user; loading a rules file does not undo this
    snoozed_until_ns: int | None
    snoozed_by: str
    left_out: str
    data: str

    @property
    def alert(self) -> Alert:
        alert = decode_record(Alert, self.data)
        count, names = json.loads(self.left_out)
        return replace(
            alert,
            enabled=alert.enabled and not self.off,
            looked_ns=self.looked_ns,
            snoozed_until_ns=self.snoozed_until_ns,
            snoozed_by=self.snoozed_by,
            left_out_groups=count,
            left_out_names=tuple(names),
        )


class Alerts(ControlOperationsBase):
    """Alert operations of `ControlStore`."""

    @write_operation
    def save_alert(self, db: WriteConnection, /, *alerts: Alert, owner: str | None = None) -> None:
        if owner is not None:
            db.lock("alerts of", owner)
        now = self._database.clock.keep(db)
        for alert in alerts:
            validate_alert(alert)
            alert = assign_alert_version(replace(alert, owner=owner or alert.owner))
            before = _find(db, alert.project, alert.name, LOCK)
            if before is not None and before.alert.owner != alert.owner:
                raise Refused(
                    f"alert {alert.name!r} of project {alert.project!r} belongs to {before.alert.owner!r}, not to"
                    f" {alert.owner!r}; use another name, or delete that alert first"
                )
            if before is None:
                row = (alert.project, alert.name, alert.version, alert.owner, encode_record(alert))
                db.execute("INSERT INTO alerts (project, name, version, owner, data) VALUES (?,?,?,?,?)", row)
            elif before.version == alert.version:
                kept = replace(alert, created_ns=before.alert.created_ns)
                db.execute("UPDATE alerts SET data = ? WHERE id = ?", (encode_record(kept), before.id))
            else:
                _close_groups(db, before, now, "the alert was edited")
                sql = "UPDATE alerts SET version = ?, looked_ns = 0, left_out = '[0, []]', data = ? WHERE id = ?"
                db.execute(sql, (alert.version, encode_record(alert), before.id))
            _update_groupings(db, before.alert if before is not None else None, alert)
        if owner is not None:
            names = {(alert.project, alert.name) for alert in alerts}
            rows = db.execute("SELECT project, name FROM alerts WHERE owner = ?", (owner,)).fetchall()
            for project, name in rows:
                if (project, name) not in names:
                    _delete(db, project, name, now, "the alert was removed from its file")

    @read_operation
    def alerts(self, db: Connection, /, *, project: str | None = None) -> list[Alert]:
        sql = f"SELECT {_COLUMNS} FROM alerts WHERE ? IS NULL OR project = ? ORDER BY project, name"
        return [_StoredAlert(*row).alert for row in db.execute(sql, (project, project))]

    @read_operation
    def alert_groups(
        self, db: Connection, /, name: str | None = None, *, project: str | None = None
    ) -> list[AlertGroup]:
        sql = (
            f"SELECT {_GROUP_COLUMNS} FROM alert_groups g JOIN alerts a ON a.id = g.alert"
            " WHERE (:name IS NULL OR a.name = :name) AND (:project IS NULL OR a.project = :project)"
            " ORDER BY a.project, a.name, g.is_group, g.name"
        )
        return [_make_group(row) for row in db.execute(sql, {"name": name, "project": project})]

    @write_operation
    def change_alert(self, db: WriteConnection, /, name: str, *, project: str = "default", **fields: JSON) -> Alert:
        stored = _get(db, project, name, LOCK)
        changed = apply_changes(stored.alert, fields)
        try:  # the fields may have other types than the record
            changed = record_encoding.decode(Alert, record_encoding.encode(changed))
        except ValueError as error:
            raise Refused(f"alert {name!r}: {error}") from error
        validate_alert(changed)
        off = int(not fields["enabled"]) if "enabled" in fields else stored.off
        sql = "UPDATE alerts SET off = ?, data = ? WHERE id = ?"
        db.execute(sql, (off, encode_record(replace(changed, enabled=changed.enabled or bool(off))), stored.id))
        return changed

    @write_operation
    def delete_alert(self, db: WriteConnection, /, name: str, *, project: str = "default") -> bool:
        return _delete(db, project, name, self._database.clock.keep(db), "the alert was deleted")

    @write_operation
    def acknowledge_alert(
        self, db: WriteConnection, /, name: str, *, project: str = "default", group: str | None = None
    ) -> list[AlertGroup]:
        stored, now = _get(db, project, name, LOCK), self._database.clock.keep(db)
        found = _select_groups(db, stored, group)
        firing = [one for one in found if one.status == "firing"]
        if not firing:
            raise Refused(
                f"alert {name!r} does not fire{'' if group is None else f' for {group!r}'}; nothing to acknowledge"
            )
        for one in firing:
            db.execute(
                "UPDATE alert_groups SET acknowledged_event = ?, acknowledged_by = ?, acknowledged_ns = ?"
                " WHERE alert = ? AND is_group = ? AND name = ?",
                (one.event, get_current_actor().name, now, stored.id, int(one.group is not None), one.group or ""),
            )
        return [one for one in _select_groups(db, stored, group) if one.status == "firing"]

    @write_operation
    def snooze_alert(
        self,
        db: WriteConnection,
        /,
        name: str,
        *,
        project: str = "default",
        group: str | None = None,
        until_ns: int | None = None,
    ) -> Alert:
        stored, now = _get(db, project, name, LOCK), self._database.clock.keep(db)
        if until_ns is not None and not now < until_ns <= now + MAX_SNOOZE_NS:
            raise Refused(f"an alert can be snoozed for up to a year, got the end {until_ns!r} (now: {now})")
        by = get_current_actor().name if until_ns is not None else ""
        if group is None:
            sql = "UPDATE alerts SET snoozed_until_ns = ?, snoozed_by = ? WHERE id = ?"
            db.execute(sql, (until_ns, by, stored.id))
        else:
            _select_groups(db, stored, group)
            sql = "UPDATE alert_groups SET snoozed_until_ns = ?, snoozed_by = ? WHERE alert = ? AND is_group = 1 AND name = ?"
            db.execute(sql, (until_ns, by, stored.id, group))
        return _get(db, project, name).alert

    @write_operation
    def test_alert(self, db: WriteConnection, /, name: str, *, project: str = "default") -> str:
        alert = _get(db, project, name).alert
        if not alert.to:
            raise Refused(f"alert {name!r} has no targets; name some in its definition, such as to=['ops']")
        path = f"/alerts/{quote(name, safe='')}?{urlencode({'project': project})}"
        notification = make_test_notification(name, project=project, targets=alert.to, path=path)
        enqueue_notifications(db, [notification])
        return notification.id

    @read_operation
    def alert_events(
        self,
        db: Connection,
        /,
        *,
        project: str | None = None,
        alert: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[AlertEvent]:
        before = 2**63 - 1 if cursor is None else parse_cursor(cursor)[1]
        sql = (
            "SELECT number, data FROM alert_events WHERE (:project IS NULL OR project = :project)"
            " AND (:alert IS NULL OR alert = :alert) AND number < :before ORDER BY number DESC LIMIT :limit"
        )
        values = {"project": project, "alert": alert, "before": before, "limit": limit + 1}
        rows = db.execute(sql, values).fetchall()
        items = tuple(decode_record(AlertEvent, data) for _, data in rows[:limit])
        return Page(items=items, next=f"0.{rows[limit - 1][0]}" if len(rows) > limit and items else None)

    @write_operation
    def record_look(self, db: WriteConnection, /, result: AlertResult) -> bool:
        """Store a look with its notifications in one transaction.

        It is not stored if the alert was edited or deleted, a runner with a newer lease has looked, or this look or a
        later one is stored already.
        """
        stored = _find(db, result.project, result.alert, LOCK)
        if stored is None or stored.version != result.version:
            return False
        # Without this, a small step of the clock would count a look twice. A stored look that is further in the future
        # is from before the clock was set back
        is_repeated = result.looked_ns <= stored.looked_ns <= result.now_ns + CLOCK_TOLERANCE_NS
        if stored.token > result.token or is_repeated:
            return False
        left_out = json.dumps([result.left_out_groups, list(result.left_out_names)])
        sql = "UPDATE alerts SET token = ?, looked_ns = ?, left_out = ? WHERE id = ?"
        db.execute(sql, (result.token, result.looked_ns, left_out, stored.id))
        db.executemany(
            "INSERT INTO alert_groups (alert, is_group, name, data) VALUES (?,?,?,?)"
            " ON CONFLICT (alert, is_group, name) DO UPDATE SET data = excluded.data",
            [(stored.id, int(one.group is not None), one.group or "", encode_record(one)) for one in result.groups],
        )
        sql = "DELETE FROM alert_groups WHERE alert = ? AND is_group = 1 AND name = ?"
        db.executemany(sql, [(stored.id, name) for name in result.dropped])
        _add_events(db, result.events)
        enqueue_notifications(db, result.notifications)
        return True


def _find(db: Connection, project: str, name: str, lock: str = "") -> _StoredAlert | None:
    sql = f"SELECT {_COLUMNS} FROM alerts WHERE project = ? AND name = ?{lock}"
    row = db.execute(sql, (project, name)).fetchone()
    return _StoredAlert(*row) if row else None


def _get(db: Connection, project: str, name: str, lock: str = "") -> _StoredAlert:
    if (stored := _find(db, project, name, lock)) is None:
        raise NotFound(f"there is no alert {name!r} in project {project!r}; `spanwise alerts list` shows them")
    return stored


def _make_group(row: Sequence[Any]) -> AlertGroup:
    names = ("acknowledged_event", "acknowledged_by", "acknowledged_ns", "snoozed_until_ns", "snoozed_by")
    return replace(decode_record(AlertGroup, row[0]), **dict(zip(names, row[1:], strict=True)))


def _select_groups(db: Connection, stored: _StoredAlert, group: str | None) -> list[AlertGroup]:
    """Return one group of an alert, or all (None). Raise `NotFound` for an unknown group."""
    sql = (
        f"SELECT {_GROUP_COLUMNS} FROM alert_groups g WHERE g.alert = :alert"
        " AND (:group IS NULL OR (g.is_group = 1 AND g.name = :group)) ORDER BY g.is_group, g.name"
    )
    found = [_make_group(row) for row in db.execute(sql, {"alert": stored.id, "group": group})]
    if group is not None and not found:
        raise NotFound(f"alert {stored.alert.name!r} has no group {group!r}")
    return found


def _close_groups(db: WriteConnection, stored: _StoredAlert, now: int, reason: str) -> None:
    """Delete the groups of an alert. Those that fire are closed: in the history, and by a notification."""
    alert = stored.alert
    for group in _select_groups(db, stored, None):
        if group.status != "firing":
            continue
        event, closing = close_group(alert, group, reason, now)
        _add_events(db, [event])
        enqueue_notifications(db, [closing] if closing is not None else [])
    db.execute("DELETE FROM alert_groups WHERE alert = ?", (stored.id,))


def _delete(db: WriteConnection, project: str, name: str, now: int, reason: str) -> bool:
    if (stored := _find(db, project, name, LOCK)) is None:
        return False
    _close_groups(db, stored, now, reason)
    db.execute("DELETE FROM alerts WHERE id = ?", (stored.id,))
    _update_groupings(db, stored.alert, None)
    return True


def _update_groupings(db: WriteConnection, before: Alert | None, after: Alert | None) -> None:
    """Keep the sums of scores per value of the field by which an alert groups them, and no others.

    Sums of measures that no alert reads any more are deleted.
    """
    if before is not None:
        rows = db.execute("SELECT data FROM alerts WHERE project = ?", (before.project,))
        db.remove_measure(before, [decode_record(Alert, row[0]) for row in rows])
    if after is not None and after.rule is not None and after.by is not None:
        db.register_grouping(after.project, after.rule, after.by)
    if before is None or before.rule is None or before.by is None:
        return
    data = "json_extract(data, '$.{}')".format
    sql = f"SELECT 1 FROM alerts WHERE project = ? AND {data('rule')} = ? AND {data('by')} = ?"
    if not db.execute(sql, (before.project, before.rule, before.by)).fetchone():
        db.remove_grouping(before.project, before.rule, before.by)


def _add_events(db: Connection, events: Iterable[AlertEvent]) -> None:
    for event in events:
        row = (event.id, event.project, event.alert, encode_record(event))
        sql = (
            "INSERT INTO alert_events (id, project, alert, data) VALUES (?,?,?,?) ON CONFLICT (id) DO NOTHING"
            " RETURNING number"
        )
        added = db.execute(sql, row).fetchone()
        if added and added[0] % PRUNE_INTERVAL == 0:
            db.execute("DELETE FROM alert_events WHERE number <= ?", (added[0] - MAX_EVENTS,))
