"""A target that was claimed, on its way through its evaluators."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spanwise.collector.records import JSON, Case, Claim, Decision, Feedback, Target
from spanwise.evaluators.monitors._held import Held
from spanwise.evaluators.protocol import Evaluator

DONE = ("scored", "skipped", "failed")


@dataclass(slots=True)
class Came:
    """What an evaluator has said of a target, what it raised, and how long it took (seconds)."""

    feedback: Sequence[Feedback]
    error: BaseException | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    """A claimed row with what is to be done about it. Its thread writes `came` and `current`, others read them."""

    held: Held
    row: Decision
    case: Case
    inputs_hash: str
    evaluators: Sequence[Evaluator]  # that are to look
    states: Mapping[str, JSON]  # of those that have looked before
    unpaid: frozenset[str] = frozenset()  # judges that are not asked for want of money
    came: dict[str, Came] = field(default_factory=dict)
    current: tuple[str, float] | None = None  # the evaluator at work, and since when
    over: bool = False  # let go: what comes from now on is nobody's

    @property
    def target(self) -> Target:
        """What is looked at."""
        return self.row.target

    @property
    def claim(self) -> Claim:
        """The right to finish it."""
        return claim_of(self.row)

    def begin(self, key: str) -> None:
        """An evaluator starts."""
        self.current = (key, time.monotonic())

    def end(self, key: str, feedback: Sequence[Feedback], error: BaseException | None) -> None:
        """An evaluator has looked."""
        began = self.current[1] if self.current is not None else time.monotonic()
        if not self.over:
            self.came[key] = Came(feedback, error, time.monotonic() - began)


def claim_of(row: Decision) -> Claim:
    """The claim that a row was given out with."""
    return Claim(project=row.project, rule=row.rule, version=row.version, target=row.target, number=row.claim)


def state_of(states: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What is known of an evaluator on a target."""
    state = states.get(key)
    return dict(state) if isinstance(state, Mapping) else {}


def is_done(state: Mapping[str, Any]) -> bool:
    """Whether an evaluator has come to an outcome."""
    return state.get("state") in DONE
