"""Evaluators that ask a model in steps, the cases of a batch together: what fails for one case is that case's alone.

A class says, as one generator, what it asks of its model for a case and what the replies make of it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import orjson

from spanwise.collector.records import Case
from spanwise.evaluators.models._find import NoModel
from spanwise.evaluators.protocol import Metric
from spanwise.evaluators.protocol._own import entry_of

Asked = TypeVar("Asked")
Reply = TypeVar("Reply")
Steps: TypeAlias = Generator[Sequence[Asked], Mapping[Asked, Reply], Any]
"""Yields what it asks, gets the replies, returns what an evaluator returns; may yield several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise(ABC, Generic[Asked, Reply]):
    """Base of the frozen dataclasses. `PRESET` names the model that is taken where none is named, `DEFAULT_MODEL` says
    so in words, with its limits. `DOCUMENT` names the model of the document, whose thresholds hold for no other: with
    another one nothing passes or fails until one is given (`threshold=`) or fitted.
    """

    DOCUMENT: ClassVar[str | None] = None
    PRESET: ClassVar[str]
    DEFAULT_MODEL: ClassVar[str]

    @abstractmethod
    def _steps(self, case: Case) -> Steps[Asked, Reply]:
        """Of one case."""

    @abstractmethod
    def _replies(self, asked: Sequence[Asked]) -> Mapping[Asked, Reply | Exception]:
        """What the model says to each, or why it fails for this one. Raises `NoModel`."""

    @abstractmethod
    def _load(self) -> None:
        """Have the model in memory. Raises `NoModel`."""

    @property
    @abstractmethod
    def _model(self) -> Mapping[str, Any]:
        """What the scores depend on, of the model; its name is `model`."""

    def batch(self, cases: Sequence[Case]) -> list[Any]:
        """What each case comes to, or the exception that it raised; what the cases ask in a step goes together."""
        came: list[Any] = [None] * len(cases)
        try:
            self._load()
        except NoModel as error:
            return [error] * len(cases)
        going: dict[int, tuple[Steps[Asked, Reply], Sequence[Asked]]] = {}
        for place, case in enumerate(cases):
            _advance(going, came, place, self._steps(case), None)
        while going:
            replies = self._replies([one for _, asked in going.values() for one in asked])
            for place, (steps, asked) in list(going.items()):
                _advance(going, came, place, steps, {one: replies[one] for one in asked})
        return came

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """With the document's thresholds where the model is the document's."""
        known = entry_of(self)
        metrics = known.spec.metrics if known else ()
        if self.DOCUMENT in (None, self._model["model"]):
            return metrics
        return tuple(replace(metric, threshold=None) for metric in metrics)

    @property
    def version(self) -> str:
        """8 hex digits over what its scores depend on: model and parameters."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.init and one.name != "model"}
        return hashlib.sha256(orjson.dumps([dict(self._model), own], default=repr)).hexdigest()[:8]

    def _one(self, **known: Any) -> Any:
        """What a batch of one comes to, of which these fields are known. Raises what it raises."""
        [came] = self.batch([cast(Case, SimpleNamespace(**known))])
        if isinstance(came, BaseException):
            raise came
        return came


def _advance(
    going: dict[int, tuple[Steps[Asked, Reply], Sequence[Asked]]],
    came: list[Any],
    place: int,
    steps: Steps[Asked, Reply],
    replies: Mapping[Asked, Reply | Exception] | None,
) -> None:
    """One step of one case: it asks, is done, or has failed; a reply that is an exception is raised in it."""
    going.pop(place, None)
    try:
        failed = next((one for one in (replies or {}).values() if isinstance(one, Exception)), None)
        asked = steps.throw(failed) if failed else steps.send(replies)  # type: ignore[arg-type]  # None begins
        going[place] = steps, asked
    except StopIteration as done:
        came[place] = done.value
    except Exception as error:
        came[place] = error
