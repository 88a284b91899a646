"""The one structured filter for traces, used alike by stores, API, client, command line and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Operator = Literal["<", "<=", "=", "!=", ">=", ">"]
Comparison: TypeAlias = tuple[Operator, float]
FeedbackCondition: TypeAlias = tuple[str, Operator, float | str]
OPERATORS: tuple[Operator, ...] = ("<", "<=", "=", "!=", ">=", ">")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on traces; all that are given must hold.

    `name`, `kind` and `status` hold when the root run has them; `any_name` and `any_kind` when some run has.
    `latency_ms`, `tokens` and `cost` speak of the whole trace. `feedback` is a tuple of `(key, operator, value)` over
    the newest feedback of the trace and its spans; `missing` names keys for which there is no score.
    `failed` and `skipped` name keys whose newest outcome is an error or a skip.
    """

    project: str | None = None
    environment: str | None = None
    since_ns: int | None = None  # trace starts at or after
    until_ns: int | None = None  # trace starts before
    name: str | None = None
    kind: str | None = None
    any_name: str | None = None
    any_kind: str | None = None
    status: str | None = None  # "ok" holds for every trace whose root has no error; "error" for the others
    error: str | None = None  # words of the error's text
    model: str | None = None  # some run used this model
    latency_ms: Comparison | None = None
    tokens: Comparison | None = None
    cost: Comparison | None = None
    tags: tuple[str, ...] = ()  # all of them
    metadata: Mapping[str, str] = field(default_factory=dict)  # key: value as text
    session: str | None = None
    user: str | None = None
    feedback: tuple[FeedbackCondition, ...] = ()
    missing: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    text: str | None = None  # words in inputs or outputs of any run
    experiment: str | None = None  # id; "" for traces of no experiment
    experiments: tuple[str, ...] | None = None  # any of these ids
    dataset: str | None = None  # name of the dataset of the trace's experiment
    example: str | None = None
    complete: bool | None = None
    trace_ids: tuple[str, ...] | None = None
