"""Reader of examples: files, DataFrames, objects of other products, stored traces, the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from spanwise.collector.errors import require_extra
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.records import JSON, Example, ExampleNumbering, Trace, canonical_json, number_duplicates
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.datasets.column_mapping import (
    BadRow,
    Split,
    has_splits,
    in_split,
    normalize_example,
    read_split_rows,
    to_example,
)
from spanwise.evaluators.datasets.file_formats import READABLE_SUFFIXES, read_arrow, read_file_rows, read_frame
from spanwise.evaluators.interface import StoreLocation, open_store_location

# Hugging Face hub: datasets by id, read as a stream, so that only the rows that are used are downloaded.

HUB_PREFIX = "hf://"


def is_hub_id(source: Any) -> bool:
    """Return whether a dataset is named by its id on the hub, such as `hf://openai/gsm8k`."""
    return isinstance(source, str) and source.startswith(HUB_PREFIX)


def open_hub_dataset(source: str) -> Mapping[str, Any]:
    """Return the splits of a dataset by name, each of which is read while it is iterated.

    `source` is `hf://OWNER/NAME`, with an optional revision and configuration: `hf://openai/gsm8k@main#socratic`.
    The folder of a local dataset is accepted as well. Nothing is downloaded before the first row is read, except
    the description. Raises `ValueError` if there is no such dataset or configuration, or the hub does not answer.
    """
    with require_extra("hub", f"reading {source!r}"):
        from datasets import load_dataset

    name, _, configuration = source.removeprefix(HUB_PREFIX).partition("#")
    name, _, revision = name.partition("@")
    try:
        splits: Mapping[str, Any] = load_dataset(name, configuration or None, revision=revision or None, streaming=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot open the dataset {source!r}: {' '.join(str(error).split())}") from error
    return splits


# Reader of examples: files, DataFrames, objects of other products, stored traces.

_FRAME_METHODS = ("to_df", "to_dataframe")  # methods of MLflow's EvaluationDataset and of Phoenix's Dataset
# attributes of DeepEval's EvaluationDataset (the first two) and of Langfuse's dataset
_LIST_ATTRIBUTES = ("goldens", "test_cases", "items", "examples")


def unwrap_dataset(source: Any) -> Any:
    """Return the list of rows or the DataFrame in a product's dataset object, and any other source unchanged."""
    if isinstance(source, Iterable) and not hasattr(source, "to_df"):
        return source
    lists = [getattr(source, name, None) for name in _LIST_ATTRIBUTES]
    if any(isinstance(rows, list) for rows in lists):
        return [row for rows in lists if isinstance(rows, list) for row in rows]
    make = next((getattr(source, name) for name in _FRAME_METHODS if callable(getattr(source, name, None))), None)
    return source if make is None else make()


def object_fields(item: Any, where: str) -> Mapping[str, Any]:
    """Return the fields of a pydantic model, a dataclass, or an object with a method that makes a dict. Raises
    `BadRow`.
    """
    for name in ("model_dump", "to_dict", "dict"):
        dump = getattr(item, name, None)
        if not callable(dump) or isinstance(item, type):
            continue
        try:  # in pydantic's JSON mode, ids, times and enumerations become texts, as in files
            row = dump(mode="json") if name == "model_dump" else dump()
        except (TypeError, ValueError):
            if name != "model_dump":
                raise
            row = dump()
        if isinstance(row, Mapping):
            return row
    if is_dataclass(item) and not isinstance(item, type):
        return asdict(item)
    raise BadRow(f"{where} is {item!r:.120}, neither a dict nor an example")


PAGE_TRACES = 200


def from_traces(
    store: TraceStore | StoreLocation,
    trace_ids: Iterable[str] | None = None,
    *,
    corrections: Mapping[str, JSON] | None = None,
    outputs_are_references: bool = False,
    limit: int = 1000,
    filter: Filter | None = None,
    **conditions: object,
) -> list[Example]:
    """Return examples made from stored traces: the named ones, or those that match a filter, latest first.

    `corrections` maps trace ids to reference outputs. With `outputs_are_references`, the outputs of all other
    traces are their references. Outputs and retrieved documents are also kept as the example's `outputs` and
    `documents`. Traces with equal inputs become one example: that of the corrected trace, or of the first.

    `store` may be a path or URL. Raises `ValueError` for a correction of a trace that was not selected.
    """
    unused = dict(corrections or {})
    with open_store_location(cast(StoreLocation, store)) as opened:
        traces = read_traces(opened, trace_ids, limit=limit, filter=filter, **conditions)
        examples = [
            make_trace_example(trace, unused.pop(trace.trace_id, None), outputs_are_references) for trace in traces
        ]
    if unused:
        named = ", ".join(repr(id) for id in list(unused)[:3])
        raise ValueError(
            f"{len(unused)} corrections refer to traces that were not selected, such as {named}: name these traces, "
            "or widen the filter and the limit"
        )
    return deduplicate_inputs(examples, corrections or {})


def deduplicate_inputs(examples: Iterable[Example], corrected: Container[str] = ()) -> list[Example]:
    """Return one example per distinct inputs: the one whose trace was corrected, else the first. The ids in
    `corrected` are those of corrected traces.

    Contradictory corrections are all kept: one is wrong, and only a person can decide which.
    """
    by_inputs: dict[bytes, list[Example]] = {}
    for example in examples:
        same = by_inputs.setdefault(canonical_json(example.inputs), [])
        if not same:
            same.append(example)
        elif example.id in corrected:
            others = [other for other in same if other.id in corrected]
            if all(other.reference_outputs != example.reference_outputs for other in others):
                same[:] = [*others, example]
    return [example for same in by_inputs.values() for example in same]


