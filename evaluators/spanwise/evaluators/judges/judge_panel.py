"""Judge panels: scores of several judges or samples, their agreement and the combined result."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, ClassVar

from spanwise.collector.records import Case, Feedback, Target
from spanwise.evaluators.interface import (
    Evaluator,
    JudgeBackedFunction,
    Skip,
    Unjudged,
    as_evaluator,
    get_judge_context,
    make_evaluator,
)
from spanwise.evaluators.judges.judgement import group_judgements
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, Ask
from spanwise.evaluators.judges.llm_client.judge_call import Judge

_PANEL_TARGET = Target(trace_id="0" * 32)  # target of the members' feedback, which is never stored
_SUMMED_FIELDS = ("input_tokens", "output_tokens", "cost", "calls", "cached")


class _SampledJudge(Judge):
    """Judge that asks for one of several independent samples of each question."""

    __slots__ = ("_which",)
    _which: tuple[Judge, int, int]  # judge, index of the sample, number of samples

    async def ask(self, ask: Ask) -> Answer:
        judge, number, count = self._which
        return await judge.ask(replace(ask, sample=ask.sample * count + number))


@dataclass(frozen=True, slots=True)
class Panel:
    """Panel of members that judge the same case. The majority decides; grades are averaged.

    A member that fails or skips is not counted. `notes` describe changes to the members' settings.
    """

    # Replaces module path and source text in the versions of rules, which stay the same when either changes. The
    # evaluator's own version covers all that affects results.
    RULE_IDENTITY: ClassVar = ("assay.evaluators.judges._panel:Panel", "0d6076b8ddb7")

    members: tuple[Evaluator, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def judges(self) -> tuple[Judge, ...]:
        """Return all judges that the members may call."""
        return tuple(judge for asking in self._asking for judge in getattr(asking, "judges", ()))

    @property
    def where(self) -> tuple[str, ...]:
        """Return descriptions of the endpoints or functions that receive the prompts."""
        return tuple(dict.fromkeys(where for asking in self._asking for where in asking.where))

    def ready(self) -> None:
        """Raise `NoJudge` if one of the members cannot be called."""
        for asking in self._asking:
            asking.ready()

    @property
    def _asking(self) -> list[JudgeBackedFunction]:
        return [member.asking for member in self.members if member.asking is not None]

    async def __call__(self, case: Case) -> dict[str, Any]:
        with group_judgements(get_judge_context().evaluator or "panel", case):
            results = await asyncio.gather(*(member.evaluate(case, _PANEL_TARGET) for member in self.members))
            rows = [  # one row per member: the row under the member's key, else its first row
                next((row for row in feedback if row.key == member.key), feedback[0])
                for member, feedback in zip(self.members, results, strict=True)
            ]
            voting = [row for row in rows if row.outcome == "score"]
            if not voting:
                _raise_no_vote(rows)
            return _combine_votes(rows, voting, self.notes)


def panel(
    *members: Any, samples: int = 1, temperature: float = 0.7, key: str | None = None, threshold: float | None = None
) -> Evaluator:
    """Combine several evaluators into one: `panel(polite, samples=5)`, or `panel(get_evaluator("safety", judge=a),
    get_evaluator("safety", judge=b))`.

    With `samples`, each member is asked that many times at the given temperature, because samples at temperature 0
    would hardly differ. Only judges can be sampled. The score or label is that of the majority. Grades are averaged.
    A tie between yes and no, or between labels, gives a skip.

    The comment is that of a member of the majority. The metadata have `confidence`, the share of the majority, and
    the result of each member.

    Raises `ValueError` without members, for fewer than one sample, for an evaluator of a whole set, and for several
    samples of a member without a judge.
    """
    if not members or samples < 1:
        raise ValueError(
            f"a panel needs at least one member and samples >= 1, got {len(members)} members and samples={samples!r}"
        )
    evaluators = [as_evaluator(member) for member in members]
    if summaries := [member.key for member in evaluators if member.summary]:
        raise ValueError(f"a panel needs evaluators of single cases; {summaries[0]!r} evaluates a whole set")
    if samples > 1:
        evaluators = [each for member in evaluators for each in _make_samples(member, samples, temperature)]
    first = evaluators[0]
    identity = [[member.key, member.version] for member in evaluators], samples, temperature if samples > 1 else None
    notes = (f"asked {samples} times at temperature {temperature:g}",) if samples > 1 else ()
    options: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    return make_evaluator(
        Panel(tuple(evaluators), notes),
        name=key or first.key,
        version=hashlib.sha256(repr(identity).encode()).hexdigest()[:8],
        metrics=[replace(metric, key=key or first.key) for metric in first.metrics[:1]],
        source="model",
        parameters={} if samples == 1 else {"samples": samples, "temperature": temperature},
        **options,
    )


def _make_samples(member: Evaluator, samples: int, temperature: float) -> list[Evaluator]:
    instance: Any = member.function
    judge = getattr(instance, "_judge", None)
    if not isinstance(judge, Judge):
        raise ValueError(
            f"samples={samples} needs members with a judge; {member.key!r} has none: it is {instance!r:.200}"
        )
    warm = replace(judge, temperature=temperature)
    members = []
    for number in range(samples):
        sampled = _SampledJudge(**{each.name: getattr(warm, each.name) for each in fields(Judge) if each.init})
        object.__setattr__(sampled, "_which", (warm, number, samples))
        members.append(replace(member, function=replace(instance, judge=sampled)))
    return members


def _raise_no_vote(rows: Sequence[Feedback]) -> None:
    """Raise `Unjudged` if a member failed, else `Skip`."""
    errors = [row for row in rows if row.outcome == "error"]
    if not errors:
        raise Skip(rows[0].comment or "no member of the panel gave a score")
    failed = Unjudged(
        f"all {len(rows)} members failed, for example: {errors[0].error}", {"panel": list(map(_describe_vote, rows))}
    )
    failed.judge_trace_id = errors[0].judge_trace_id
    raise failed


def _combine_votes(rows: Sequence[Feedback], voting: Sequence[Feedback], notes: Sequence[str]) -> dict[str, Any]:
    votes = [row.label if row.score is None else row.score for row in voting]
    graded = [float(vote) for vote in votes if isinstance(vote, float) and not isinstance(vote, bool)]
    (winner, count), *others = Counter(votes).most_common(2)
    share = round(count / len(voting), 6)
    metadata = {"panel": list(map(_describe_vote, rows)), "confidence": share, "judge": _sum_costs(rows, notes)}
    if len(graded) == len(votes):
        mean = fmean(graded)
        closest = min(voting, key=lambda row: abs(float(row.score or 0) - mean))
        return {"score": mean, **_quote_member(closest), "metadata": metadata}
    if others and others[0][1] == count:
        names = {True: "yes", False: "no"}
        divided = ", ".join(
            f"{names[vote] if isinstance(vote, bool) else vote} {number}"
            for vote, number in Counter(votes).most_common()
        )
        return {"score": None, "comment": f"the panel is divided: {divided}", "metadata": metadata}
    member = next(row for row, vote in zip(voting, votes, strict=True) if vote == winner)
    return {"score": winner, **_quote_member(member), "metadata": metadata}


def _quote_member(member: Feedback) -> dict[str, Any]:
    return {"comment": member.comment, "judge_trace_id": member.judge_trace_id}


def _describe_vote(row: Feedback) -> dict[str, Any]:
    """Return the result of one member as a dict, with the id of its judgement's trace."""
    judge = row.metadata.get("judge")
    vote = {
        "model": judge.get("model") if isinstance(judge, dict) else None,
        "score": row.score,
        "label": row.label,
        "error": row.error,
        "comment": row.comment,
        "trace": row.judge_trace_id,
    }
    return {name: value for name, value in vote.items() if value is not None}


def _sum_costs(rows: Sequence[Feedback], notes: Sequence[str]) -> dict[str, Any]:
    """Return tokens, cost and calls of all members together, and notes, such as the number of failed members."""
    failed = sum(row.outcome == "error" for row in rows)
    notes = [*notes, *[f"{failed} of {len(rows)} members failed"] * (failed > 0)]
    judges = [judge for row in rows if isinstance(judge := row.metadata.get("judge"), dict)]
    sums = {
        name: sum(amounts) for name in _SUMMED_FIELDS if (amounts := [judge[name] for judge in judges if name in judge])
    }
    models = sorted({str(judge["model"]) for judge in judges if judge.get("model")})
    member_notes = [note for judge in judges for note in judge.get("notes", ())]
    return {"model": ", ".join(models), **sums, "notes": list(dict.fromkeys([*notes, *member_notes]))}
