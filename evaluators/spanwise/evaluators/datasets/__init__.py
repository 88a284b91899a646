"""Datasets: read from and written to files, DataFrames, other products' exports and traces; checked, compared, kept."""

from spanwise.evaluators.datasets._align import stored_examples
from spanwise.evaluators.datasets._columns import BadRow, to_example
from spanwise.evaluators.datasets._files import cell
from spanwise.evaluators.datasets._generate import ModelSaid, generate
from spanwise.evaluators.datasets._keep import Diff, deduplicate, diff, keep, save
from spanwise.evaluators.datasets._kinds import check_kind, kind_of, view, view_outputs
from spanwise.evaluators.datasets._read import is_file, iterate, read
from spanwise.evaluators.datasets._schema import SchemaError, check_schema, infer_schema
from spanwise.evaluators.datasets._splits import has_splits, in_split
from spanwise.evaluators.datasets._traces import example_of_trace, from_traces, one_per_input, stored_traces
from spanwise.evaluators.datasets._write import to_databricks, to_openai, to_pandas, to_row, write, write_rows
from spanwise.evaluators.protocol import messages, only

__all__ = [
    "BadRow",
    "Diff",
    "ModelSaid",
    "SchemaError",
    "cell",
    "check_kind",
    "check_schema",
    "deduplicate",
    "diff",
    "example_of_trace",
    "from_traces",
    "generate",
    "has_splits",
    "in_split",
    "infer_schema",
    "is_file",
    "iterate",
    "keep",
    "kind_of",
    "messages",
    "one_per_input",
    "only",
    "read",
    "save",
    "stored_examples",
    "stored_traces",
    "to_databricks",
    "to_example",
    "to_openai",
    "to_pandas",
    "to_row",
    "view",
    "view_outputs",
    "write",
    "write_rows",
]
