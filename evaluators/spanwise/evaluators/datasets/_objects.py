"""Objects of other products: their datasets, and their examples, items, goldens, test cases and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from spanwise.evaluators.datasets._columns import BadRow

_TABLES = ("to_df", "to_dataframe")  # of MLflow's EvaluationDataset, of Phoenix's Dataset
_LISTS = (
    "goldens",
    "test_cases",
    "items",
    "examples",
)  # of DeepEval's EvaluationDataset (the first two), of Langfuse's


def held_by(source: Any) -> Any:
    """What a product's dataset holds: a list of rows, or a DataFrame; anything else as it is."""
    if isinstance(source, Iterable) and not hasattr(source, "to_df"):
        return source
    lists = [getattr(source, name, None) for name in _LISTS]
    if any(isinstance(rows, list) for rows in lists):
        return [row for rows in lists if isinstance(rows, list) for row in rows]
    make = next((getattr(source, name) for name in _TABLES if callable(getattr(source, name, None))), None)
    return source if make is None else make()


def fields_of(item: Any, where: str) -> Mapping[str, Any]:
    """A row that is an object: a pydantic model, a dataclass, or what turns itself into a dict. Raises `BadRow`."""
    for name in ("model_dump", "to_dict", "dict"):
        dump = getattr(item, name, None)
        if callable(dump) and not isinstance(item, type):
            row = _plain(dump) if name == "model_dump" else dump()
            if isinstance(row, Mapping):
                return row
    if is_dataclass(item) and not isinstance(item, type):
        return asdict(item)
    raise BadRow(f"{where} is {item!r:.120}, neither a dict nor an example")


def _plain(dump: Any) -> Any:
    """JSON's own types where all has one: ids, times and enumerations are texts then, as in files."""
    try:
        return dump(mode="json")
    except (TypeError, ValueError):
        return dump()
