"""Database file: schema, connections, file lock, group commit and checkpoints of the write-ahead log.

Modules, in the order in which data flows:

- `file_lock`: Inter-process lock of the database file, and detection of a replaced or changed file.
- `connections`: Connections: settings, SQLite error translation, reader of stored runs, pool of read connections.
- `schema`: Tables, indexes and migrations of the database file.
- `score_sum_schema`: Tables and triggers of the weighted sums of scores (see `stores.sqlite.score_sums`).
- `name_conversion`: Conversion of files from before the product was renamed: names in the tables, and the name of the file.
- `store_clock`: Clock of a file: monotonic store time and change numbers, persisted in the table `feed`.
- `group_commit`: Writer thread: group commit, fsync of the write-ahead log, reserved disk space, checkpoints.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "connections",
    "file_lock",
    "group_commit",
    "name_conversion",
    "schema",
    "score_sum_schema",
    "store_clock",
]
