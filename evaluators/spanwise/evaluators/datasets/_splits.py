"""Splits: an example belongs to the one under `split`, and to those under its metadata's "dataset_split".

That is where LangSmith keeps them, which lets an example be in several; `split` is the first of them but "base", in
which LangSmith has all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from spanwise.collector.records import Example

Split: TypeAlias = str | Sequence[str] | None
SEVERAL = "dataset_split"


def in_split(example: Example, split: Split) -> bool:
    """Whether an example is in a split, or in one of several; None is all."""
    if split is None:
        return True
    wanted = {split} if isinstance(split, str) else set(split)
    several = example.metadata.get(SEVERAL)
    of_it = several if isinstance(several, list | tuple) else [several]
    return example.split in wanted or any(isinstance(name, str) and name in wanted for name in of_it)


def has_splits(source: Any) -> bool:
    """Whether a source is several datasets by name, as Hugging Face's `DatasetDict` and `IterableDatasetDict` are."""
    return (
        isinstance(source, Mapping) and bool(source) and all(hasattr(part, "column_names") for part in source.values())
    )


def rows_of_splits(source: Mapping[str, Any], split: Split) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Rows of the splits that are asked for, each with its name. Raises `ValueError`, which names those there are."""
    for name in _chosen(source, split):
        for number, row in enumerate(source[name], 1):
            own = {"metadata.split" if column == "split" else column: value for column, value in row.items()}
            yield f"split {name!r}, example {number}", {**own, "split": name}


def _chosen(source: Mapping[str, Any], split: Split) -> Sequence[str]:
    there = ", ".join(f"{name!r}{_size(part)}" for name, part in source.items())
    if split is None and len(source) > 1:
        first = next(iter(source))
        raise ValueError(
            f"a {type(source).__name__} has several splits: say split={first!r}, or a list; it has {there}"
        )
    names = list(source) if split is None else [split] if isinstance(split, str) else list(split)
    if absent := [name for name in names if name not in source]:
        raise ValueError(f"there is no split {absent[0]!r}: the {type(source).__name__} has {there}")
    return names


def _size(part: Any) -> str:
    return f" ({len(part):,})" if hasattr(part, "__len__") else ""
