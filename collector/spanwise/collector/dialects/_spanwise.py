"""Spanwise's own names, for what no convention has. The counts of spans stay attributes: the store reads them there."""

from __future__ import annotations

from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._keys import TAKEN
from spanwise.collector.dialects._values import count, documents, from_json, text
from spanwise.collector.dialects.reported_costs import dollars
from spanwise.tracer import attributes as names


@found_in(*TAKEN)
def spanwise(draft: Draft) -> None:
    """Take documents, cost and the experiment's ids."""
    attributes, fields = draft.attributes, draft.fields
    if names.DOCUMENTS_JSON in attributes and (retrieved := documents(from_json(attributes[names.DOCUMENTS_JSON]))):
        fields["documents"] = retrieved
        del attributes[names.DOCUMENTS_JSON]
    if names.COST in attributes and (cost := dollars(attributes[names.COST])) is not None:
        fields["cost"] = cost
        del attributes[names.COST]
    if names.EXPERIMENT in attributes:
        _experiment(draft)


def _experiment(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    fields["experiment_id"] = text(attributes.pop(names.EXPERIMENT))
    fields["example_id"] = text(attributes.pop(names.EXAMPLE, None))
    fields["repetition"] = count(attributes.pop(names.REPETITION, 0)) or 0
