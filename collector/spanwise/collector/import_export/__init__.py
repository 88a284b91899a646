"""Export of a store to files and import from files, as OTLP or JSON Lines.

Modules, in the order in which data flows:

- `otlp_json`: OTLP JSON encoding of runs and feedback that decodes to equal records.
- `file_exporter`: File exporter: all records of a store, or the traces that pass a filter, line by line.
- `file_importer`: File importer: idempotent import of OTLP and JSON Lines in batches.
"""

from spanwise.collector.import_export.file_exporter import FORMATS, export_lines, write_file
from spanwise.collector.import_export.file_importer import ImportResult, import_file

__all__ = ["FORMATS", "ImportResult", "export_lines", "import_file", "write_file"]
