"""Datasets: every version stays readable, and an example that does not change is stored once.

A row of `examples` is one state of one example; it belongs to the versions from `since` up to, not including, `until`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Dataset, Example, distinct
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._records import from_text, to_text
from spanwise.collector.stores.sqlite._values import dumps, loads
from spanwise.tracer.hints import did_you_mean

_COLUMNS = "name, version, kind, schema, description, metadata, created_ns, example_count"
_AMONG_SEVERAL = "EXISTS (SELECT 1 FROM json_each(data, '$.metadata.dataset_split') WHERE value = ?)"
_DESCRIBED = ("kind", "schema", "description", "metadata")


class Datasets(Half):
    """A part of `ControlStore`."""

    @writes
    def save_examples(
        self,
        db: sqlite3.Connection,
        /,
        dataset: str,
        examples: Sequence[Example],
        *,
        replace: bool = False,
        remove: Sequence[str] = (),
        kind: str | None = None,
        schema: Mapping[str, JSON] | None = None,
        description: str | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Dataset:
        about = {"kind": kind, "schema": schema, "description": description, "metadata": metadata}
        current = _newest(db, dataset)
        version = current.version + 1 if current else 1
        changed = _write(db, dataset, version, distinct(examples), replace, remove)
        described = _described(current, about)
        if current and not changed and described == _described(current, {}):
            return current
        return _insert(db, dataset, version, described)

    @reads
    def dataset(self, db: sqlite3.Connection, /, name: str, version: int | None = None) -> Dataset:
        return _one(db, name, version)

    @reads
    def datasets(self, db: sqlite3.Connection, /) -> list[Dataset]:
        sql = f"SELECT {_COLUMNS}, max(version) FROM datasets GROUP BY name ORDER BY name"
        return [_read(row) for row in db.execute(sql)]

    @reads
    def versions(self, db: sqlite3.Connection, /, name: str) -> list[Dataset]:
        sql = f"SELECT {_COLUMNS} FROM datasets WHERE name = ? ORDER BY version DESC"
        return [_read(row) for row in db.execute(sql, (name,))]

    @reads
    def examples(
        self,
        db: sqlite3.Connection,
        /,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        at = _one(db, dataset, version).version
        sql = (
            "SELECT data FROM examples WHERE dataset = ? AND since <= ? AND (until IS NULL OR until > ?)"
            f" AND (? IS NULL OR split = ? OR {_AMONG_SEVERAL}) ORDER BY position LIMIT ? OFFSET ?"
        )
        values = (dataset, at, at, split, split, split, -1 if limit is None else limit, offset)
        return [from_text(Example, row[0]) for row in db.execute(sql, values)]

    @writes
    def delete_dataset(self, db: sqlite3.Connection, /, name: str) -> bool:
        db.execute("DELETE FROM examples WHERE dataset = ?", (name,))
        return db.execute("DELETE FROM datasets WHERE name = ?", (name,)).rowcount > 0


def _described(current: Dataset | None, about: Mapping[str, JSON]) -> tuple[Any, ...]:
    base = current or Dataset(name="")
    return tuple(getattr(base, name) if about.get(name) is None else about[name] for name in _DESCRIBED)


def _insert(db: sqlite3.Connection, name: str, version: int, described: tuple[Any, ...]) -> Dataset:
    kind, schema, description, metadata = described
    count = db.execute("SELECT count(*) FROM examples WHERE dataset = ? AND until IS NULL", (name,)).fetchone()[0]
    dataset = Dataset(
        name=name,
        version=version,
        kind=kind,
        schema=schema,
        description=description,
        metadata=metadata,
        created_ns=time.time_ns(),
        example_count=count,
    )
    db.execute(
        f"INSERT INTO datasets ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)",
        (
            name,
            version,
            kind,
            dumps(schema) if schema is not None else None,
            description,
            dumps(metadata),
            dataset.created_ns,
            count,
        ),
    )
    return dataset


def _write(
    db: sqlite3.Connection, name: str, version: int, examples: Sequence[Example], replace: bool, remove: Sequence[str]
) -> bool:
    """Bring the live rows to the wanted state; whether anything changed."""
    live = {
        row[0]: row[1:]
        for row in db.execute(
            "SELECT example_id, id, position, data FROM examples WHERE dataset = ? AND until IS NULL ORDER BY position",
            (name,),
        )
    }
    wanted = {example.id: to_text(example) for example in examples}
    splits = {example.id: example.split for example in examples}
    gone = set(remove) & set(live) | (set(live) - set(wanted) if replace else set())
    changed = {id: text for id, text in wanted.items() if id not in live or live[id][2] != text}
    rows = [live[id][0] for id in live if id in gone or id in changed]
    db.executemany("UPDATE examples SET until = ? WHERE id = ?", [(version, row) for row in rows])
    after = max((row[1] for row in live.values()), default=-1) + 1
    new = [id for id in changed if id not in live]
    positions = {id: live[id][1] for id in changed if id in live} | {id: after + i for i, id in enumerate(new)}
    db.executemany(
        "INSERT INTO examples (dataset, example_id, position, split, since, data) VALUES (?,?,?,?,?,?)",
        [(name, id, positions[id], splits[id], version, text) for id, text in changed.items()],
    )
    return bool(rows or changed)


def _newest(db: sqlite3.Connection, name: str) -> Dataset | None:
    sql = f"SELECT {_COLUMNS} FROM datasets WHERE name = ? ORDER BY version DESC LIMIT 1"
    row = db.execute(sql, (name,)).fetchone()
    return _read(row) if row else None


def _read(row: Sequence[Any]) -> Dataset:
    return Dataset(
        name=row[0],
        version=row[1],
        kind=row[2],
        schema=loads(row[3]) if row[3] else None,
        description=row[4],
        metadata=loads(row[5]),
        created_ns=row[6],
        example_count=row[7],
    )


def _one(db: sqlite3.Connection, name: str, version: int | None) -> Dataset:
    """A dataset at a version. Raises `NotFound`."""
    if version is None:
        dataset = _newest(db, name)
    else:
        row = db.execute(f"SELECT {_COLUMNS} FROM datasets WHERE name = ? AND version = ?", (name, version)).fetchone()
        dataset = _read(row) if row else None
    if dataset is None:
        raise NotFound(_absent(db, name, version))
    return dataset


def _absent(db: sqlite3.Connection, name: str, version: int | None) -> str:
    names = [row[0] for row in db.execute("SELECT DISTINCT name FROM datasets")]
    if name in names:
        return f"dataset {name!r} has no version {version!r}"
    return f"there is no dataset {name!r} in this store{did_you_mean(name, names, 3)}"
