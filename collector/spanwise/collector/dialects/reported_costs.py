"""What a sender says that a call has cost, under any of the names in use."""

from __future__ import annotations

from spanwise.collector.dialects._draft import Draft
from spanwise.collector.dialects._keys import PARTIAL_COSTS, TOTAL_COSTS
from spanwise.collector.dialects._values import number
from spanwise.collector.records import JSON

SUMMED = ("agent", "chain")  # kinds whose spans repeat the costs of calls below them


def take_reported_cost(draft: Draft) -> None:
    """Fill in the cost that a sender reports; spans that repeat the sum of the calls below them have none."""
    attributes, fields = draft.attributes, draft.fields
    if draft.sums or (fields.get("kind") in SUMMED and "decision" not in draft.namespaces):
        return
    for name in TOTAL_COSTS:
        if (cost := dollars(attributes.get(name))) is not None:
            fields["cost"] = cost
            del attributes[name]
            return
    for pair in PARTIAL_COSTS:
        parts = [part for name in pair if (part := dollars(attributes.get(name))) is not None]
        if len(parts) == len(pair):
            fields["cost"] = sum(parts)
            return


def dollars(value: JSON) -> float | None:
    """Return a cost in US dollars: a finite number that is not negative, also out of a text; else None."""
    cost = number(value)
    return cost if cost is not None and cost >= 0 else None
