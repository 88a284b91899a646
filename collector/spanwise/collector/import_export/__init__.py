"""Export of a store to files and import from files, as OTLP or JSON Lines; flat tables for analysis.

Modules, in the order in which data flows:

- `otlp_json`: OTLP JSON encoding of runs and feedback that decodes to equal records.
- `file_exporter`: File exporter: all records of a store, or the traces that pass a filter, line by line.
- `file_importer`: File importer: idempotent import of OTLP and JSON Lines in batches.
- `table_files`: Files of flat tables: Parquet, CSV and JSON Lines, written page by page.
- `analysis_copy`: Copy of a store for analysis: a SQLite database with flat tables, full-text search and views, made by sqlite-utils.
"""

from spanwise.collector.import_export.analysis_copy import write_analysis_copy
from spanwise.collector.import_export.file_exporter import FORMATS, export_lines, write_file
from spanwise.collector.import_export.file_importer import ImportResult, import_file
from spanwise.collector.import_export.table_files import ALL_TABLES, TABLE_FORMATS, write_stream, write_tables

__all__ = [
    "ALL_TABLES",
    "FORMATS",
    "TABLE_FORMATS",
    "ImportResult",
    "export_lines",
    "import_file",
    "write_analysis_copy",
    "write_file",
    "write_stream",
    "write_tables",
]
