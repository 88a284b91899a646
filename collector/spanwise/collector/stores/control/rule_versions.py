"""Monitoring rules: versions, activation, and the history of their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import JSON, Rule, RuleSettings, SettingsVersion, apply_changes
from spanwise.collector.rule_policy import update_settings, validate_rule
from spanwise.collector.stores.control import decision_rows
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.table_rows import Connection, decode_record, encode_record

MAX_SETTINGS = 20_000  # settings kept per rule: two weeks if pacing changes the rate every minute
_RULE_COLUMNS = "id, state, active_from, off, data, paused_by, paused_ns"
_SELECT_SETTINGS = "SELECT version, from_change, created_ns, data FROM settings WHERE project = ? AND name = ?"


class StoredRule(NamedTuple):
    """Row of a rule version."""

    id: int
    state: str  # "in force", "superseded" by another version, or "removed"
    active_from: int
    off: int  # paused by a user; loading a rule file does not undo this
    data: str
    paused_by: str | None
    paused_ns: int | None

    @property
    def rule(self) -> Rule:
        rule = decode_record(Rule, self.data)
        return replace(
            rule,
            active_from=self.active_from,
            enabled=rule.enabled and not self.off,
            paused_by=self.paused_by or "",
            paused_ns=self.paused_ns,
        )


class Rules(ControlOperationsBase):
    """Rule operations of `ControlStore`. The caller passes the latest change number, which the trace backend knows."""

    @write_operation
    def save_rules(
        self, db: WriteConnection, /, rules: Sequence[Rule], owner: str | None, activate: bool, change: int
    ) -> None:
        """Store rules as `ControlStore.save_rule` does. `change` is the latest change number."""
        if owner is not None:
            db.lock("rules of", owner)
        now = self._database.clock.keep(db)
        for rule in rules:
            validate_rule(rule)
            if owner is not None:
                rule = replace(rule, owner=owner)
            db.lock("rule", rule.project, rule.name)
            before = _find_active(db, rule.project, rule.name)
            if before is not None and before.rule.owner != rule.owner:
                raise Refused(
                    f"rule {rule.name!r} of project {rule.project!r} belongs to {before.rule.owner!r}, not to"
                    f" {rule.owner!r}; use another name, or delete that rule first"
                )
            if before is not None and before.rule.version == rule.version:
                _update_version(db, rule, before, change, now)
            else:
                _activate(db, rule, before, activate, change, now)
        if owner is not None:
            names = {(rule.project, rule.name) for rule in rules}
            rows = db.execute(
                "SELECT id, project, name FROM rules WHERE owner = ? AND state = 'in force'", (owner,)
            ).fetchall()
            removed = [(id,) for id, project, name in rows if (project, name) not in names]
            db.executemany("UPDATE rules SET state = 'removed' WHERE id = ?", removed)

    @read_operation
    def rules(self, db: Connection, /, *, project: str | None = None, all_versions: bool = False) -> list[Rule]:
        sql = (
            f"SELECT {_RULE_COLUMNS} FROM rules WHERE (state = 'in force' OR ? = 1) AND (? IS NULL OR project = ?)"
            " ORDER BY project, name, state = 'in force' DESC, id DESC"
        )
        return [StoredRule(*row).rule for row in db.execute(sql, (int(all_versions), project, project))]

    @read_operation
    def settings(self, db: Connection, /, name: str, *, project: str = "default") -> list[SettingsVersion]:
        return list(
            map(_setting_from_row, db.execute(f"{_SELECT_SETTINGS} ORDER BY id DESC", (project, name)).fetchall())
        )

    @read_operation
    def find_settings(self, db: Connection, /, rule: Rule, change: int) -> SettingsVersion | None:
        """Return the settings that apply to a change number, as `spanwise.collector.rule_policy.find_setting` does.

        The query avoids reading the whole history of a version, which may be long.
        """
        select = f"{_SELECT_SETTINGS} AND version = ?"
        values = (rule.project, rule.name, rule.version)
        row = db.execute(f"{select} AND from_change <= ? ORDER BY id DESC LIMIT 1", (*values, change)).fetchone()
        row = row or db.execute(f"{select} ORDER BY id LIMIT 1", values).fetchone()
        return _setting_from_row(row) if row else None

    @write_operation
    def update_rule(
        self, db: WriteConnection, /, name: str, project: str, fields: Mapping[str, JSON], change: int, actor: str
    ) -> Rule:
        """Change fields of a rule as `ControlStore.change_rule` does. `change` is the latest change number, and `actor`
        who makes the change.
        """
        db.lock("rule", project, name)
        stored = _find_active(db, project, name)
        if stored is None:
            raise NotFound(f"there is no rule {name!r} in project {project!r}")
        settings = (
            {"settings": update_settings(stored.rule.settings, fields["settings"])} if "settings" in fields else {}
        )
        changed = apply_changes(stored.rule, {**fields, **settings})
        validate_rule(changed)
        now = self._database.clock.keep(db)
        off = int(not fields["enabled"]) if "enabled" in fields else stored.off
        if off and not stored.off:
            changed = replace(changed, paused_by=actor, paused_ns=now)
        elif not off:
            changed = replace(changed, paused_by="", paused_ns=None)
        data = encode_record(replace(changed, enabled=changed.enabled or bool(off), paused_by="", paused_ns=None))
        sql = "UPDATE rules SET off = ?, paused_by = ?, paused_ns = ?, data = ? WHERE id = ?"
        db.execute(sql, (off, changed.paused_by, changed.paused_ns, data, stored.id))
        if changed.settings != stored.rule.settings:
            _record_settings(db, changed, change, now)
        if changed.settings.budget != stored.rule.settings.budget:
            _requeue_over_budget(db, stored.id, now)
        return changed

    @write_operation
    def delete_rule(self, db: WriteConnection, /, name: str, *, project: str = "default") -> bool:
        sql = "UPDATE rules SET state = 'removed' WHERE project = ? AND name = ? AND state = 'in force'"
        return db.execute(sql, (project, name)).rowcount > 0


def _setting_from_row(row: Sequence[Any]) -> SettingsVersion:
    return SettingsVersion(
        version=row[0], from_change=row[1], created_ns=row[2], settings=decode_record(RuleSettings, row[3])
    )


def _find_active(db: Connection, project: str, name: str) -> StoredRule | None:
    sql = f"SELECT {_RULE_COLUMNS} FROM rules WHERE project = ? AND name = ? AND state = 'in force'"
    row = db.execute(sql, (project, name)).fetchone()
    return StoredRule(*row) if row else None


def _update_version(db: WriteConnection, rule: Rule, before: StoredRule, change: int, now: int) -> None:
    """Update the rule of a version that is in force; its settings may differ.

    The decisions are kept. The rate that pacing has set is kept if the budget is unchanged.
    """
    old = before.rule
    paced = rule.settings.paced
    if paced is None and rule.settings.pace and rule.settings.budget == old.settings.budget:
        paced = old.settings.paced
    updated = replace(rule, settings=replace(rule.settings, paced=paced), created_ns=old.created_ns)
    db.execute("UPDATE rules SET owner = ?, data = ? WHERE id = ?", (updated.owner, encode_record(updated), before.id))
    if updated.settings != old.settings:
        _record_settings(db, updated, change, now)
    if updated.settings.budget != old.settings.budget:
        _requeue_over_budget(db, before.id, now)
    if rule.since_ns is not None and (old.since_ns is None or rule.since_ns < old.since_ns):
        # The rule starts earlier now, so it reads the change feed again from the beginning
        db.execute("UPDATE rules SET cursor = NULL WHERE id = ?", (before.id,))
        decision_rows.clear_outcomes(db, before.id)


def _activate(
    db: WriteConnection, rule: Rule, before: StoredRule | None, activate: bool, change: int, now: int
) -> None:
    """Put a version in force, for changes after `change`."""
    sql = "SELECT state FROM rules WHERE project = ? AND name = ? AND version = ?"
    known = db.execute(sql, (rule.project, rule.name, rule.version)).fetchone()
    if known and known[0] == "superseded" and not activate:
        now_in_force = f", by {before.rule.version!r}" if before is not None else ""
        raise Refused(
            f"version {rule.version!r} of rule {rule.name!r} was superseded{now_in_force}; "
            "load the newer file, or activate this version again (activate=True)"
        )
    db.execute("UPDATE rules SET state = 'superseded' WHERE id = ?", (before.id if before else None,))
    paused = (before.off, before.paused_by, before.paused_ns) if before else (0, None, None)
    row = (rule.project, rule.name, rule.version, rule.owner, change, *paused, encode_record(rule))
    db.execute(
        "INSERT INTO rules (project, name, version, state, owner, active_from, off, paused_by, paused_ns, data)"
        " VALUES (?,?,?,'in force',?,?,?,?,?,?)"
        " ON CONFLICT (project, name, version) DO UPDATE SET state = excluded.state, owner = excluded.owner,"
        " active_from = excluded.active_from, off = excluded.off, paused_by = excluded.paused_by,"
        " paused_ns = excluded.paused_ns, data = excluded.data",
        row,
    )
    _record_settings(db, rule, change, now)


def _requeue_over_budget(db: Connection, rule: int, now: int) -> None:
    """Make the rows over budget due now, because the budget changed."""
    sql = "UPDATE decisions SET due_ns = ?, next_ns = ? WHERE rule = ? AND verdict = 'over_budget' AND due_ns > ? AND backfill IS NULL"
    db.execute(sql, (now, now, rule, now))


def _record_settings(db: Connection, rule: Rule, change: int, now: int) -> None:
    """Record settings that apply to all changes after `change`."""
    values = (rule.project, rule.name, rule.version, change + 1, now, encode_record(rule.settings))
    db.execute(
        "INSERT INTO settings (project, name, version, from_change, created_ns, data) VALUES (?,?,?,?,?,?)", values
    )
    db.execute(
        "DELETE FROM settings WHERE project = :project AND name = :name AND id <= (SELECT id FROM settings"
        " WHERE project = :project AND name = :name ORDER BY id DESC LIMIT 1 OFFSET :most)",
        {"project": rule.project, "name": rule.name, "most": MAX_SETTINGS},
    )


class ActiveRule(NamedTuple):
    """Columns of a rule version in force, as leases and decisions need them."""

    id: int
    cursor: str | None
    token: int
    enabled: bool
    has_cancelled: bool  # whether a backfill of it was cancelled while its decisions are being evaluated


NO_OTHER_DECIDES = "/*pg FOR NO KEY UPDATE*/"  # no other transaction moves the cursor


def find_active_rule(db: Connection, project: str, name: str, version: str, lock: str = "") -> ActiveRule | None:
    """Return the version of a rule if it is in force, else None; `lock` may be `NO_OTHER_DECIDES`."""
    sql = (
        "SELECT id, cursor, token, off, CAST(json_extract(data, '$.enabled') AS TEXT) IN ('1', 'true'),"
        " EXISTS (SELECT 1 FROM backfills b WHERE b.rule = rules.id AND b.state = 'cancelling') FROM rules"
        f" WHERE project = ? AND name = ? AND version = ? AND state = 'in force'{lock}"
    )
    row = db.execute(sql, (project, name, version)).fetchone()
    return ActiveRule(row[0], row[1], row[2], not row[3] and bool(row[4]), bool(row[5])) if row else None
