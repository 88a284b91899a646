"""Rules with something decided and done, as a monitor would leave them: through the verbs of a real store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collector.deciding import on, ruled, slice, traced
from spanwise.collector.records import Claim, ClaimResult, Decision, Feedback, TraceHead, Verdict, WorkerReport
from spanwise.collector.stores import Store

KEY = "concise"
OUTCOMES: dict[str, Any] = {"scored": "score", "skipped": "skip", "failed": "error"}


def taken(store: Store, name: str, heads: Sequence[TraceHead], rate: float = 1.0, **counts: int) -> None:
    """All of these are taken at a rate; as many others as `filtered` and `sampled_out` say are left out."""
    rows = (on(head, rule=name, probability=rate, u=rate / 2, rate=rate) for head in heads)
    names = [outcome for outcome, count in counts.items() for _ in range(count)]
    left_out = {f"{number:032x}": (number, outcome) for number, outcome in enumerate(names, 1_000)}
    made = slice(*rows, after=store.cursor(name, "1"), upto=heads[-1].cursor, outcomes=left_out)
    assert store.decide(replace(made, rule=name)) == [True]


def done(store: Store, name: str, *outcomes: tuple[Verdict, Any], again_s: float | None = None) -> list[Decision]:
    """Claim as many as there are outcomes, oldest first; each ends with a verdict, and a score or words."""
    claimed = store.claim(name, "1", "here/1", 60, limit=len(outcomes))
    finishes = [_finish(one, *outcome, again_s) for one, outcome in zip(claimed, outcomes, strict=True)]
    assert store.finish(*finishes) == ["finished"] * len(claimed)
    return claimed


def _finish(one: Decision, verdict: Verdict, said: Any, again_s: float | None) -> ClaimResult:
    given = {"scored": {"score": said}, "failed": {"error": said}}.get(verdict, {})
    feedback = Feedback(target=one.target, key=KEY, outcome=OUTCOMES.get(verdict, "skip"), rule=one.rule, **given)
    return ClaimResult(
        claim=Claim(project="default", rule=one.rule, version=one.version, target=one.target, number=one.claim),
        verdict=verdict,
        reason="" if verdict in OUTCOMES else str(said),
        states={KEY: {"state": verdict if verdict in OUTCOMES else "waiting", **given}},
        reported=(KEY,) if verdict in OUTCOMES else (),
        feedback=(replace(feedback, claim=one.claim),) if verdict in OUTCOMES else (),
        read_change=one.runs_change,
        attempts=1,
        again_s=again_s,
    )


def told(store: Store, *names: str, version: str = "1", **said: Any) -> None:
    """A worker runs these rules; `said` is what it says, where it is of rules of each."""
    rules = dict.fromkeys(names, version)
    said = {name: dict.fromkeys(names, one) if isinstance(one, dict | str) else one for name, one in said.items()}
    store.report(WorkerReport(holder="here/1", project="default", rules=rules, data=said))


def monitored(store: Store) -> list[str]:
    """Two rules that have seen ten traces: one on half of them, one that fails. Returns the ids."""
    ruled(store, name="short", filter={"name": "answer"})
    ruled(store, name="bad <b>")
    heads = traced(store, 10)
    taken(store, "short", heads[:5], rate=0.5, filtered=2, sampled_out=3)
    done(store, "short", ("scored", True), ("scored", False), ("skipped", None), ("failed", "ValueError: <no>"))
    taken(store, "bad <b>", heads[-1:])
    done(store, "bad <b>", ("failed", "TypeError: 'bad'"))
    told(store, "short", "bad <b>", finished_per_s=2.5, evaluators={KEY: {"looked": 4, "failed": 1, "p95_s": 0.2}})
    return [head.trace_id for head in heads]
