"""Layouts of rows that the names of columns alone do not tell, brought to columns that do.

MLflow: expectations, a search's traces with assessments. DeepEval: context is what should have been retrieved,
retrieval_context what was; turns of a conversation. OpenAI's chat lines: messages, the last of which is the reference.
Phoenix: input_question and so on in CSV; spans with attributes.input.value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import orjson

from spanwise.collector.records import JSON

Columns: TypeAlias = dict[str, JSON]

# Empty columns that are kept nevertheless where a row is read, as it is they that tell the layout.
TELLING = frozenset({"retrieval_context", "additional_metadata"})
_PREFIXES = {"input": "inputs", "output": "reference_outputs", "metadata": "metadata"}
_OF_DEEPEVAL = frozenset({"context", *TELLING})
_OF_MLFLOW_TRACES = frozenset({"trace_id", "request", "response", "assessments"})
_OF_MLFLOW = frozenset({"expectations", "dataset_record_id"})
_SPAN = "attributes."  # begins most columns of a DataFrame of Phoenix's spans
_SPAN_INPUTS = "attributes.input.value"


def laid_out(row: Columns) -> Columns:
    """The row, in columns whose names say what they are."""
    if row.keys() >= _OF_MLFLOW_TRACES:
        row = _of_mlflow_trace(row)
    if isinstance(expected := row.get("expectations"), Mapping):
        row = {name: value for name, value in row.items() if name != "expectations"} | dict(expected)
        row = {
            name: value for name, value in row.items() if name != "outputs" or value != {}
        }  # what MLflow has of none
    if "retrieval_context" in row and "context" in row:
        row = _of_deepeval(row)
    if _SPAN_INPUTS in row:
        return _of_span(row)
    if not (row.keys() & {"inputs", "input", "request"}):
        if "messages" in row:
            return _of_messages(row)
        if "scenario" in row or "turns" in row:
            return _of_turns(row)
    return _of_prefixes(row) if "example_id" in row else row


def _of_mlflow_trace(row: Columns) -> Columns:
    """A row of `mlflow.search_traces()`: what was asked and answered, and what people expected."""
    assessments = row["assessments"] if isinstance(row["assessments"], list) else []
    said = [one for one in assessments if isinstance(one, Mapping) and "expectation" in one]
    expected = {str(one.get("assessment_name")): _value(one["expectation"]) for one in said}
    named = {name: row[name] for name in ("request", "response")}
    return {**named, "expectations": expected, "metadata": {"trace_id": row["trace_id"]}}


def _value(expectation: JSON) -> JSON:
    return expectation.get("value") if isinstance(expectation, Mapping) else expectation


def _of_deepeval(row: Columns) -> Columns:
    """Its saved goldens join the texts of a context by bars."""
    named = {"expected_documents" if name == "context" else name: value for name, value in row.items()}
    for name in ("expected_documents", "retrieval_context") if row.keys() >= _OF_DEEPEVAL else ():
        if isinstance(joined := named[name], str):
            named[name] = joined.split("|")
    return named


def _of_turns(row: Columns) -> Columns:
    """A conversation of DeepEval: what the assistant says last is what was answered; without turns, a scenario."""
    turns = row.get("turns")
    rest = {"reference_outputs" if name == "expected_outcome" else name: value for name, value in row.items()}
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, Mapping) for turn in turns):
        return {"inputs.scenario" if name == "scenario" else name: value for name, value in rest.items()}
    del rest["turns"]
    said = [{"role": turn.get("role"), "content": turn.get("content")} for turn in turns]
    if said[-1]["role"] != "assistant":
        return {"inputs": {"input": said}, **rest}
    return {"inputs": {"input": said[:-1]}, "outputs": {"output": said[-1]}, **rest}


def _of_span(row: Columns) -> Columns:
    """A span of Phoenix's or Arize's, whose attributes are OpenInference's."""
    retrieved = row.get("attributes.retrieval.documents")
    named: Columns = {"inputs": _of_mime(row, "input"), "outputs": _of_mime(row, "output")}
    if isinstance(retrieved, list):
        named["documents"] = [
            {name.removeprefix("document."): value for name, value in one.items()}
            for one in retrieved
            if isinstance(one, Mapping)
        ]
    others = {name: value for name, value in row.items() if not name.startswith(_SPAN) and name != "parent_id"}
    return {**others, **named}


def _of_mime(row: Columns, side: str) -> JSON:
    value = row.get(f"{_SPAN}{side}.value")
    if isinstance(value, str) and row.get(f"{_SPAN}{side}.mime_type") == "application/json":
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _of_messages(row: Columns) -> Columns:
    """A line for fine-tuning: what the assistant says last is the reference, everything before is what it is given."""
    turns = row["messages"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[-1], Mapping):
        return row
    rest = {name: value for name, value in row.items() if name != "messages"}
    if turns[-1].get("role") != "assistant":
        return {"inputs": {"input": turns}, **rest}
    return {"inputs": {"input": turns[:-1]}, "reference_outputs": {"output": turns[-1]}, **rest}


def _of_prefixes(row: Columns) -> Columns:
    """Phoenix's CSV, where every other column says by its beginning what it is."""
    split = {name: name.partition("_") for name in row if name != "example_id"}
    if not split or not {head for head, _, part in split.values() if part} <= _PREFIXES.keys():
        return row
    if not all(part for _, _, part in split.values()):
        return row
    named = {name: f"{_PREFIXES[head]}.{part}" for name, (head, _, part) in split.items()}
    return {named.get(name, name): value for name, value in row.items()}
