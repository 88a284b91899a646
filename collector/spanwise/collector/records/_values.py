"""Words that several records share."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

JSON: TypeAlias = Any  # None, bool, int, float, str, list or dict of these
Status = Literal["unset", "ok", "error", "cancelled"]
Outcome = Literal["score", "error", "skip"]
Source = Literal["code", "model", "human"]
DatasetKind = Literal["kv", "llm", "chat"]
Verdict = Literal[  # of these the first two are computed, never stored
    "filtered",
    "sampled_out",
    "waiting",
    "throttled",
    "over_budget",
    "running",
    "scored",
    "skipped",
    "failed",
    "superseded",
]
RuleTarget = Literal["trace", "span", "document", "session"]
Scope = Literal["live", "experiments", "both"]
Period = Literal["minute", "day"]
QueueStatus = Literal["waiting", "done", "skipped"]
