"""The short way of spans that say no more than their kind, what came in and went out, and whose they are.

Most steps of a program are such. What is read here equals what the dialects make of the same span (a test compares
them, on all that senders have sent); what another of them, or a rarer part of OpenInference, may take goes their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from spanwise.collector.dialects._draft import Dialect, Draft
from spanwise.collector.dialects._faults import name_of
from spanwise.collector.dialects._haystack import OPERATIONS
from spanwise.collector.dialects._keys import COSTS
from spanwise.collector.dialects._openinference import FEEDBACK, FILES, KINDS, RARE, WHOSE, whose
from spanwise.collector.dialects._values import from_json
from spanwise.tracer import attributes as names

FINDS = ("retriever", "reranker")  # kinds whose outputs may be documents
# Dialects that find nothing in such spans: beside OpenInference those that are given all
IDLE = frozenset(("openinference", "haystack", "evaluations", "retrieval", "prices"))
NEVER = frozenset(("haystack", *RARE, *FEEDBACK, *FILES, *COSTS))  # namespaces
JSON_TYPE = "application/json"


def may_be_simple(dialects: Iterable[Dialect], namespaces: Set[str]) -> bool:
    """Whether a span may be, with these namespaces, which is given to these dialects."""
    return NEVER.isdisjoint(namespaces) and IDLE.issuperset(map(name_of, dialects))


def simple(draft: Draft) -> bool:
    """Read such a span; whether it is one. If it is not, nothing has been taken from it."""
    span, attributes, fields = draft.span, draft.attributes, draft.fields
    if span.events or span.name in OPERATIONS:
        return False
    value = attributes.get(names.KIND)
    if value is not None:
        kind = KINDS.get(value) if isinstance(value, str) else None
        if kind is None or kind in FINDS:
            return False
        fields["kind"] = kind
        del attributes[names.KIND]
    if names.INPUT_VALUE in attributes:
        value = attributes.pop(names.INPUT_VALUE)
        fields["inputs"] = from_json(value) if attributes.pop(names.INPUT_MIME, None) == JSON_TYPE else value
    if names.OUTPUT_VALUE in attributes:
        value = attributes[names.OUTPUT_VALUE]
        value = from_json(value) if attributes.get(names.OUTPUT_MIME) == JSON_TYPE else value
        if value is not None:  # else it stays
            fields["outputs"] = value
            del attributes[names.OUTPUT_VALUE]
            attributes.pop(names.OUTPUT_MIME, None)
    if not WHOSE.isdisjoint(draft.namespaces):
        whose(draft)
    return True
