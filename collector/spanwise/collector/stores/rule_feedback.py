"""Feedback of rules: which scores a lease replaces, and which are outdated, by the numbers of the leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.stores.backends import TargetFeedback

ClaimKey: TypeAlias = tuple[Any, ...]  # scope of a lease number: target, rule, evaluator


class RuleFeedback(NamedTuple):
    """Fields of a rule's feedback that decide which score replaces which.

    `claim` is the number of the lease under which the feedback was written, 0 for none.
    """

    id: str
    claim: int
    trace_id: str | None
    span_id: str | None
    document: int | None
    session_id: str | None
    experiment_id: str | None
    project: str | None
    rule: str
    evaluator: str | None

    @property
    def claim_key(self) -> ClaimKey:
        """Return target, rule and evaluator."""
        return self[2:]


def compare_claims(rows: Sequence[RuleFeedback], stored: Sequence[RuleFeedback]) -> tuple[set[str], set[str]]:
    """Return the ids of new rows that are outdated, and of stored rows to be deleted.

    A row is outdated if the same target, rule and evaluator has feedback with a higher lease number. Stored rows that
    a new row overwrites are not deleted.
    """
    highest: dict[ClaimKey, int] = {}
    for row in (*stored, *rows):
        highest[row.claim_key] = max(row.claim, highest.get(row.claim_key, 0))
    late = {row.id for row in rows if row.claim < highest[row.claim_key]}
    replaced = {row.id for row in stored if row.claim < highest[row.claim_key]}
    return late, replaced - {row.id for row in rows if row.id not in late}


def find_replaced(new: TargetFeedback, stored: Sequence[RuleFeedback]) -> list[RuleFeedback] | None:
    """Return the stored feedback that a set replaces; None if some of it has a higher lease number."""
    target = new.target  # feedback on a part of the target is replaced, too
    replaced = [
        row
        for row in stored
        if (new.anew or row.evaluator in new.evaluators)
        and target.span_id in (None, row.span_id)
        and target.document in (None, row.document)
    ]
    return None if any(row.claim > new.claim for row in replaced) else replaced
