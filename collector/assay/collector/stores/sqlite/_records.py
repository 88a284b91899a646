"""Small records as JSON text and back: what the control tables keep in their `data` columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from assay.collector.records import Document, Example, Experiment, Key, QueueItem, Rule, Target
from assay.collector.stores.sqlite._values import dumps, loads


def to_text(record: Example | Experiment | Rule | Key | QueueItem) -> str:
    """A record as JSON."""
    try:
        return orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return dumps(asdict(record))


def example(text: str) -> Example:
    """An example from its JSON."""
    data = loads(text)
    data["expected_documents"] = _documents(data["expected_documents"])
    data["documents"] = _documents(data["documents"])
    data["categories"] = tuple(data["categories"])
    return Example(**data)


def _documents(data: list[Mapping[str, Any]] | None) -> tuple[Document, ...] | None:
    return None if data is None else tuple(Document(**document) for document in data)


def experiment(text: str) -> Experiment:
    """An experiment from its JSON."""
    data = loads(text)
    return Experiment(**{**data, "evaluators": tuple(data["evaluators"])})


def rule(text: str) -> Rule:
    """A rule from its JSON."""
    data = loads(text)
    return Rule(**{**data, "evaluators": tuple(data["evaluators"])})


def key(text: str) -> Key:
    """An API key's record from its JSON."""
    data = loads(text)
    return Key(**{**data, "scopes": tuple(data["scopes"])})


def queue_item(text: str) -> QueueItem:
    """An item of an annotation queue from its JSON."""
    data = loads(text)
    return QueueItem(**{**data, "target": Target(**data["target"])})
