"""Datasets: reading, writing, storing and generating examples.

Modules, in the order in which data flows:

- `column_mapping`: Column mapping: names and layouts of other products to the fields of an example; splits.
- `file_formats`: File formats of datasets: reading and writing JSON Lines, JSON, CSV, YAML, Parquet; reading
  Arrow tables, Excel.
- `example_reader`: Reader of examples: files, DataFrames, objects of other products, stored traces, the Hugging Face
  hub.
- `yaml_format`: YAML 1.2 scalars for PyYAML: only true and false are booleans, dates stay texts.
- `stored_datasets`: Datasets in a store: saving versions, kinds, JSON Schemas, matching by inputs,
  differences.
- `example_generation`: Generated examples: questions and variations by a model, and perturbed copies of examples.
- `text_perturbation`: Kinds of text perturbations, the parts of a text that they keep, and synonyms of WordNet.
"""

from spanwise.evaluators.datasets.column_mapping import BadRow, has_splits, in_split, to_example
from spanwise.evaluators.datasets.example_generation import ModelSaid, PerturbedDataset, generate, perturb
from spanwise.evaluators.datasets.example_reader import (
    deduplicate_inputs,
    from_traces,
    is_file,
    is_hub_id,
    iterate,
    make_trace_example,
    open_hub_dataset,
    read,
    read_traces,
)
from spanwise.evaluators.datasets.file_formats import (
    parse_cell,
    to_databricks,
    to_openai,
    to_pandas,
    to_row,
    write,
    write_rows,
)
from spanwise.evaluators.datasets.stored_datasets import (
    Diff,
    SchemaError,
    check_kind,
    check_schema,
    deduplicate,
    diff,
    infer_kind,
    infer_schema,
    save,
    store_examples,
    stored_examples,
    view_example,
    view_outputs,
)
from spanwise.evaluators.interface import to_messages, unwrap_single_value

__all__ = [
    "BadRow",
    "Diff",
    "ModelSaid",
    "PerturbedDataset",
    "SchemaError",
    "check_kind",
    "check_schema",
    "deduplicate",
    "deduplicate_inputs",
    "diff",
    "from_traces",
    "generate",
    "has_splits",
    "in_split",
    "infer_kind",
    "infer_schema",
    "is_file",
    "is_hub_id",
    "iterate",
    "make_trace_example",
    "open_hub_dataset",
    "parse_cell",
    "perturb",
    "read",
    "read_traces",
    "save",
    "store_examples",
    "stored_examples",
    "to_databricks",
    "to_example",
    "to_messages",
    "to_openai",
    "to_pandas",
    "to_row",
    "unwrap_single_value",
    "view_example",
    "view_outputs",
    "write",
    "write_rows",
]
