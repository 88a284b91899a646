"""Traces for one answer: small ones whole, large ones unread, so that neither their runs nor a connection wait in
memory for somebody who reads slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spanwise.collector.errors import TooLarge
from spanwise.collector.records import Trace
from spanwise.collector.stores._unread import Unread
from spanwise.collector.stores.sqlite import _summaries
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite.root_values import complete_root_of

LARGE, MOST = 1024 * 1024, 512 * 1024 * 1024  # bytes of payloads before compression
ROW = 500  # bytes of a row beside its payload


def unread(reader: Reader, trace_ids: Sequence[str]) -> Sequence[Trace | Unread]:
    """Traces in the order asked, either all of them whole or none."""
    around = _summaries.beside_runs(reader, trace_ids)
    size = sum(one.size for one in around.values())
    if size <= LARGE:
        return _summaries.whole(reader, around)
    if size > MOST:
        told = f"{size:,} bytes of runs are more than one answer holds, {MOST:,}: ask for fewer traces at once"
        raise TooLarge(f"{told}, or for the runs of one page by page")
    rows = reader.rows_of([one.key for one in around.values()])
    apart = reader.apart([row for some in rows.values() for row in some])
    return [_unread(reader, apart, trace_id, one, rows[one.key]) for trace_id, one in around.items()]


def _unread(reader: Reader, apart: Reader, trace_id: str, around: _summaries.Around, rows: Sequence[Any]) -> Unread:
    root_row = next(row for row in rows if row[3] == around.root)
    root = complete_root_of(reader, around.key, apart.run(trace_id, root_row))
    sizes = [len(row[2]) + ROW for row in rows]
    return Unread(root, rows, sizes, lambda row: root if row is root_row else apart.run(trace_id, row), *around.rest)
