"""Words that several records share."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

JSON: TypeAlias = Any  # None, bool, int, float, str, list or dict of these
Status = Literal["unset", "ok", "error"]
Outcome = Literal["score", "error", "skip"]
Source = Literal["code", "model", "human"]
DatasetKind = Literal["kv", "llm", "chat"]
Verdict = Literal["filtered", "sampled_out", "over_budget", "pending", "taken", "done", "error"]
QueueStatus = Literal["waiting", "done", "skipped"]
