"""Export of a store to files and import from files, as OTLP or JSON Lines; flat tables for analysis.

Modules, in the order in which data flows:

- `record_files`: Files of records, as OTLP JSON and JSON Lines: export of a store, and idempotent import in batches.
- `store_copy`: Copy of a whole store into another one: all records with their numbers, resumable, compared day by day
  at the end.
- `table_files`: Flat tables in files: Parquet, CSV, JSON Lines, and a SQLite copy of a store for analysis.
"""

from spanwise.collector.import_export.record_files import FORMATS, ImportResult, export_lines, import_file, write_file
from spanwise.collector.import_export.store_copy import (
    Contents,
    copy_store,
    find_state_file,
    open_source,
    open_target,
    summarize,
)
from spanwise.collector.import_export.table_files import (
    ALL_TABLES,
    TABLE_FORMATS,
    write_analysis_copy,
    write_stream,
    write_tables,
)

__all__ = [
    "ALL_TABLES",
    "FORMATS",
    "TABLE_FORMATS",
    "Contents",
    "ImportResult",
    "copy_store",
    "export_lines",
    "find_state_file",
    "import_file",
    "open_source",
    "open_target",
    "summarize",
    "write_analysis_copy",
    "write_file",
    "write_stream",
    "write_tables",
]
