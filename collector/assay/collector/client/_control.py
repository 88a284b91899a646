"""The control records' half of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.collector.client._traces import batches
from assay.collector.client._transport import Transport, segment
from assay.collector.errors import NotFound
from assay.collector.records import (
    JSON,
    Dataset,
    Decision,
    Example,
    Experiment,
    Key,
    Lease,
    Page,
    QueueItem,
    Rule,
)


class Control:
    """Implements `ControlStore`, but for `close`."""

    _transport: Transport

    def save_examples(
        self,
        dataset: str,
        examples: Sequence[Example],
        *,
        replace: bool = False,
        remove: Sequence[str] = (),
        kind: str | None = None,
        schema: Mapping[str, JSON] | None = None,
        description: str | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Dataset:
        """See `ControlStore.save_examples`. One request, so that it makes one version."""
        body = {
            "examples": examples,
            "replace": replace,
            "remove": remove,
            "kind": kind,
            "schema": schema,
            "description": description,
            "metadata": metadata,
        }
        return self._transport.ask(Dataset, "POST", f"/api/datasets/{segment(dataset)}/examples", body=body)

    def dataset(self, name: str, version: int | None = None) -> Dataset:
        """See `ControlStore.dataset`."""
        return self._transport.ask(Dataset, "GET", f"/api/datasets/{segment(name)}", [("version", version)])

    def datasets(self) -> list[Dataset]:
        """See `ControlStore.datasets`."""
        return self._transport.ask(list[Dataset], "GET", "/api/datasets")

    def versions(self, name: str) -> list[Dataset]:
        """See `ControlStore.versions`."""
        return self._transport.ask(list[Dataset], "GET", f"/api/datasets/{segment(name)}/versions")

    def examples(
        self,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        """See `ControlStore.examples`."""
        params = [("version", version), ("split", split), ("limit", limit), ("offset", offset)]
        return self._transport.ask(list[Example], "GET", f"/api/datasets/{segment(dataset)}/examples", params)

    def delete_dataset(self, name: str) -> bool:
        """See `ControlStore.delete_dataset`."""
        return self._gone(f"/api/datasets/{segment(name)}")

    def save_experiment(self, *experiments: Experiment) -> None:
        """See `ControlStore.save_experiment`."""
        self._transport.ask(Any, "POST", "/api/experiments", body=experiments)

    def experiment(self, id_or_name: str) -> Experiment:
        """See `ControlStore.experiment`."""
        return self._transport.ask(Experiment, "GET", f"/api/experiments/{segment(id_or_name)}")

    def experiments(
        self, *, dataset: str | None = None, project: str | None = None, limit: int = 100
    ) -> list[Experiment]:
        """See `ControlStore.experiments`."""
        params = [("dataset", dataset), ("project", project), ("limit", limit)]
        return self._transport.ask(list[Experiment], "GET", "/api/experiments", params)

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        """See `ControlStore.change_experiment`."""
        return self._transport.ask(Experiment, "PATCH", f"/api/experiments/{segment(id)}", body=fields)

    def delete_experiment(self, id: str) -> bool:
        """See `ControlStore.delete_experiment`."""
        return self._gone(f"/api/experiments/{segment(id)}")

    def save_rule(self, *rules: Rule) -> None:
        """See `ControlStore.save_rule`."""
        self._transport.ask(Any, "POST", "/api/rules", body=rules)

    def rules(self, *, all_versions: bool = False) -> list[Rule]:
        """See `ControlStore.rules`."""
        return self._transport.ask(list[Rule], "GET", "/api/rules", [("all_versions", all_versions)])

    def change_rule(self, name: str, **fields: JSON) -> Rule:
        """See `ControlStore.change_rule`."""
        return self._transport.ask(Rule, "PATCH", f"/api/rules/{segment(name)}", body=fields)

    def delete_rule(self, name: str) -> bool:
        """See `ControlStore.delete_rule`."""
        return self._gone(f"/api/rules/{segment(name)}")

    def save_decisions(self, decisions: Sequence[Decision]) -> None:
        """See `ControlStore.save_decisions`."""
        for batch in batches(decisions):
            self._transport.ask(Any, "POST", "/api/decisions", body=batch)

    def decisions(
        self,
        *,
        trace_id: str | None = None,
        rule: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[Decision]:
        """See `ControlStore.decisions`."""
        params = [("trace_id", trace_id), ("rule", rule), ("verdict", verdict), ("limit", limit), ("cursor", cursor)]
        return self._transport.ask(Page[Decision], "GET", "/api/decisions", params)

    def delete_decisions(self, *, trace_id: str | None = None, rule: str | None = None) -> int:
        """See `ControlStore.delete_decisions`."""
        params = [("trace_id", trace_id), ("rule", rule)]
        found: dict[str, int] = self._transport.ask(dict[str, int], "DELETE", "/api/decisions", params)
        return found["deleted"]

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """See `ControlStore.acquire`."""
        body = {"name": name, "holder": holder, "seconds": seconds}
        return self._transport.ask(Lease | None, "POST", "/api/leases/acquire", body=body)

    def release(self, name: str, holder: str) -> bool:
        """See `ControlStore.release`."""
        return self._transport.ask(bool, "POST", "/api/leases/release", body={"name": name, "holder": holder})

    def leases(self) -> list[Lease]:
        """See `ControlStore.leases`."""
        return self._transport.ask(list[Lease], "GET", "/api/leases")

    def delete_lease(self, name: str) -> bool:
        """See `ControlStore.delete_lease`."""
        return self._gone(f"/api/leases/{segment(name)}")

    def spend(self, budget: str, amount: float, limit: float, period_start_ns: int) -> float | None:
        """See `ControlStore.spend`."""
        body = {"budget": budget, "amount": amount, "limit": limit, "period_start_ns": period_start_ns}
        return self._transport.ask(float | None, "POST", "/api/budgets/spend", body=body)

    def spent(self, budget: str, period_start_ns: int) -> float:
        """See `ControlStore.spent`."""
        params = [("budget", budget), ("period_start_ns", period_start_ns)]
        return self._transport.ask(float, "GET", "/api/budgets/spent", params)

    def delete_budget(self, budget: str, *, before_ns: int | None = None) -> int:
        """See `ControlStore.delete_budget`."""
        path, params = f"/api/budgets/{segment(budget)}", [("before_ns", before_ns)]
        found: dict[str, int] = self._transport.ask(dict[str, int], "DELETE", path, params)
        return found["deleted"]

    def save_key(self, key: Key) -> None:
        """See `ControlStore.save_key`."""
        self._transport.ask(Any, "POST", "/api/keys", body=key)

    def keys(self) -> list[Key]:
        """See `ControlStore.keys`."""
        return self._transport.ask(list[Key], "GET", "/api/keys")

    def delete_key(self, id: str) -> bool:
        """See `ControlStore.delete_key`."""
        return self._gone(f"/api/keys/{segment(id)}")

    def enqueue(self, items: Sequence[QueueItem]) -> None:
        """See `ControlStore.enqueue`."""
        for batch in batches(items):
            self._transport.ask(Any, "POST", "/api/queues", body=batch)

    def queue(self, name: str, *, status: str | None = "waiting", limit: int = 100) -> list[QueueItem]:
        """See `ControlStore.queue`."""
        params = [("status", status or ""), ("limit", limit)]
        return self._transport.ask(list[QueueItem], "GET", f"/api/queues/{segment(name)}", params)

    def queues(self) -> Mapping[str, int]:
        """See `ControlStore.queues`."""
        return self._transport.ask(dict[str, int], "GET", "/api/queues")

    def resolve(self, item_id: str, status: str, assignee: str | None = None) -> bool:
        """See `ControlStore.resolve`."""
        body = {"status": status, "assignee": assignee}
        return self._transport.ask(bool, "PATCH", f"/api/queues/items/{segment(item_id)}", body=body)

    def _gone(self, path: str) -> bool:
        try:
            found: dict[str, int] = self._transport.ask(dict[str, int], "DELETE", path)
        except NotFound:
            return False
        return found["deleted"] > 0
