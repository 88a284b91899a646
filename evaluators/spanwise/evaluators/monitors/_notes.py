"""What evaluators raised, kept beside the feedback that says so: whether to try again depends on the exception."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, fields, replace

from spanwise.collector.records import Feedback, Target
from spanwise.evaluators.protocol import Evaluator, Maker

MOST = 10_000  # of evaluators that were let go nobody asks any more


class Notes:
    """Exceptions by evaluator and target, until somebody takes them. From any thread."""

    def __init__(self) -> None:
        self._raised: OrderedDict[tuple[str, Target], BaseException] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: str, target: Target, error: BaseException) -> None:
        """An evaluator has raised."""
        with self._lock:
            self._raised[key, target] = error
            if len(self._raised) > MOST:
                self._raised.popitem(last=False)

    def take(self, key: str, target: Target) -> BaseException | None:
        """What an evaluator has raised on a target, if it did."""
        with self._lock:
            return self._raised.pop((key, target), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noting(Maker):
    """Makes feedback of what was raised, and notes it."""

    notes: Notes

    def failure(self, target: Target, error: BaseException, hint: str = "") -> list[Feedback]:
        """As of `Maker`."""
        self.notes.add(self.key, target, error)
        return Maker.failure(self, target, error, hint)


def noted(evaluator: Evaluator, notes: Notes) -> Evaluator:
    """The same evaluator; what it raises is noted."""
    made = {field.name: getattr(evaluator.make, field.name) for field in fields(Maker)}
    return replace(evaluator, make=Noting(notes=notes, **{**made, "key": evaluator.key}))
