"""Experiments: their records. What they ran are traces."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Experiment, changed
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._records import from_text, to_text
from spanwise.collector.stores.sqlite._sql import insert_many, overwrite

_COLUMNS = ("id", "name", "dataset", "project", "status", "started_ns", "data")


class Experiments(Half):
    """A part of `ControlStore`."""

    @writes
    def save_experiment(self, db: sqlite3.Connection, /, *experiments: Experiment) -> None:
        _save(db, experiments)

    @reads
    def experiment(self, db: sqlite3.Connection, /, id_or_name: str) -> Experiment:
        return _one(db, id_or_name)

    @reads
    def experiments(
        self, db: sqlite3.Connection, /, *, dataset: str | None = None, project: str | None = None, limit: int = 100
    ) -> list[Experiment]:
        sql = (
            "SELECT data FROM experiments WHERE (:dataset IS NULL OR dataset = :dataset)"
            " AND (:project IS NULL OR project = :project) ORDER BY started_ns DESC, id LIMIT :limit"
        )
        return [
            from_text(Experiment, row[0])
            for row in db.execute(sql, {"dataset": dataset, "project": project, "limit": limit})
        ]

    @writes
    def change_experiment(self, db: sqlite3.Connection, /, id: str, **fields: JSON) -> Experiment:
        made = changed(_one(db, id), fields)
        _save(db, [made])
        return made

    @writes
    def delete_experiment(self, db: sqlite3.Connection, /, id: str) -> bool:
        """Remove the record; the traces and the feedback on it are `Both`'s to remove before."""
        return db.execute("DELETE FROM experiments WHERE id = ?", (id,)).rowcount > 0


def _save(db: sqlite3.Connection, experiments: Sequence[Experiment]) -> None:
    rows = [(*(getattr(experiment, name) for name in _COLUMNS[:-1]), to_text(experiment)) for experiment in experiments]
    insert_many(db, "experiments", _COLUMNS, rows, overwrite(_COLUMNS))


def _one(db: sqlite3.Connection, id_or_name: str) -> Experiment:
    """By id, by name, or by the beginning of an id: the newest. Raises `NotFound`."""
    for where in ("id = :name", "name = :name", "substr(id, 1, length(:name)) = :name"):
        sql = f"SELECT data FROM experiments WHERE {where} ORDER BY started_ns DESC LIMIT 1"
        row = db.execute(sql, {"name": id_or_name}).fetchone() if id_or_name else None
        if row:
            return from_text(Experiment, row[0])
    raise NotFound(f"there is no experiment {id_or_name!r} in this store; `spanwise experiments` lists them")
