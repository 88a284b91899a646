"""Assay's own names, for what no convention has. The counts of spans stay attributes: the store reads them there."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from assay.collector.dialects._values import count, documents, from_json, number, text
from assay.tracer import attributes as names


def read(attributes: dict[str, Any], draft: dict[str, Any], namespaces: Set[str]) -> None:
    """Take documents, cost and the experiment's ids."""
    if "assay" not in namespaces:
        return
    if names.DOCUMENTS_JSON in attributes and (found := documents(from_json(attributes[names.DOCUMENTS_JSON]))):
        draft["documents"] = found
        del attributes[names.DOCUMENTS_JSON]
    if names.COST in attributes and (cost := number(attributes[names.COST])) is not None:
        draft["cost"] = cost
        del attributes[names.COST]
    if names.EXPERIMENT in attributes:
        _experiment(attributes, draft)


def _experiment(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    draft["experiment_id"] = text(attributes.pop(names.EXPERIMENT))
    draft["example_id"] = text(attributes.pop(names.EXAMPLE, None))
    draft["repetition"] = count(attributes.pop(names.REPETITION, 0)) or 0
