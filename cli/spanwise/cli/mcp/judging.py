"""Tools that tell what was said of traces, why a rule did or did not score one, and what senders leave out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field

from spanwise.cli._common import conditions, whole_id
from spanwise.cli.doctor import diagnosis
from spanwise.cli.mcp import shown
from spanwise.cli.mcp.reading import Cursor, Limit, Since, TraceId, Where, trace_of
from spanwise.collector import verdicts
from spanwise.collector.records import Condition, Decision, Feedback, Target, Why, paged
from spanwise.collector.senders import Sender
from spanwise.collector.stores import Store

Key = Annotated[str | None, Field(description="Only under this key.")]
OnTrace = Annotated[str | None, Field(description="Only on this trace.")]
Order = Annotated[
    Literal["newest", "lowest", "highest"],
    Field(description="lowest and highest sort the newest 2,000 by score; newest reads on with `cursor`."),
]
Outcome = Annotated[
    Literal["score", "error", "skip"] | None, Field(description="Only scores, only errors, or only skips.")
]
LOOKED = 2_000  # feedbacks that are sorted
SENDERS = 2_000  # spans that are looked at


def list_feedback(
    store: Store,
    key: Key = None,
    trace_id: OnTrace = None,
    where: Where = None,
    since: Since = None,
    outcome: Outcome = None,
    order: Order = "newest",
    limit: Limit = 20,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """What evaluators and people said, with their reasons (`comment`), errors and skips.

    The worst traces under a key: order "lowest".
    """
    target = None if trace_id is None else Target(trace_id=whole_id(store, trace_id.lower()))
    ask = partial(store.feedbacks, conditions(where, since=since), key=key, target=target)
    if order == "newest" and outcome is None:
        page = ask(limit=limit, cursor=cursor)
        return shown.answer(feedback=shown.within(map(shown.feedback, page)), next=page.next)
    looked = list(islice(paged(partial(ask, limit=500)), LOOKED))
    found = [one for one in looked if outcome in (None, one.outcome)]
    if order != "newest":
        found = sorted((one for one in found if one.score is not None), key=_score, reverse=order == "highest")
    return shown.answer(looked_at=len(looked), feedback=shown.within(map(shown.feedback, found[:limit])))


def _score(one: Feedback) -> float:
    return float(one.score or 0.0)


def why_scored(store: Store, trace_id: TraceId) -> dict[str, Any]:
    """Why each rule did, or did not, score a trace, and which evaluators failed or skipped on it, with the reason."""
    trace = trace_of(store, trace_id)
    whole = trace.trace_id
    unscored = [shown.feedback(one) for one in trace.feedback if one.outcome != "score"]
    scored = [shown.feedback(one) for one in trace.feedback if one.outcome == "score"]
    found = store.why(whole)
    skipped = any(one.verdict == "skipped" for one in found) or any(one["outcome"] == "skip" for one in unscored)
    return shown.answer(
        trace_id=shown.id_(whole),
        complete=trace.complete,
        rules=shown.within(map(_why, found[:100])),
        note=None
        if found
        else "no rules are in force in the trace's project: `spanwise monitor rules.py` carries some out",
        hint="diagnose_senders says what the sender's spans hold, and what was not read" if skipped else None,
        scored=shown.within(scored[:50]),
        failed_or_skipped=shown.within(unscored[:50]),
    )


def _why(one: Why) -> dict[str, Any]:
    return {
        "verdict": one.verdict,
        "untrusted": {
            "rule": shown.name(one.rule.name),
            "reason": shown.said_by(verdicts.reason(one)),
            "conditions": list(map(_condition, one.conditions)),
            "sample": verdicts.sampling(one) or None,
            "budget": [str(spent) for spent in verdicts.spending(one.rule, one.budget)] if one.budget else [],
            "decisions": [_decision(decision) for decision in one.decisions[:20]],
        },
    }


def _condition(one: Condition) -> dict[str, Any]:
    return {"passes": one.passes, "condition": shown.said_by(verdicts.condition(one))}


def _decision(one: Decision) -> dict[str, Any]:
    return {
        "target": shown.name(verdicts.target(one)),
        "verdict": one.verdict,
        "reason": shown.said_by(one.reason),
        "facts": [shown.said_by(fact) for fact in verdicts.facts(one, time.time_ns())],
        "evaluators": [
            {"key": shown.name(key), "state": shown.name(state), "error": shown.said_by(error)}
            for key, state, error in verdicts.states(one)[: shown.NAMES]
        ],
    }


def explain_filter(store: Store, trace_id: TraceId, where: Where = None) -> dict[str, Any]:
    """Condition by condition, with the value seen, why a trace passes conditions or not."""
    found = store.explain(trace_of(store, trace_id).trace_id, conditions(where))
    return shown.answer(
        passes=all(one.passes is not False for one in found),
        untrusted={"conditions": list(map(_condition, found))},
    )


def diagnose_senders(store: Store, where: Where = None, since: Since = None) -> dict[str, Any]:
    """Per sender (service, instrumentation, SDK) how many of its latest spans have inputs, outputs, documents, model,
    tokens, session; attributes that nobody has read; what the sender can do; and what else is wrong, as dropped spans
    or rules that nobody carries out. It explains a skip such as "no documents".
    """
    found = diagnosis(store, conditions(where, since=since), SENDERS)
    return shown.answer(
        looked_at=found.looked_at,
        senders=shown.within(map(_sender, found.seen.senders[:50])),
        untrusted={"troubles": [shown.said_by(one) for one in found.wrong[:50]]},
    )


def _sender(one: Sender) -> dict[str, Any]:
    return {
        "spans": one.spans,
        "traces": one.traces,
        "kinds": dict(one.kinds),
        "shares": {name: share._asdict() for name, share in one.shares.items()},
        "untrusted": {
            **{name: shown.name(value) for name, value in one.who._asdict().items()},
            "unread_attributes": {shown.name(name): count for name, count in one.unread.items()},
            "hints": [shown.said_by(hint) for hint in one.hints],
        },
    }


JUDGING: Sequence[Any] = (list_feedback, why_scored, explain_filter, diagnose_senders)
