"""A rule that this process evaluates, and what is under way of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from spanwise.collector.records import JSON, Decision, Target
from spanwise.collector.statistics import percentile
from spanwise.evaluators.judges import Ledger, charged
from spanwise.evaluators.monitors._held import Held
from spanwise.evaluators.monitors._job import Came, Job, is_done, state_of
from spanwise.evaluators.monitors._memory import Memory
from spanwise.evaluators.monitors._notes import Notes, noted
from spanwise.evaluators.monitors._pauses import Pauses
from spanwise.evaluators.monitors._slots import Loop, Slots
from spanwise.evaluators.protocol import Batch, Evaluator, Judgements, judging
from spanwise.evaluators.scoring import Scoring
from spanwise.tracer.spans import marked

AHEAD = 200  # rows of a rule that are held at most
BATCH_SIZE = 32  # cases that a model scores at once
BATCHES = 4  # requests in which the rows that are held at most are claimed
SECONDS = 0.3  # of work that are claimed ahead: what a crash leaves is run one by one
FREE = 0.001  # seconds that are no less than nothing
FIRST, LONGEST = 0.05, 5.0  # seconds between two questions what is due, while nothing is
RECENT = 500  # durations of an evaluator that are kept


class Working:
    """`money` is the ledger of its judges, if it has a budget. Times are seconds of one clock."""

    def __init__(
        self,
        held: Held,
        loop: Loop,
        done: Callable[[Job], None],
        judgements: Judgements,
        money: Ledger | None,
        memory: Memory,
        now: Callable[[], float],
    ) -> None:
        self.held, self.memory, self._now = held, memory, now
        self.pauses = Pauses()
        self.claimed: dict[Target, Decision] = {}
        self.look_at = 0.0
        self.store_ns = 0  # the store's time, as it was last seen
        self.outcomes: Counter[str] = Counter()
        self.money, self._judgements = money, judgements
        self._patience = FIRST
        self._mean = SECONDS  # of what a target takes, of late
        self._took: dict[str, deque[float]] = {}
        self._failed: Counter[str] = Counter()
        self._looked: Counter[str] = Counter()
        notes = Notes()
        self.evaluators = tuple(noted(evaluator, notes) for evaluator in held.evaluators)
        self._is_batched = any(isinstance(evaluator.function, Batch) for evaluator in self.evaluators)
        self.slots = Slots(
            Scoring(self.evaluators, BATCH_SIZE), notes, loop, self._size, self._around, done, self._may_begin
        )

    @property
    def _size(self) -> int:
        concurrency = self.held.in_force.settings.concurrency
        return max(concurrency, BATCH_SIZE) if self._is_batched else concurrency

    def room(self, now: float) -> int:
        """Return how many more rows it may claim now: none until a batch of them fits, as each claim is a request."""
        if self.held.idle is not None or now < max(self.look_at, self.pauses.refused_until):
            return 0
        if all(self.pauses.paused(evaluator.key, now) for evaluator in self.evaluators):
            return 0
        self.slots.size = self._size
        if self.pauses.is_probing(now):
            return 1 - len(self.claimed)
        ahead = int(self.slots.size * SECONDS / max(self._mean, FREE))
        most = min(AHEAD, max(2 * self.slots.size, ahead))
        free = most - len(self.claimed)
        return free if free >= most // BATCHES else 0

    def took(self, rows: int, asked: int, now: float) -> None:
        """The store gave so many of the rows that it was asked for."""
        if rows:
            self._patience = FIRST
        if rows < asked:
            self.look_at = now + self._patience
            self._patience = min(2 * self._patience, LONGEST)

    def look_soon(self, at: float) -> None:
        """There will be something due then."""
        self.look_at = min(self.look_at, at)
        self._patience = FIRST

    def to_run(self, states: Mapping[str, JSON], now: float) -> list[Evaluator]:
        """Which evaluators have still to look, and may."""
        return [
            evaluator
            for evaluator in self.evaluators
            if not is_done(state_of(states, evaluator.key))
            and self.pauses.paused(evaluator.key, now) is None
            and not (evaluator.asking is not None and self._has_no_money(now))
        ]

    def unpaid(self, states: Mapping[str, JSON], now: float) -> frozenset[str]:
        """Return the keys of judges that have still to look, and are not asked for want of money."""
        if not self._has_no_money(now):
            return frozenset()
        waiting = (one for one in self.evaluators if not is_done(state_of(states, one.key)))
        return frozenset(one.key for one in waiting if one.asking is not None)

    def over_budget(self, now: float) -> int | None:
        """Return how many rows over budget it may take now: all (None), one that probes the budget, or none."""
        if not self.pauses.money.is_used_up(self.held.in_force.settings.budget, self.store_ns):
            return None
        return int(now >= self.pauses.money.until)

    def _has_no_money(self, now: float) -> bool:
        return self.over_budget(now) == 0

    def ended(self, job: Job) -> None:
        """A job is done."""
        self._mean += (sum(came.seconds for came in job.came.values()) - self._mean) / 10
        for key, came in job.came.items():
            self._note(key, came)

    def told(self) -> dict[str, JSON]:
        """What a worker says of its evaluators."""
        return {key: self._of(key) for key in self._took.copy()}

    def _may_begin(self, job: Job, key: str) -> bool:
        """Return whether an evaluator may look at a target that has waited for its turn."""
        return self.pauses.begin(key, self._now())

    def _note(self, key: str, came: Came) -> None:
        self._looked[key] += 1
        self._failed[key] += any(feedback.outcome == "error" for feedback in came.feedback)
        self._took.setdefault(key, deque(maxlen=RECENT)).append(came.seconds)

    def _of(self, key: str) -> JSON:
        took = sorted(int(seconds * 1e9) for seconds in self._took[key].copy())
        return {"looked": self._looked[key], "failed": self._failed[key], "p95_s": percentile(took, 95) / 1e9}

    def _around(self, job: Job, evaluator: Evaluator | None) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(marked())
        stack.enter_context(judging(judgements=self._judgements, target=job.target, inside=None))
        stack.enter_context(charged(self.money))
        return stack
