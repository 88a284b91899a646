"""What a store of control records promises: datasets, experiments, rules and what rules share, keys, queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

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
    Retention,
    Rule,
)


class ControlStore(Protocol):
    """Datasets, experiments, rules, decisions, leases, budgets, keys and annotation queues: small and transactional."""

    @property
    def where(self) -> str:
        """Where the store is, in words for people: its address or its path."""
        ...

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
        """Add or overwrite examples (by id), take out `remove`, or put them all in place of what is there (`replace`).

        Of examples with one id in the same call each is kept, the second as `<id>-2` and so on (see `distinct`).
        Makes a new version if anything changed, else returns the current one. Creates the dataset if it is new.
        """

    def dataset(self, name: str, version: int | None = None) -> Dataset:
        """One dataset at a version (None: the newest). Raises `NotFound`, naming the closest names."""

    def datasets(self) -> list[Dataset]:
        """All datasets at their newest version, by name."""

    def versions(self, name: str) -> list[Dataset]:
        """Every version of a dataset, newest first."""

    def examples(
        self,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        """Examples of a version in their order; of a split those that have it as `split`, or among several in their
        metadata's "dataset_split".
        """

    def delete_dataset(self, name: str) -> bool:
        """Remove a dataset with all its versions; False if there was none. Experiments over it stay."""

    def save_experiment(self, *experiments: Experiment) -> None:
        """Create or overwrite, by id; all of them or none."""

    def experiment(self, id_or_name: str) -> Experiment:
        """One experiment by id, by the beginning of its id, or the newest of that name. Raises `NotFound`."""

    def experiments(
        self, *, dataset: str | None = None, project: str | None = None, limit: int = 100
    ) -> list[Experiment]:
        """Experiments, newest first."""

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        """Change name, status, metadata, ended_ns, example_count or seen_ns; other writers' fields stay.

        Raises `NotFound`.
        """

    def delete_experiment(self, id: str) -> bool:
        """Remove an experiment with its traces and feedback."""

    def save_rule(self, *rules: Rule) -> None:
        """Create or overwrite, by name, all of them or none; older versions stay: `rules(all_versions=True)`."""

    def rules(self, *, all_versions: bool = False) -> list[Rule]:
        """Rules by name."""

    def change_rule(self, name: str, **fields: JSON) -> Rule:
        """Change `enabled` or `metadata` of a rule; what decides is a new version's to change. Raises `NotFound`."""

    def delete_rule(self, name: str) -> bool:
        """Remove a rule; its feedback and decisions stay."""

    def save_decisions(self, decisions: Sequence[Decision]) -> None:
        """Keep decisions; one per (trace, rule), a later one replaces it."""

    def decisions(
        self,
        *,
        trace_id: str | None = None,
        rule: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[Decision]:
        """Decisions, newest first."""

    def delete_decisions(self, *, trace_id: str | None = None, rule: str | None = None) -> int:
        """Remove decisions, so that rules decide anew; returns how many. Neither a trace nor a rule is refused."""

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; None while another holder has it."""

    def release(self, name: str, holder: str) -> bool:
        """Give a lease back; False if this holder has it not."""

    def leases(self) -> list[Lease]:
        """Leases that are held now, by name."""

    def delete_lease(self, name: str) -> bool:
        """Take a lease from whoever holds it, as from a process that hangs; False if nobody does."""

    def spend(self, budget: str, amount: float, limit: float, period_start_ns: int) -> float | None:
        """Book `amount` on a budget for a period unless that passes `limit`: the new total, or None and nothing booked.

        A negative amount gives back.
        """

    def spent(self, budget: str, period_start_ns: int) -> float:
        """What is booked so far."""

    def delete_budget(self, budget: str, *, before_ns: int | None = None) -> int:
        """Forget what is booked, in periods that begin before a time or in all; returns how many periods."""

    def save_key(self, key: Key) -> None:
        """Create or overwrite an API key's record."""

    def keys(self) -> list[Key]:
        """All API keys' records, newest first."""

    def delete_key(self, id: str) -> bool:
        """Revoke an API key."""

    def enqueue(self, items: Sequence[QueueItem]) -> None:
        """Put targets into an annotation queue; one that waits there already is left as it is."""

    def queue(self, name: str, *, status: str | None = "waiting", limit: int = 100) -> list[QueueItem]:
        """Items of a queue, oldest first."""

    def queues(self) -> Mapping[str, int]:
        """Names of queues and how many items wait in each."""

    def resolve(self, item_id: str, status: str, assignee: str | None = None) -> bool:
        """Mark an item of a queue as done or skipped."""

    def set_retention(self, rule: Retention) -> None:
        """Keep a project's rule: `prune` is done with it about once an hour. One without limits takes it away."""

    def retention(self) -> list[Retention]:
        """The rules that are kept."""

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless."""
