"""Database file: schema, connections, file lock, group commit and checkpoints of the write-ahead log.

Modules, in the order in which data flows:

- `file_lock`: Inter-process lock: one process may write the database; forked children do not inherit it.
- `connections`: Connections: settings, SQLite error translation, reader of stored runs, pool of read connections.
- `schema`: Tables, indexes and migrations of the database file.
- `score_sum_schema`: Tables and triggers of the weighted sums of scores (see `stores.sqlite.score_sums`).
- `name_conversion`: Conversion of files from before the product was renamed: names in the tables, and the name of the file.
- `column_values`: Column values: JSON of plain values and records, hashes of ids.
- `bulk_statements`: SQL statements for many rows or values at once, and cursors of pages.
- `store_clock`: Monotonic store time and change numbers, persisted in the `feed` table.
- `file_watch`: Detection of a replaced database file or write-ahead log, and of writes by other programs.
- `group_commit`: Writer thread: group commit, fsync of the write-ahead log, and disk space reserved for deletions.
- `wal_checkpoint`: Checkpoint thread: copies the write-ahead log into the database while the writer continues.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "bulk_statements",
    "column_values",
    "connections",
    "file_lock",
    "file_watch",
    "group_commit",
    "name_conversion",
    "schema",
    "score_sum_schema",
    "store_clock",
    "wal_checkpoint",
]
