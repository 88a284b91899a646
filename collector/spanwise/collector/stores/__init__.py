"""What every store promises, and the stores.

One conformance suite for each contract runs over every implementation. All verbs are synchronous and safe to call from
several threads; `spanwise.collector.aio(store)` gives the same verbs as coroutines. A store raises `StoreError` or one
of its kinds, never an error of its driver.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy import lazy

if TYPE_CHECKING:
    from spanwise.collector.stores._checked import Checks, judgements, votes_of
    from spanwise.collector.stores._control import ControlStore
    from spanwise.collector.stores._serving import NamesDestinations, Said, SendsOn, Serving, TakesRows
    from spanwise.collector.stores._store import Store
    from spanwise.collector.stores._summary import summary
    from spanwise.collector.stores._traces import TraceStore
    from spanwise.collector.stores._tree import Line, branch, in_order
    from spanwise.collector.stores._under_way import under_way
    from spanwise.collector.stores._unread import Streams, Unread
    from spanwise.collector.stores.derived_values import derived_fields
else:
    __getattr__, __dir__ = lazy(
        __name__,
        _checked="Checks judgements votes_of",
        _control="ControlStore",
        _serving="NamesDestinations Said SendsOn Serving TakesRows",
        _store="Store",
        _summary="summary",
        _traces="TraceStore",
        _tree="Line branch in_order",
        _under_way="under_way",
        _unread="Streams Unread",
        derived_values="derived_fields",
    )

__all__ = [
    "Checks",
    "ControlStore",
    "Line",
    "NamesDestinations",
    "Said",
    "SendsOn",
    "Serving",
    "Store",
    "Streams",
    "TakesRows",
    "TraceStore",
    "Unread",
    "branch",
    "derived_fields",
    "in_order",
    "judgements",
    "summary",
    "under_way",
    "votes_of",
]
