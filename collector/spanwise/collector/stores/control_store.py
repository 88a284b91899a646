"""Control store interface (datasets, experiments, rules, leases, keys), and `Store`, both in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from spanwise.collector.records import (
    JSON,
    Alert,
    AlertEvent,
    AlertGroup,
    AlertResult,
    AuditEvent,
    Backfill,
    BackfillPreview,
    Booking,
    BudgetUsage,
    Claim,
    ClaimResult,
    Dataset,
    Decision,
    DecisionBatch,
    DecisionExplanation,
    DeliveryOutcome,
    Example,
    Experiment,
    Key,
    Lease,
    NotificationStatus,
    Page,
    QueueItem,
    Retention,
    Rule,
    RuleStatus,
    ScoreSums,
    SettingsVersion,
    Spend,
    SpendGroup,
    WeightedScore,
    WorkerReport,
)
from spanwise.collector.stores.trace_store import TraceStore


class ControlStore(Protocol):
    """Store of datasets, experiments, rules, decisions, leases, budgets, notifications, keys and annotation queues.

    Its data is small, and all operations are transactional.
    """

    @property
    def where(self) -> str:
        """Return the location, for display: an address or a path."""

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
        """Add or overwrite examples by id, and delete those in `remove`. `replace` also deletes all that are not given.

        Creates the dataset if it is new. Makes a new version if anything changed, else returns the current one.
        Examples with the same id in one call are all kept: the second gets the id `<id>-2`, and so on (see
        `number_duplicates`).
        """

    def dataset(self, name: str, version: int | None = None) -> Dataset:
        """Return a dataset at a version (None: the newest). Raise `NotFound`, with the closest names."""

    def datasets(self, *, sort: str | None = None) -> list[Dataset]:
        """Return all datasets at their newest version, by name or sorted.

        `sort` is `created`, `version` or `examples`, with `-` before it for descending order. Raise `Refused` for
        another.
        """

    def versions(self, name: str) -> list[Dataset]:
        """Return every version of a dataset, newest first."""

    def examples(
        self,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        """Return the examples of a version in their order.

        `split` selects examples with this `split`, or with it in the list `dataset_split` of their metadata.
        """

    def delete_dataset(self, name: str) -> bool:
        """Delete a dataset with all its versions. Return False if there was none. Experiments on it remain."""

    def save_experiment(self, *experiments: Experiment) -> None:
        """Create or overwrite experiments by id, all of them or none."""

    def experiment(self, id_or_name: str) -> Experiment:
        """Return the experiment with this id or id prefix, or the newest with this name. Raise `NotFound` if there is
        none.
        """

    def experiments(
        self, *, dataset: str | None = None, project: str | None = None, sort: str | None = None, limit: int = 100
    ) -> list[Experiment]:
        """Return experiments, newest first or sorted.

        `sort` is `start`, `duration_ms` (last for running experiments) or `examples`, with `-` before it for descending
        order. Raise `Refused` for another.
        """

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        """Change name, status, metadata, ended_ns, example_count or seen_ns. Other fields keep their values.

        Raise `NotFound` for an unknown experiment.
        """

    def delete_experiment(self, id: str) -> bool:
        """Delete an experiment with its traces and feedback."""

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Create or change rules, by project and name, all of them or none.

        - A new version replaces the previous one from the present change on (`active_from`). Waiting decisions of the
          previous version become superseded.
        - The same version with other settings keeps its decisions, and the settings are added to the history.
        - With `owner` (a rules file), all other rules of that owner are removed.

        Raise `Refused` for a rule of another owner, for a filter relative to the present time, and for a version that
        was superseded before, unless `activate` is set.
        """

    def rules(self, *, project: str | None = None, all_versions: bool = False) -> list[Rule]:
        """Return the rules in force, by project and name. `all_versions` includes the other versions."""

    def settings(self, name: str, *, project: str = "default") -> list[SettingsVersion]:
        """Return the history of a rule's settings, newest first. The newest settings apply to decisions made now."""

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change `enabled`, `settings` (all or some, by name) or `metadata` of a rule.

        Other fields affect decisions and need a new version. A rule paused with `enabled=False` stays paused,
        whatever its file contains, until it is resumed in the same way. Raise `NotFound` for an unknown rule.
        """

    def delete_rule(self, name: str, *, project: str = "default") -> bool:
        """Delete a rule. Its feedback and decisions remain."""

    def cursor(self, rule: str, version: str, *, project: str = "default") -> str | None:
        """Return the position up to which a version of a rule has decided; None before its first decision.

        A version starts at `Rule.active_from`.
        """

    def decide(self, *decided: DecisionBatch) -> list[bool]:
        """Record decisions, each batch in one transaction with the rule's cursor. Return for each batch whether it is
        recorded.

        - A batch is not recorded, and changes nothing, if the cursor is neither `after` nor `upto`. The same applies
          if the version is not in force, or a worker with a higher token has decided.
        - With the cursor at `upto`, the batch was recorded before: the result is True, and nothing changes.
        - In an existing row u, rate, stratum, probability and change are overwritten. Its verdict returns to waiting
          if its runs changed since they were read and it was not reopened before. For a running row, `finish` does
          that.
        - With the verdict sampled_out or filtered, an existing row gets the probability 0 and keeps its other values.
          A waiting row is deleted.
        - Rows of deleted targets are left out.

        A step of a backfill (`DecisionBatch.backfill`) moves the cursor of the backfill instead of the rule's. It is
        not recorded while the backfill is paused, or after its end. Targets that have a result, or wait as live
        traffic, are not evaluated again. They get the probability of both samples together.
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
        """Return stored decisions, newest first. Those of a trace include its spans, documents and session."""

    def delete_decisions(
        self, *, trace_id: str | None = None, rule: str | None = None, project: str | None = None
    ) -> int:
        """Delete decisions, and return their number. Raise `Refused` without a trace and a rule.

        If only a rule is given, the rule starts again: it decides on all traces that changed since it was put in force.
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
        backfill: str | None = None,
    ) -> list[Decision]:
        """Lease due decisions of a rule, oldest first, for a few seconds (see `renew`). Durable on return.

        - Due are waiting and throttled rows whose `next_ns` has passed, and rows whose lease has expired.
        - After them follow rows over budget, newest first, at most `over_budget` of them.
        - If a lease expires, `deaths` of the row rises. A row with `deaths` above 0 is leased alone.
        - At three deaths the row fails with "ended the worker", and each evaluator without outcome gets an error.
        - A paused rule yields nothing.
        - With the id of a backfill, its rows are leased instead of those of live traffic. A paused backfill yields
          nothing.

        Raise `Refused` if the version is no longer in force.
        """

    def renew(self, claims: Sequence[Claim], holder: str, seconds: float) -> list[bool]:
        """Extend leases by a few seconds. Return False for leases that another worker has now, or whose target is
        deleted.
        """

    def finish(self, *finishes: ClaimResult) -> list[str]:
        """Store the results of leases: first the feedback, then the decision. Return a status for each: "finished",
        "waiting" or "refused: …".

        - "finished": stored.
        - "waiting": stored, and to be evaluated again because the trace changed meanwhile.
        - "refused: …": nothing stored, because the lease is not the newest, the version is not in force, or the
          target is deleted.

        Finishing the same lease again changes nothing. For each evaluator in `reported`, its complete set of feedback
        on the target is replaced. All feedback of the rule on the target is replaced if the hash of the inputs or the
        version differs from the decision's. For one rule, target and evaluator, only the set of the highest lease
        number counts.

        Of the rows over budget, the newest 10,000 of a rule are offered again, for 24 hours. All others stay over
        budget.
        """

    def why(self, trace_id: str, *, rule: str | None = None) -> list[DecisionExplanation]:
        """Explain for each rule of the trace's project, or for one, why it did or did not evaluate the trace.

        Raise `NotFound` for an unknown trace.
        """

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """Return, for each rule, its counts by outcome, lag, spending, last errors and workers."""

    def start_backfill(
        self,
        rule: str,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int | None = None,
        sample_rate: float | None = None,
        budget: Mapping[str, float] | None = None,
        version: str | None = None,
        id: str | None = None,
    ) -> Backfill:
        """Start a job that scores the traces that started in [`since_ns`, `until_ns`) by the version of a rule that is
        in force.

        `until_ns` is the present by default. With `sample_rate`, every trace has this rate. By default, the job has
        the rates of the rule and its strata, without pacing. `budget` has limits for this job, such as
        `{"usd_per_day": 5}`. By default the job shares the budget of its rule, and spends at most half of each period's.
        With an id that is already in use, the existing job is returned.

        Raise `NotFound` for an unknown rule, and `Refused` if `version` is not in force or a value is out of range.
        """

    def preview_backfill(
        self,
        rule: str,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int | None = None,
        sample_rate: float | None = None,
    ) -> BackfillPreview:
        """Return how many traces a backfill with these options would read and score, its cost and its duration.

        Nothing is stored. Raise `NotFound` and `Refused` as `start_backfill` does.
        """

    def backfills(self, *, rule: str | None = None, project: str | None = None, active: bool = False) -> list[Backfill]:
        """Return the backfills of all rules or one, newest first; with `active`, only those that have not ended."""

    def change_backfill(self, id: str, state: str, *, project: str = "default") -> Backfill:
        """Pause a backfill ("paused"), resume it ("running"), or cancel it ("cancelled"), and return it.

        Targets that are being evaluated are finished. Cancelling removes the targets that wait. Scores remain. Raise
        `NotFound` for an unknown id, and `Refused` for a backfill that has ended.
        """

    def report(self, worker: WorkerReport) -> None:
        """Store a worker's report. The newest per holder and project is kept for a day."""

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
        """Return a rule's scores, errors and skips with the probabilities of its decisions, as the input of estimates.

        A score belongs to the time at which its trace started (a session: its first trace), not to the time of
        evaluation. `since_ns` and `until_ns` select by that time, and the scores of the latest traces come first.
        """

    def score_sums(
        self,
        rule: str,
        *,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        block_s: int = 150,
        by: str | None = None,
        groups: Sequence[str] = (),
        joined: bool = True,
        live: bool = False,
    ) -> list[ScoreSums]:
        """Return the sums of a rule's weighted scores, labels, errors and skips, in equal blocks of a window.

        A score belongs to the block in which its trace started (a session: its first trace). `since_ns`, `until_ns`
        and `block_s` are multiples of 150 seconds; the first block starts at `since_ns`. Blocks without any of them
        are left out. `version` selects the scores of one version of the rule. With `by`, the sums are grouped by the
        values of a field of the traces: tag, model, environment, prompt_version, agent, name, user or metadata.KEY.
        `groups` selects some of these values (empty: all). `joined` makes a session in several blocks one cluster of
        the window, so that the sums of all blocks can be added. Otherwise it is one cluster in each block. With `live`,
        scores that a backfill added do not count, and the others have the probabilities of live traffic.
        """

    def score_groups(
        self,
        rule: str,
        *,
        by: str,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        live: bool = False,
    ) -> Mapping[str, int]:
        """Return the number of a rule's weighted scores per value of a field of the traces, the highest number first.

        The arguments are those of `score_sums`.
        """

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """Acquire or renew a lease. Return None while another holder has it.

        Each acquisition that is not a renewal gets a higher token, also after a release or a deletion.
        """

    def release(self, name: str, holder: str) -> bool:
        """Release a lease. Return False if this holder does not have it."""

    def leases(self) -> list[Lease]:
        """Return the leases in force, by name."""

    def delete_lease(self, name: str) -> bool:
        """Delete a lease from any holder, such as a process that hangs. Return False if there is none."""

    def book(self, *bookings: Booking) -> list[bool]:
        """Reserve amounts, each unless its budget would exceed the limit. Return for each whether it is reserved.

        The same id books only once within two days, even if it was settled.
        """

    def settle(self, actual: Mapping[str, float]) -> None:
        """Replace reserved amounts, by id, by the actual amounts. 0 returns the whole amount.

        Unknown ids and ids already settled change nothing.
        """

    def booked(self, budget: str | None = None) -> list[BudgetUsage]:
        """Return the settled and reserved amounts of one budget or all, newest period first."""

    def spend(
        self,
        *,
        by: Sequence[SpendGroup] = (),
        bucket_ns: int | None = None,
        project: str | None = None,
        rule: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> list[Spend]:
        """Return the US dollars that rules have booked for judge calls, earliest first, and then the largest amount.

        A call counts in the hour in which it began; hours are kept for 400 days. `bucket_ns` is a multiple of an hour;
        without it, there is one bucket. `by` lists the fields to group by. Raise `Refused` for invalid arguments.
        """

    def delete_budget(self, budget: str, *, before_ns: int | None = None) -> int:
        """Delete the bookings of all periods, or of those that start before a time. Return the number of periods."""

    def undecided(self, rule: str, *, project: str = "default", before_ns: int) -> int:
        """Return the number of a rule's targets that changed before a time and are not decided or not scored yet.

        A rule that is paused, or not in force, has none.
        """

    def save_alert(self, *alerts: Alert, owner: str | None = None) -> None:
        """Create or change alerts, by project and name, all of them or none. The store computes their versions.

        - A new version starts without data. Groups that fire are closed, with the reason.
        - The same version with other targets or times keeps its state.
        - With `owner` (a rules file), all other alerts of that owner are deleted.

        Raise `Refused` for an invalid definition and for an alert of another owner.
        """

    def alerts(self, *, project: str | None = None) -> list[Alert]:
        """Return the alerts, by project and name."""

    def alert_groups(self, name: str | None = None, *, project: str | None = None) -> list[AlertGroup]:
        """Return the states of the groups of one alert or of all, by project, alert and group.

        An alert without `by` has one group, whose name is None. There are none before the first look.
        """

    def change_alert(self, name: str, *, project: str = "default", **fields: JSON) -> Alert:
        """Change `enabled`, `to`, `no_data_s` or `repeat_s` of an alert. Other fields need a new version.

        An alert paused with `enabled=False` stays paused, whatever its file contains, until it is resumed in the same
        way. Raise `NotFound` for an unknown alert.
        """

    def delete_alert(self, name: str, *, project: str = "default") -> bool:
        """Delete an alert. Groups that fire are closed; the history remains. Return False if there was none."""

    def acknowledge_alert(self, name: str, *, project: str = "default", group: str | None = None) -> list[AlertGroup]:
        """Acknowledge a firing alert: one group, or all that fire. Return them. It is not notified again.

        Raise `NotFound` for an unknown alert or group, and `Refused` if none fires.
        """

    def snooze_alert(
        self, name: str, *, project: str = "default", group: str | None = None, until_ns: int | None = None
    ) -> Alert:
        """Send no notifications of an alert, or of one group, until a time; None ends the snooze.

        Looks continue. What still fires after the snooze is notified then. Raise `NotFound` for an unknown alert or
        group.
        """

    def alert_events(
        self, *, project: str | None = None, alert: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[AlertEvent]:
        """Return changes of status, newest first. The store keeps the newest 50,000."""

    def record_look(self, result: AlertResult) -> bool:
        """Store a look with its changes of status and notifications, in one transaction.

        Return False, and store nothing, if the alert was edited or deleted, a runner with a newer lease has looked, or
        this look or a later one is stored.
        """

    def test_alert(self, name: str, *, project: str = "default") -> str:
        """Send a notification that says it is a test to the targets of an alert, and return its id.

        Raise `NotFound` for an unknown alert, and `Refused` for one without targets.
        """

    def notifications(
        self, *, project: str | None = None, alert: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[NotificationStatus]:
        """Return notifications of alerts with the states of their deliveries, newest first.

        The store keeps the newest 10,000, and older ones while a delivery is open.
        """

    def count_due_deliveries(self) -> Mapping[str, int]:
        """Return the number of deliveries whose next attempt is due, by name of the target."""

    def due_deliveries(self, target: str, *, limit: int = 100) -> list[NotificationStatus]:
        """Return notifications whose delivery to a target is due, earliest first, each with this delivery only.

        A notification waits while an earlier one of its alert and group is open, but only in the first hour after the
        first attempt to deliver that one.
        """

    def record_delivery(
        self,
        notification: str,
        target: str,
        outcome: DeliveryOutcome,
        *,
        error: str | None = None,
        retry_s: float = 0.0,
    ) -> None:
        """Record an attempt to deliver a notification, by id, to a target.

        With the outcome "retry" the next attempt is due in `retry_s` seconds. A delivery that is no longer open is left
        unchanged. Raise `NotFound` if there is no such delivery.
        """

    def save_key(self, key: Key) -> None:
        """Create or overwrite the record of an API key."""

    def keys(self) -> list[Key]:
        """Return the records of all API keys, newest first."""

    def delete_key(self, id: str) -> bool:
        """Revoke an API key."""

    def audit(self, *, limit: int = 100, cursor: str | None = None) -> Page[AuditEvent]:
        """Return the log of deletions and key changes with their actors, newest first.

        It holds the last 10,000 events on keys, and the last 40,000 of all others.
        """

    def enqueue(self, items: Sequence[QueueItem]) -> None:
        """Add targets to an annotation queue. A target that already waits there is left unchanged."""

    def queue(self, name: str, *, status: str | None = "waiting", limit: int = 100) -> list[QueueItem]:
        """Return the items of a queue, oldest first. `status` None (empty in a query string) selects all items."""

    def queues(self) -> Mapping[str, int]:
        """Return the number of waiting items by queue name."""

    def resolve(self, item_id: str, status: str, assignee: str | None = None) -> bool:
        """Mark an item of a queue as done or skipped."""

    def is_full(self) -> bool:
        """Return whether the disk of the store is full, or was when something was written in the last five minutes."""

    def set_retention(self, rule: Retention) -> None:
        """Store a project's retention rule, which is applied about once an hour. A rule without limits deletes it."""

    def retention(self) -> list[Retention]:
        """Return the stored retention rules."""

    def close(self) -> None:
        """Write queued data, then close the store. Repeated calls do nothing."""


class Store(TraceStore, ControlStore, Protocol):
    """Interface of the object that `connect()` returns: trace store and control store in one."""
