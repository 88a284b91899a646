"""What monitors keep: rules, decisions, leases, budgets; and keys and annotation queues."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter, Response

from assay.collector import _wire
from assay.collector.api._http import Body, Limit, Number, given, reply, wire
from assay.collector.records import JSON, Decision, Key, Lease, Page, QueueItem, Rule
from assay.collector.stores import ControlStore


class RuleChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a rule that may change within a version."""

    enabled: bool | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, JSON] | msgspec.UnsetType = msgspec.UNSET


class LeaseAsked(msgspec.Struct):
    """What `acquire` takes."""

    name: str
    holder: str
    seconds: float


class LeaseReturned(msgspec.Struct):
    """What `release` takes."""

    name: str
    holder: str


class Spending(msgspec.Struct):
    """What `spend` takes."""

    budget: str
    amount: float
    limit: float
    period_start_ns: int


class Resolution(msgspec.Struct):
    """What `resolve` takes."""

    status: Literal["waiting", "done", "skipped"]
    assignee: str | None = None


def rules(store: ControlStore) -> APIRouter:
    """The routes of rules and their decisions."""
    routes = APIRouter(prefix="/api", tags=["monitor"])

    @routes.get("/rules")
    @wire(returns=list[Rule])
    def listed(all_versions: bool = False) -> Response:
        """Rules by name."""
        return reply(store.rules(all_versions=all_versions))

    @routes.post("/rules")
    @wire(takes=Rule | list[Rule], returns=Rule | list[Rule])
    def save(body: Body) -> Response:
        """Create or overwrite, by name: one, or all of a list or none; older versions stay readable."""
        made: Rule | list[Rule] = _wire.decode(Rule | list[Rule], body)
        store.save_rule(*(made if isinstance(made, list) else [made]))
        return reply(made)

    @routes.patch("/rules/{name:path}")
    @wire(takes=RuleChange, returns=Rule)
    def change(name: str, body: Body) -> Response:
        """Switch a rule on or off, or change its metadata."""
        return reply(store.change_rule(name, **given(_wire.decode(RuleChange, body))))

    @routes.delete("/rules/{name:path}")
    @wire(returns=dict[str, int])
    def delete(name: str) -> Response:
        """Remove a rule; its feedback and decisions stay."""
        return reply({"deleted": int(store.delete_rule(name))})

    @routes.get("/decisions")
    @wire(returns=Page[Decision])
    def decisions(
        trace_id: str | None = None,
        rule: str | None = None,
        verdict: str | None = None,
        limit: Limit = 1000,
        cursor: str | None = None,
    ) -> Response:
        """What rules did with traces, and why; newest first."""
        return reply(store.decisions(trace_id=trace_id, rule=rule, verdict=verdict, limit=limit, cursor=cursor))

    @routes.post("/decisions")
    @wire(takes=list[Decision], returns=dict[str, int])
    def decide(body: Body) -> Response:
        """Keep decisions; one per trace and rule, a later one replaces it."""
        found = _wire.decode(list[Decision], body)
        store.save_decisions(found)
        return reply({"stored": len(found)})

    @routes.delete("/decisions")
    @wire(returns=dict[str, int])
    def undecide(trace_id: str | None = None, rule: str | None = None) -> Response:
        """Remove decisions of a trace, of a rule, or of both, so that rules decide anew. Neither is refused."""
        return reply({"deleted": store.delete_decisions(trace_id=trace_id, rule=rule)})

    return routes


def shared(store: ControlStore) -> APIRouter:
    """The routes of what several processes share: leases and budgets."""
    routes = APIRouter(prefix="/api", tags=["monitor"])

    @routes.post("/leases/acquire")
    @wire(takes=LeaseAsked, returns=Lease | None)
    def acquire(body: Body) -> Response:
        """Take or renew a lease; null while another holder has it."""
        asked = _wire.decode(LeaseAsked, body)
        return reply(store.acquire(asked.name, asked.holder, asked.seconds))

    @routes.post("/leases/release")
    @wire(takes=LeaseReturned, returns=bool)
    def release(body: Body) -> Response:
        """Give a lease back; false if this holder has it not."""
        asked = _wire.decode(LeaseReturned, body)
        return reply(store.release(asked.name, asked.holder))

    @routes.get("/leases")
    @wire(returns=list[Lease])
    def held() -> Response:
        """Leases that are held now, by name."""
        return reply(store.leases())

    @routes.delete("/leases/{name:path}")
    @wire(returns=dict[str, int])
    def take_away(name: str) -> Response:
        """Take a lease from whoever holds it."""
        return reply({"deleted": int(store.delete_lease(name))})

    @routes.post("/budgets/spend")
    @wire(takes=Spending, returns=float | None)
    def spend(body: Body) -> Response:
        """Book an amount unless that passes the limit: the new total, or null and nothing booked."""
        asked = _wire.decode(Spending, body)
        return reply(store.spend(asked.budget, asked.amount, asked.limit, asked.period_start_ns))

    @routes.get("/budgets/spent")
    @wire(returns=float)
    def spent(budget: str, period_start_ns: Number) -> Response:
        """What is booked so far."""
        return reply(store.spent(budget, period_start_ns))

    @routes.delete("/budgets/{budget:path}")
    @wire(returns=dict[str, int])
    def forget(budget: str, before_ns: Number | None = None) -> Response:
        """Forget what is booked, in periods that begin before a time or in all; says how many periods."""
        return reply({"deleted": store.delete_budget(budget, before_ns=before_ns)})

    return routes


def keys(store: ControlStore) -> APIRouter:
    """The routes of API keys' records; secrets are never sent nor kept."""
    routes = APIRouter(prefix="/api/keys", tags=["keys"])

    @routes.get("")
    @wire(returns=list[Key])
    def listed() -> Response:
        """All keys' records, newest first."""
        return reply(store.keys())

    @routes.post("")
    @wire(takes=Key, returns=Key)
    def save(body: Body) -> Response:
        """Create or overwrite a key's record."""
        key = _wire.decode(Key, body)
        store.save_key(key)
        return reply(key)

    @routes.delete("/{id}")
    @wire(returns=dict[str, int])
    def delete(id: str) -> Response:
        """Revoke a key."""
        return reply({"deleted": int(store.delete_key(id))})

    return routes


def queues(store: ControlStore) -> APIRouter:
    """The routes of annotation queues."""
    routes = APIRouter(prefix="/api/queues", tags=["queues"])

    @routes.get("")
    @wire(returns=dict[str, int])
    def listed() -> Response:
        """Names of queues and how many items wait in each."""
        return reply(store.queues())

    @routes.post("")
    @wire(takes=list[QueueItem], returns=dict[str, int])
    def enqueue(body: Body) -> Response:
        """Put targets into queues; one that waits there already is left as it is."""
        items = _wire.decode(list[QueueItem], body)
        store.enqueue(items)
        return reply({"stored": len(items)})

    @routes.patch("/items/{id}")
    @wire(takes=Resolution, returns=bool)
    def resolve(id: str, body: Body) -> Response:
        """Mark an item as done or skipped."""
        asked = _wire.decode(Resolution, body)
        return reply(store.resolve(id, asked.status, asked.assignee))

    @routes.get("/{name:path}")
    @wire(returns=list[QueueItem])
    def one(name: str, status: str | None = "waiting", limit: Limit = 100) -> Response:
        """Items of a queue, oldest first; `status=` (empty) for all of them."""
        return reply(store.queue(name, status=status or None, limit=limit))

    return routes
