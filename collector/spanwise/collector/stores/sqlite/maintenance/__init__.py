"""Maintenance: background threads, retention, deletion, integrity check, backup and recovery.

Modules, in the order in which data flows:

- `background_worker`: Background maintenance thread: full-text indexing, rollups and compression dictionaries.
- `rebuild_jobs`: Background jobs: rebuild trace summaries and stale hourly rollups, seal finished hours and days.
- `retention`: Retention: traces that the rules expire, and the thread that prunes them every hour.
- `deletion`: Deletion of traces with their feedback, evaluators' traces and index entries, in small transactions.
- `integrity`: Integrity check of the database, its size statistics, and removal of unused rows.
- `backup_restore`: Online backup of the database file, and restore from a backup.
- `recovery`: Recovery of readable rows from a damaged database into a new file.
- `inspection`: Read-only inspection of a database file for `spanwise db`: statistics, integrity check and SQL.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "background_worker",
    "backup_restore",
    "deletion",
    "inspection",
    "integrity",
    "retention",
]
