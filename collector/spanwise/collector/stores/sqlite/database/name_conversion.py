"""Conversion of files from before the product was renamed: names in the tables, and the name of the file."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import zstandard

from spanwise.collector.errors import Refused
from spanwise.collector.record_corrections import FORMER, METADATA, PRESENT, present_names
from spanwise.collector.stores.sqlite.database.file_lock import FileLock, real_path
from spanwise.collector.stores.sqlite.write.run_codec import PayloadCompressor, PayloadDecoder
from spanwise.collector.stores.table_rows import dumps, loads

FORMER_APPLICATION_ID = 0x41535359  # "ASSY" in ASCII
BATCH = 1_000  # spans per query
GROWTH = len(PRESENT) - len(FORMER)  # bytes by which each name grows
_MARK = f'"{FORMER}.'


def convert_names(db: sqlite3.Connection, report: Callable[[int, int], None]) -> None:
    """Rename the attributes that the product itself writes, in all tables that contain them.

    Change numbers, summaries, rollups and the full-text index stay unchanged, because they contain no such names.
    """
    _convert_spans(db, report)
    _convert_resources(db)
    for row, fields in db.execute("SELECT id, fields FROM amendments WHERE instr(fields, ?)", (_MARK,)).fetchall():
        db.execute("UPDATE amendments SET fields = ? WHERE id = ?", (dumps(_with_present_names(loads(fields))), row))
    for row, metadata in db.execute("SELECT id, metadata FROM feedback WHERE instr(metadata, ?)", (_MARK,)).fetchall():
        renamed = present_names(loads(metadata), METADATA)
        db.execute("UPDATE feedback SET metadata = ? WHERE id = ?", (dumps(renamed), row))
    db.execute(
        "UPDATE rules SET data = json_set(data, '$.owner', ?) WHERE json_extract(data, '$.owner') = ?",
        (f"{PRESENT} demo", f"{FORMER} demo"),
    )


def _convert_spans(db: sqlite3.Connection, report: Callable[[int, int], None]) -> None:
    """Rewrite payloads, and update the sizes of spans and traces accordingly."""
    dictionaries = dict(db.execute("SELECT id, data FROM dictionaries ORDER BY id").fetchall())
    decoder = PayloadDecoder(dictionaries)
    compressor = PayloadCompressor(dictionaries[max(dictionaries)] if dictionaries else None)
    [last] = db.execute("SELECT coalesce(max(id), 0) FROM spans").fetchone()
    upto = 0
    while rows := db.execute(
        "SELECT id, trace, payload FROM spans WHERE id > ? ORDER BY id LIMIT ?", (upto, BATCH)
    ).fetchall():
        report(upto, last)
        changed = [
            (row, trace, *found) for row, trace, blob in rows if (found := _converted(decoder, blob)) is not None
        ]
        blobs = compressor.all([payload for *_, payload, _ in changed])
        db.executemany(
            "UPDATE spans SET payload = ?, size = size + ? WHERE id = ?",
            [(blob, growth, row) for blob, (row, _, _, growth) in zip(blobs, changed, strict=True)],
        )
        growths: Counter[int] = Counter()
        for _, trace, _, growth in changed:
            growths[trace] += growth
        db.executemany("UPDATE traces SET size = size + ? WHERE id = ?", [(by, key) for key, by in growths.items()])
        upto = rows[-1][0]


def _converted(decoder: PayloadDecoder, blob: bytes) -> tuple[bytes, int] | None:
    """Return a payload with the present names, and the bytes by which it grew; None if it needs no change.

    An unreadable payload stays unchanged: the file is damaged, and `check` reports it.
    """
    try:
        raw = decoder.raw(blob)
        if _MARK.encode() not in raw:
            return None
        payload = loads(raw)
        renamed = _with_present_names(payload)
    except (zstandard.ZstdError, KeyError, ValueError, TypeError, AttributeError):
        return None
    if renamed == payload:
        return None
    encoded = dumps(renamed).encode()
    return encoded, len(encoded) - len(raw)


def _with_present_names(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload, or the fields of an amendment, with the present names of attributes.

    The field `amended` of a payload holds the size of the run as it was sent, and the amended fields.
    """
    renamed = dict(payload)
    if attributes := payload.get("attributes"):
        renamed["attributes"] = present_names(attributes)
    if amended := payload.get("amended"):
        size, fields = amended
        count = len(renamed.get("attributes", {}).keys() - (attributes or {}).keys())
        renamed["amended"] = [size + GROWTH * count, _with_present_names(fields)]
    return renamed


def _convert_resources(db: sqlite3.Connection) -> None:
    """Rename the keys of resources. Each distinct resource has one row.

    If a renamed resource equals another row, its spans get that row and its own row is deleted.
    """
    for row, data in db.execute("SELECT id, data FROM resources WHERE instr(data, ?)", (_MARK,)).fetchall():
        renamed = dumps(present_names(loads(data)))
        there = db.execute("SELECT id FROM resources WHERE data = ? AND id <> ?", (renamed, row)).fetchone()
        if there is None:
            db.execute("UPDATE resources SET data = ? WHERE id = ?", (renamed, row))
        else:
            db.execute("UPDATE spans SET resource = ? WHERE resource = ?", (there[0], row))
            db.execute("DELETE FROM resources WHERE id = ?", (row,))


def adopt_former_file(path: str) -> None:
    """Rename the database `assay.db` to `spanwise.db` if only the former exists. Likewise for other names that contain
    `spanwise`.

    The spool of data to be forwarded is renamed, too. The write-ahead log is emptied first. So a complete database
    exists under one of the two names even if the process is killed. Raises `Refused` if another process has the
    database open.
    """
    folder, name = os.path.split(path)
    former = os.path.join(folder, name.replace(PRESENT, FORMER, 1))
    if former == path or os.path.exists(path) or not os.path.isfile(former):
        return
    lock = FileLock(real_path(former))
    try:
        if not _is_former_database(lock.path):
            return
        if os.path.exists(lock.path + "-wal"):
            raise Refused(f"{former!r} is open in another process and must be renamed to {path!r}; end that process")
        with suppress(FileNotFoundError):
            os.rename(former + ".forward", path + ".forward")
        with suppress(FileNotFoundError):
            os.unlink(former + ".reserve")  # created again next to the renamed file
        os.rename(former, path)
    finally:
        lock.release()


def _is_former_database(path: str) -> bool:
    """Return whether a file is one of our databases from before the renaming. If so, copy its log into the file."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            if db.execute("PRAGMA application_id").fetchone()[0] != FORMER_APPLICATION_ID:
                return False
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.DatabaseError:
        return False
    return True
