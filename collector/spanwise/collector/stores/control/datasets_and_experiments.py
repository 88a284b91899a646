"""Versioned datasets with their examples, and experiment records.

A row of `examples` is one state of one example. It belongs to the versions from `since` up to, not including,
`until`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import DATASET_COLUMNS, EXPERIMENT_COLUMNS, parse_sort
from spanwise.collector.records import JSON, Dataset, Example, Experiment, Page, apply_changes, number_duplicates
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.flat_tables import ExampleRecord
from spanwise.collector.stores.table_rows import (
    Connection,
    build_upsert_clause,
    decode_record,
    dumps,
    encode_record,
    insert_many,
    loads,
    parse_cursor,
)
from spanwise.tracer.suggestions import did_you_mean

_DATASET_COLUMNS = "name, version, kind, schema, description, metadata, created_ns, example_count"
_HAS_SPLIT = "EXISTS (SELECT 1 FROM json_each(data, '$.metadata.dataset_split') WHERE value = ?)"
_DESCRIPTION_FIELDS = ("kind", "schema", "description", "metadata")


class Datasets(ControlOperationsBase):
    """Dataset operations of `ControlStore`."""

    @write_operation
    def save_examples(
        self,
        db: WriteConnection,
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
        db.lock("dataset", dataset)
        about = {"kind": kind, "schema": schema, "description": description, "metadata": metadata}
        current = _newest_version(db, dataset)
        version = current.version + 1 if current else 1
        changed = _write_examples(db, dataset, version, number_duplicates(examples), replace, remove)
        described = _merge_description(current, about)
        if current and not changed and described == _merge_description(current, {}):
            return current
        return _insert_version(db, dataset, version, described, self._database.clock.now())

    @read_operation
    def dataset(self, db: Connection, /, name: str, version: int | None = None) -> Dataset:
        return _find_dataset(db, name, version)

    @read_operation
    def datasets(self, db: Connection, /, *, sort: str | None = None) -> list[Dataset]:
        by = "name"
        if sort:
            order = parse_sort(sort, DATASET_COLUMNS)
            values = {"created": "created_ns", "version": "version", "examples": "example_count"}
            by = f"{values[order.column]} {order.sql}, name"
        newest = "SELECT name, max(version) FROM datasets GROUP BY name"
        sql = f"SELECT {_DATASET_COLUMNS} FROM datasets WHERE (name, version) IN ({newest}) ORDER BY {by}"
        return [_dataset_from_row(row) for row in db.execute(sql)]

    @read_operation
    def versions(self, db: Connection, /, name: str) -> list[Dataset]:
        sql = f"SELECT {_DATASET_COLUMNS} FROM datasets WHERE name = ? ORDER BY version DESC"
        return [_dataset_from_row(row) for row in db.execute(sql, (name,))]

    @read_operation
    def examples(
        self,
        db: Connection,
        /,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        at = _find_dataset(db, dataset, version).version
        sql = (
            "SELECT data FROM examples WHERE dataset = ? AND since <= ? AND (until IS NULL OR until > ?)"
            f" AND (? IS NULL OR split = ? OR {_HAS_SPLIT}) ORDER BY position LIMIT ? OFFSET ?"
        )
        values = (dataset, at, at, split, split, split, 2**63 - 1 if limit is None else limit, offset)
        return [decode_record(Example, row[0]) for row in db.execute(sql, values)]

    @read_operation
    def list_example_records(
        self, db: Connection, /, datasets: Collection[str] | None, limit: int, cursor: str | None
    ) -> Page[ExampleRecord]:
        row = 0 if cursor is None else parse_cursor(cursor)[1]
        # rows with the position of the last one read, whose dataset and position the cursor does not repeat
        sql = (
            "SELECT e.id, e.dataset, e.since, e.position, e.data FROM examples e LEFT JOIN examples p ON p.id = ?"
            " WHERE e.until IS NULL AND (p.id IS NULL OR (e.dataset, e.position, e.id) > (p.dataset, p.position, p.id))"
            " AND (? IS NULL OR e.dataset IN (SELECT value FROM json_each(?)))"
            " ORDER BY e.dataset, e.position, e.id LIMIT ?"
        )
        wanted = None if datasets is None else dumps(sorted(datasets))
        rows = db.execute(sql, (row, wanted, wanted, limit + 1)).fetchall()
        items = tuple(ExampleRecord._make((*row[1:4], decode_record(Example, row[4]))) for row in rows[:limit])
        return Page(items=items, next=f"0.{rows[limit - 1][0]}" if len(rows) > limit else None)

    @write_operation
    def delete_dataset(self, db: WriteConnection, /, name: str) -> bool:
        db.lock("dataset", name)
        db.execute("DELETE FROM examples WHERE dataset = ?", (name,))
        return db.execute("DELETE FROM datasets WHERE name = ?", (name,)).rowcount > 0


def _merge_description(current: Dataset | None, about: Mapping[str, JSON]) -> tuple[Any, ...]:
    base = current or Dataset(name="")
    return tuple(getattr(base, name) if about.get(name) is None else about[name] for name in _DESCRIPTION_FIELDS)


def _insert_version(db: Connection, name: str, version: int, described: tuple[Any, ...], now: int) -> Dataset:
    kind, schema, description, metadata = described
    count = db.execute("SELECT count(*) FROM examples WHERE dataset = ? AND until IS NULL", (name,)).fetchone()[0]
    dataset = Dataset(
        name=name,
        version=version,
        kind=kind,
        schema=schema,
        description=description,
        metadata=metadata,
        created_ns=now,
        example_count=count,
    )
    db.execute(
        f"INSERT INTO datasets ({_DATASET_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)",
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


def _write_examples(
    db: Connection, name: str, version: int, examples: Sequence[Example], replace: bool, remove: Sequence[str]
) -> bool:
    """Write the differences between the current and the wanted examples. Return whether anything changed."""
    wanted = {example.id: encode_record(example) for example in examples}
    # the data of other examples is not read: a large dataset that is saved in batches would fill the memory
    sql = (
        "SELECT example_id, id, position, CASE WHEN example_id IN (SELECT value FROM json_each(?)) THEN data END "
        "FROM examples WHERE dataset = ? AND until IS NULL ORDER BY position"
    )
    live = {row[0]: row[1:] for row in db.execute(sql, (json.dumps(list(wanted)), name))}
    splits = {example.id: example.split for example in examples}
    removed = set(remove) & set(live) | (set(live) - set(wanted) if replace else set())
    changed = {id: text for id, text in wanted.items() if id not in live or live[id][2] != text}
    rows = [live[id][0] for id in live if id in removed or id in changed]
    db.executemany("UPDATE examples SET until = ? WHERE id = ?", [(version, row) for row in rows])
    after = max((row[1] for row in live.values()), default=-1) + 1
    new = [id for id in changed if id not in live]
    positions = {id: live[id][1] for id in changed if id in live} | {id: after + i for i, id in enumerate(new)}
    db.executemany(
        "INSERT INTO examples (dataset, example_id, position, split, since, data) VALUES (?,?,?,?,?,?)",
        [(name, id, positions[id], splits[id], version, text) for id, text in changed.items()],
    )
    return bool(rows or changed)


def _newest_version(db: Connection, name: str) -> Dataset | None:
    sql = f"SELECT {_DATASET_COLUMNS} FROM datasets WHERE name = ? ORDER BY version DESC LIMIT 1"
    row = db.execute(sql, (name,)).fetchone()
    return _dataset_from_row(row) if row else None


def _dataset_from_row(row: Sequence[Any]) -> Dataset:
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


def _find_dataset(db: Connection, name: str, version: int | None) -> Dataset:
    """Return a version of a dataset, by default the newest. Raise `NotFound` if it does not exist."""
    if version is None:
        dataset = _newest_version(db, name)
    else:
        row = db.execute(
            f"SELECT {_DATASET_COLUMNS} FROM datasets WHERE name = ? AND version = ?", (name, version)
        ).fetchone()
        dataset = _dataset_from_row(row) if row else None
    if dataset is None:
        names = [row[0] for row in db.execute("SELECT DISTINCT name FROM datasets")]
        if name in names:
            raise NotFound(f"dataset {name!r} has no version {version!r}")
        raise NotFound(f"there is no dataset {name!r} in this store{did_you_mean(name, names, 3)}")
    return dataset


_EXPERIMENT_COLUMNS = ("id", "name", "dataset", "project", "status", "started_ns", "data")


class Experiments(ControlOperationsBase):
    """Experiment operations of `ControlStore`."""

    @write_operation
    def save_experiment(self, db: WriteConnection, /, *experiments: Experiment) -> None:
        _save_experiments(db, experiments)

    @read_operation
    def experiment(self, db: Connection, /, id_or_name: str) -> Experiment:
        return _find_experiment(db, id_or_name)

    @read_operation
    def experiments(
        self,
        db: Connection,
        /,
        *,
        dataset: str | None = None,
        project: str | None = None,
        sort: str | None = None,
        limit: int = 100,
    ) -> list[Experiment]:
        by = "started_ns DESC"
        if sort:
            order = parse_sort(sort, EXPERIMENT_COLUMNS)
            duration = "CAST(json_extract(data, '$.ended_ns') AS BIGINT) - started_ns"
            examples = "CAST(json_extract(data, '$.example_count') AS BIGINT)"
            value = {"start": "started_ns", "duration_ms": duration, "examples": examples}[order.column]
            by = f"{value} IS NULL, {value} {order.sql}"
        sql = (
            "SELECT data FROM experiments WHERE (:dataset IS NULL OR dataset = :dataset)"
            f" AND (:project IS NULL OR project = :project) ORDER BY {by}, id LIMIT :limit"
        )
        return [
            decode_record(Experiment, row[0])
            for row in db.execute(sql, {"dataset": dataset, "project": project, "limit": limit})
        ]

    @write_operation
    def change_experiment(self, db: WriteConnection, /, id: str, **fields: JSON) -> Experiment:
        changed = apply_changes(_find_experiment(db, id, "/*pg FOR NO KEY UPDATE*/"), fields)
        _save_experiments(db, [changed])
        return changed

    @write_operation
    def delete_experiment(self, db: WriteConnection, /, id: str) -> bool:
        """Remove the record. The combined store removes its traces and their feedback first."""
        return db.execute("DELETE FROM experiments WHERE id = ?", (id,)).rowcount > 0


def _save_experiments(db: Connection, experiments: Sequence[Experiment]) -> None:
    rows = {
        experiment.id: (*(getattr(experiment, name) for name in _EXPERIMENT_COLUMNS[:-1]), encode_record(experiment))
        for experiment in sorted(experiments, key=lambda one: one.id)
    }
    insert_many(db, "experiments", _EXPERIMENT_COLUMNS, list(rows.values()), build_upsert_clause(_EXPERIMENT_COLUMNS))


def _find_experiment(db: Connection, id_or_name: str, lock: str = "") -> Experiment:
    """Return the newest experiment with this id, name or id prefix, tried in this order. Raise `NotFound` if none
    matches.
    """
    for where in ("id = :name", "name = :name", "substr(id, 1, length(:name)) = :name"):
        sql = f"SELECT data FROM experiments WHERE {where} ORDER BY started_ns DESC LIMIT 1{lock}"
        row = db.execute(sql, {"name": id_or_name}).fetchone() if id_or_name else None
        if row:
            return decode_record(Experiment, row[0])
    raise NotFound(f"there is no experiment {id_or_name!r} in this store; `spanwise experiments` lists them")
