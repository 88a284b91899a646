"""Control store interface (datasets, experiments, rules, leases, keys), and `Store`, both in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from spanwise.collector.records import (
    JSON,
    AuditEvent,
    Booking,
    BudgetUsage,
    Claim,
    ClaimResult,
    Dataset,
    Decision,
    DecisionBatch,
    DecisionExplanation,
    Example,
    Experiment,
    Key,
    Lease,
    Page,
    QueueItem,
    Retention,
    Rule,
    RuleStatus,
    SettingsVersion,
    WeightedScore,
    WorkerReport,
)
from spanwise.collector.stores.trace_store import TraceStore


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

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Create or change rules, by project and name, all of them or none.

        A new version takes the place of the one before, from the present change on (`active_from`); its waiting
        decisions become superseded. The same version with other settings keeps its decisions, and the settings go into
        the history. With `owner` (a rules file) all rules of that owner that are not among these are removed. Raises
        `Refused` for a rule of another owner, for a filter that is relative to now, and for a version that was
        superseded before, unless `activate`.
        """

    def rules(self, *, project: str | None = None, all_versions: bool = False) -> list[Rule]:
        """Rules by project and name, as they are in force."""

    def settings(self, name: str, *, project: str = "default") -> list[SettingsVersion]:
        """What a rule's settings have been, newest first; the present ones are in force for what is decided now."""

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change `enabled`, `settings` (all, or some by name) or `metadata` of a rule; what decides is a new version's.

        A rule that is paused so (`enabled=False`) stays paused, whatever its file says, until it is resumed so. Raises
        `NotFound`.
        """

    def delete_rule(self, name: str, *, project: str = "default") -> bool:
        """Remove a rule; its feedback and decisions stay."""

    def cursor(self, rule: str, version: str, *, project: str = "default") -> str | None:
        """Up to where a version of a rule has decided; None before its first decision (see `Rule.active_from`)."""

    def decide(self, *decided: DecisionBatch) -> list[bool]:
        """Keep what was decided, each in one transaction with the rule's cursor; whether it was kept.

        False, and nothing changed, where the cursor is neither `after` nor `upto`, the version is not in force, or
        somebody with a higher token has decided. With the cursor at `upto` it was kept before: True, nothing changed.
        Of a row that is there already u, rate, stratum, probability and change are rewritten; its verdict goes back to
        waiting if its runs changed since they were read and it was not reopened before (while it runs: `finish` does
        that). With a verdict of sampled_out or filtered a row that is there gets the probability 0 and keeps what it
        says; a row that waits goes. Rows of targets that were deleted are left out.
        """

    def decisions(
        self,
        *,
        trace_id: str | None = None,
        rule: str | None = None,
        version: str | None = None,
        project: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[Decision]:
        """Stored decisions, newest first. Of one trace those of its spans, documents and session are among them."""

    def delete_decisions(
        self, *, trace_id: str | None = None, rule: str | None = None, project: str | None = None
    ) -> int:
        """Remove decisions; returns how many. Neither a trace nor a rule is refused. A rule of which no trace is named
        begins anew: it decides on all that has changed since it was put in force.
        """

    def claim(
        self,
        rule: str,
        version: str,
        holder: str,
        seconds: float,
        *,
        project: str = "default",
        limit: int = 1,
        over_budget: int | None = None,
    ) -> list[Decision]:
        """Take what is due of a rule, oldest first, to be run within some seconds (see `renew`); durable on return.

        Due are rows that wait or are throttled and whose `next_ns` has come, those whose holder let the time pass, and
        after them those over budget, newest first, at most `over_budget` of them. Of what its holder let go `deaths`
        rises, and once it is above 0 the row is given out alone, with no other. At three deaths it is failed, "ended
        the worker", with an error of each evaluator that has no outcome. A paused rule gives out nothing.
        Raises `Refused` where the version is not in force any more.
        """

    def renew(self, claims: Sequence[Claim], holder: str, seconds: float) -> list[bool]:
        """Hold claims some seconds longer; False for those that somebody else has by now, or whose target is gone."""

    def finish(self, *finishes: ClaimResult) -> list[str]:
        """Keep what came of claims: feedback first, then the decision. Says of each what became of it:

        "finished"; "waiting" (kept, and to be run again as the trace changed meanwhile); or "refused: …", with nothing
        kept, where the claim is not the newest, the version not in force, or the target deleted. The same finish again
        changes nothing. For each evaluator in `reported` its whole set of feedback on (rule, target) is replaced; all
        feedback of (rule, target) is where the inputs' hash or the version is another than the decision's. Of one
        (rule, target, evaluator) only the set of the highest claim stands. Of what is over budget the newest 10,000 of
        a rule are offered again, for 24 hours; what falls out stays over budget for good.
        """

    def why(self, trace_id: str) -> list[DecisionExplanation]:
        """For each rule of the trace's project why it did or did not evaluate this trace. Raises `NotFound`."""

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """Each rule's funnel, how far it is behind, what it has spent, its last errors and workers."""

    def report(self, worker: WorkerReport) -> None:
        """What a worker says of itself; the newest of each holder and project is kept for a day."""

    def weighted(
        self,
        rule: str,
        *,
        key: str | None = None,
        version: str | None = None,
        project: str = "default",
        since_ns: int | None = None,
        until_ns: int | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[WeightedScore]:
        """A rule's scores, errors and skips with the probabilities of its decisions, from which estimates are made.

        A score belongs to the time at which its trace started (a session: its first trace), whenever it was given.
        `since_ns` and `until_ns` select by that time, and the scores of the traces that started last come first.
        """

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; None while another holder has it. Each acquire that is no renewal raises the token,
        also after a release or a deletion.
        """

    def release(self, name: str, holder: str) -> bool:
        """Give a lease back; False if this holder has it not."""

    def leases(self) -> list[Lease]:
        """Leases that are held now, by name."""

    def delete_lease(self, name: str) -> bool:
        """Take a lease from whoever holds it, as from a process that hangs; False if nobody does."""

    def book(self, *bookings: Booking) -> list[bool]:
        """Reserve amounts, each unless it would pass its limit; whether it is reserved. The same id books once, also
        when it was settled; for two days.
        """

    def settle(self, actual: Mapping[str, float]) -> None:
        """Put in the place of what was reserved, by id, what it came to; 0 gives it back. Ids that are unknown, or
        settled, change nothing.
        """

    def booked(self, budget: str | None = None) -> list[BudgetUsage]:
        """What was settled and reserved, of one budget or all, newest period first."""

    def delete_budget(self, budget: str, *, before_ns: int | None = None) -> int:
        """Forget what is booked, in periods that begin before a time or in all; returns how many periods."""

    def save_key(self, key: Key) -> None:
        """Create or overwrite an API key's record."""

    def keys(self) -> list[Key]:
        """All API keys' records, newest first."""

    def delete_key(self, id: str) -> bool:
        """Revoke an API key."""

    def audit(self, *, limit: int = 100, cursor: str | None = None) -> Page[AuditEvent]:
        """Who deleted what and who changed which key, newest first: of keys the last 10,000, of all else the last
        40,000.
        """

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


class Store(TraceStore, ControlStore, Protocol):
    """What `connect()` returns: both contracts in one object."""