def read_traces(
    store: TraceStore,
    trace_ids: Iterable[str] | None = None,
    *,
    limit: int = 1000,
    filter: Filter | None = None,
    **conditions: object,
) -> Iterator[Trace]:
    """Yield complete traces, one page at a time: the named ones in that order, or those that match, latest first."""
    if trace_ids is not None:
        named = list(trace_ids)
        for start in range(0, len(named), PAGE_TRACES):
            yield from store.many(named[start : start + PAGE_TRACES])
        return
    wanted, cursor = extend_filter(filter, conditions), None
    while limit > 0:
        page = store.traces(wanted, limit=min(PAGE_TRACES, limit), cursor=cursor)
        yield from store.many([summary.trace_id for summary in page])
        limit, cursor = limit - len(page), page.next
        if cursor is None:
            return


def make_trace_example(trace: Trace, correction: JSON = None, outputs_are_references: bool = False) -> Example:
    """Return the example of a trace, with the trace's id."""
    root = trace.root
    reference = root.outputs if correction is None and outputs_are_references else correction
    details: dict[str, Any] = {"trace_id": trace.trace_id, "name": root.name, "project": root.project}
    return Example(
        id=trace.trace_id,
        inputs=root.inputs,
        reference_outputs=reference,
        outputs=root.outputs,
        documents=trace.documents or None,
        metadata={**root.metadata, **details},
    )


def read(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    split: Split = None,
    encoding: str | None = None,
    outputs_are_references: bool = False,
) -> list[Example]:
    """Return all examples of a file (by its suffix), a DataFrame, an Arrow table, another product's dataset, or a list
    of rows. A text such as `hf://openai/gsm8k` names a dataset of the Hugging Face hub, which is streamed.

    A row is a dict, an `Example`, a trace, or an object of another product. `columns` renames columns first, as in
    {"gold": "reference_outputs", "q": "inputs.question"}. `split` selects one split or several. It is required for a
    source with several splits, such as a Hugging Face `DatasetDict`.

    `encoding` is that of a text file which is neither UTF-8 nor has a byte order mark. With
    `outputs_are_references`, the outputs of a row without a reference are its reference, as in LangSmith's
    rows. Duplicate ids get numbers (see `number_duplicates`). Raises `BadRow`, which names file and line.
    """
    return number_duplicates(_read_examples(source, columns, split, encoding, outputs_are_references))


def iterate(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    split: Split = None,
    encoding: str | None = None,
    outputs_are_references: bool = False,
) -> Iterator[Example]:
    """Yield the examples one by one. JSON lines, CSV, Parquet, hub datasets and generators are never loaded as a whole.

    A row without an id gets an id derived from its inputs. If the id of a row is already taken, a number is appended
    to it.
    """
    numbering = ExampleNumbering()
    examples = _read_examples(source, columns, split, encoding, outputs_are_references)
    return (numbering.of(example) for example in examples)


def is_file(source: Any) -> bool:
    """Return whether the source is a path: a `Path`, a text with the suffix of an example file, or the name of a
    file.
    """
    if not isinstance(source, str):
        return isinstance(source, Path)
    return source.lower().endswith(READABLE_SUFFIXES) or (
        "." in source and "\0" not in source and Path(source).is_file()
    )


def _read_examples(
    source: Any, columns: Mapping[str, str] | None, split: Split, encoding: str | None, outputs_are_references: bool
) -> Iterator[Example]:
    if encoding is not None and not is_file(source):
        raise ValueError(f"encoding={encoding!r} applies only to text files, not to {source!r:.80}")
    for where, row in _source_rows(source, split, encoding):
        if isinstance(row, Example):
            example = normalize_example(row)
        elif isinstance(row, Trace):
            example = make_trace_example(row)
        else:
            fields = row if isinstance(row, Mapping) else object_fields(row, where)
            if fields.get("status") == "ARCHIVED":
                continue
            example = to_example(fields, where=where, columns=columns)
            if outputs_are_references:
                example = use_outputs_as_reference(example)
        if in_split(example, split):
            yield example


def _source_rows(source: Any, split: Split, encoding: str | None) -> Iterable[tuple[str, Any]]:
    if is_file(source):
        return read_file_rows(Path(source), encoding)
    if is_hub_id(source):
        source = open_hub_dataset(source)
    if has_splits(source):
        return read_split_rows(source, split)
    source = unwrap_dataset(source)
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        return read_frame(source)
    if hasattr(source, "collect_schema") and not hasattr(source, "iter_rows"):  # a polars LazyFrame
        source = source.collect()
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):  # a polars DataFrame
        source = source.iter_rows(named=True)
    elif hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return read_arrow(source)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        return ((f"example {number}", row) for number, row in enumerate(source, 1))
    raise ValueError(
        f"a dataset must be a name, a path ({', '.join(READABLE_SUFFIXES)}), a DataFrame or a list of examples, got {source!r:.120}"
    )


def use_outputs_as_reference(example: Example) -> Example:
    """Return the example with its outputs as its reference, if it has none."""
    if example.reference_outputs is not None or example.outputs is None:
        return example
    return replace(example, reference_outputs=example.outputs, outputs=None)
