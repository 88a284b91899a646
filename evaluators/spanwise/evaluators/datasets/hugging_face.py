"""Hugging Face hub: datasets by id, read as a stream, so that only the rows that are used are downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.errors import require_extra

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
