"""Examples out to files, DataFrames and fine-tuning formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from spanwise.collector.records import JSON, Document, Example
from spanwise.evaluators.protocol import messages, only

if TYPE_CHECKING:
    import pandas

Format = Literal["spanwise", "openai", "databricks"]
_ORDER = (
    "id",
    "inputs",
    "reference_outputs",
    "outputs",
    "documents",
    "expected_documents",
    "conditions",
    "guidelines",
    "categories",
    "history",
    "base_id",
    "split",
    "metadata",
)
_MAY_BE_EMPTY = ("categories", "metadata")


def write(examples: Iterable[Example], path: str | Path, *, format: Format = "spanwise") -> int:
    """Write examples to a file by its ending (JSONL, JSON, CSV, TSV, YAML); returns how many there were.

    `format="openai"` is chat JSONL for fine-tuning, `format="databricks"` uses the columns of its evaluation sets.
    CSV keeps texts: numbers and truth values come back as texts, lists and objects as they were.
    """
    path = Path(path)
    if format not in ROWS:
        raise ValueError(f"there is no format {format!r}: known are {', '.join(ROWS)}")
    return write_rows([ROWS[format](example) for example in examples], path)


def write_rows(rows: list[dict[str, JSON]], path: Path) -> int:
    """Write plain dicts to a file by its ending; in CSV what is no text is JSON. Returns how many there were."""
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"cannot write {path.name!r}: known are {', '.join(_WRITERS)}")
    path.write_bytes(writer(rows))
    return len(rows)


def to_row(example: Example) -> dict[str, JSON]:
    """An example as one plain dict without what it has not; `read` understands it."""
    filled = {name: getattr(example, name) for name in _ORDER if name not in _MAY_BE_EMPTY or getattr(example, name)}
    return {name: _json_value(value) for name, value in filled.items() if value is not None or name == "inputs"}


def to_openai(example: Example) -> dict[str, JSON]:
    """One line of OpenAI's chat fine-tuning format: the conversation, then the reference as the assistant's turn.

    Raises `ValueError` when there is no reference, or inputs are neither a text nor messages.
    """
    if example.reference_outputs is None:
        raise ValueError(f"example {example.id[:12]} has no reference outputs to train on")
    return {"messages": _conversation(example) + _answer(example)}


def to_databricks(example: Example) -> dict[str, JSON]:
    """One row of a Databricks evaluation set."""
    row = {
        "request_id": example.id,
        "request": example.inputs,
        "response": example.outputs,
        "expected_response": example.reference_outputs,
        "retrieved_context": _uris(example.documents),
        "expected_retrieved_context": _uris(example.expected_documents),
        "guidelines": example.guidelines,
    }
    return {name: value for name, value in row.items() if value is not None}


def to_pandas(examples: Iterable[Example]) -> pandas.DataFrame:
    """One row per example, dicts and lists in their cells."""
    import pandas

    return pandas.DataFrame([to_row(example) for example in examples])


ROWS: Mapping[str, Callable[[Example], dict[str, JSON]]] = {
    "spanwise": to_row,
    "openai": to_openai,
    "databricks": to_databricks,
}


def _json_value(value: Any) -> JSON:
    if isinstance(value, tuple):
        return [_document(item) if isinstance(item, Document) else item for item in value]
    return value


def _document(document: Document) -> dict[str, JSON]:
    return {name: value for name, value in asdict(document).items() if value not in (None, {}) or name == "content"}


def _uris(documents: tuple[Document, ...] | None) -> list[dict[str, JSON]] | None:
    if documents is None:
        return None
    return [
        {"content": document.content, **({"doc_uri": document.id} if document.id else {})} for document in documents
    ]


def _conversation(example: Example) -> list[JSON]:
    asked = only(example.inputs)
    earlier = messages(example.history)
    if isinstance(asked, str):
        return [*earlier, {"role": "user", "content": asked}]
    if turns := messages(asked):
        return [*earlier, *turns]
    raise ValueError(f"example {example.id[:12]}: inputs {example.inputs!r:.120} are neither one text nor messages")


def _answer(example: Example) -> list[JSON]:
    reference = only(example.reference_outputs)
    if turns := messages(reference):
        return list(turns)
    text = reference if isinstance(reference, str) else orjson.dumps(reference).decode()
    return [{"role": "assistant", "content": text}]


def _json_lines(rows: list[dict[str, JSON]]) -> bytes:
    return b"".join(_dumps(row) + b"\n" for row in rows)


def _json(rows: list[dict[str, JSON]]) -> bytes:
    return orjson.dumps(rows, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"


def _yaml(rows: list[dict[str, JSON]]) -> bytes:
    from spanwise.evaluators.datasets import yaml_format

    return yaml_format.dump(orjson.loads(_json(rows))).encode()


def _csv(rows: list[dict[str, JSON]], delimiter: str = ",") -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, delimiter=delimiter)
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _cell(value: JSON) -> str:
    """Texts as they are, unless reading them would take them for JSON; nothing is an empty cell."""
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] not in ("{", "[", '"') and value:
        return value
    return _dumps(value).decode()


def _dumps(value: JSON) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


_WRITERS: Mapping[str, Callable[[list[dict[str, JSON]]], bytes]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": lambda rows: _csv(rows, "\t"),
    ".yaml": _yaml,
    ".yml": _yaml,
}
