"""Maintenance: background threads, retention, deletion, integrity check, backup and recovery.

Modules, in the order in which data flows:

- `background_jobs`: Background threads: full-text indexing, rollups, rebuilds, compression dictionaries, retention.
- `deletion`: Deletion of traces with their feedback, evaluators' traces and index entries, in small transactions.
- `integrity`: Integrity check of the database, its size statistics, and removal of unused rows.
- `backup_and_recovery`: Operations on a database file for `spanwise db`: inspection, backup, restore, recovery of
  damaged files.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "background_jobs",
    "backup_and_recovery",
    "deletion",
    "integrity",
]
