"""User-defined judges: `judge(name, prompt, scale)` with few-shot examples, and panels of judges."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from keyword import iskeyword
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import orjson

from spanwise.collector.records import Case, Feedback, Target
from spanwise.evaluators.interface import (
    Evaluator,
    JudgeBackedFunction,
    Metric,
    Skip,
    Unjudged,
    as_evaluator,
    get_evaluator,
    get_judge_context,
    make_evaluator,
)
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, group_judgements, register_judge
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, Ask
from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge
from spanwise.evaluators.judges.prompt_templates import PLACEHOLDERS, Shot, neutralize, render_value
from spanwise.evaluators.judges.prompt_templates import prompt as load
from spanwise.evaluators.judges.ratings import Scale, ask_rating, make_scale, restore_boolean_label
from spanwise.tracer.suggestions import did_you_mean

# User-defined judges: `judge(name, prompt, scale)`, with few-shot examples.

_INVALID_SCHEMA_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
# parameters that receive complete records, and `self`; they cannot be placeholders
_RESERVED_NAMES = frozenset({"self", "case", "trace", "run", "root_run", "example"})
_CASE_PARAMETER = inspect.Parameter("case", inspect.Parameter.KEYWORD_ONLY, default=None)


@register_judge(
    "judge",
    metrics=(Metric("judge", None, primary=True),),
    source="a judge of one's own",
    canonical="",
    example='judge("polite", "Is it polite?\\n{outputs}", '
    'judge=scripted({"rationale": "It says please.", "rating": "yes"})), outputs="Wait a moment, please."',
)
class UserDefinedJudge(JudgeEvaluator):
    """User-defined judge: a question and its permitted ratings. Create one with `spanwise.evaluators.judge`.

    `prompt` names the fields that the judge gets: `{inputs}`, `{outputs}`, `{reference_outputs}`,
    `{documents}`, `{expected_documents}`, `{conditions}`, `{guidelines}`, `{history}`, `{metadata}`,
    `{trajectory}`, and further names from `map` (`map={"question": "inputs.question"}`). A case that lacks one
    of them is skipped. The meaning of the ratings and the form of the reply are appended.

    `scale` is two labels, of which the first is True, `("yes", "no")`; several labels; levels, `range(1, 6)`; a
    rubric, `{1: "rude", …, 5: "warm"}`; or labels with their scores, `{"good": 1, "bad": 0}`. `examples` are
    shown to the judge: dicts with the names in the prompt, a `rationale` and a `rating`. `logprobs` weights a
    graded score by the probability of each rating, as G-Eval does.
    """

    key: str
    prompt: str | Path
    scale: Any = ("yes", "no")
    examples: Sequence[Mapping[str, Any]] = ()
    map: Mapping[str, Any] | None = None
    higher_is_better: bool = True
    logprobs: bool = False
    _scale: Scale = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters must be an integer >= 1, got {self.max_characters!r}")
        for name in self.map or {}:
            if not name.isidentifier() or iskeyword(name) or name in _RESERVED_NAMES:
                raise ValueError(
                    f"map: {name!r} cannot be the name of a placeholder; use another name, such as 'question'"
                )
        scale = make_scale(self.scale)
        schema_name = _INVALID_SCHEMA_CHARACTERS.sub("_", self.key)[:64]
        prompt = load(schema_name, self.prompt, (*PLACEHOLDERS, *(self.map or {})), bound=self.max_characters)
        shots = make_shots(self.examples, prompt.asked, scale)
        text = f"{prompt.text.rstrip()}\n\n{scale.instructions()}"
        if isinstance(self.scale, Mapping):
            scale_values: Any = {str(restore_boolean_label(label)): value for label, value in self.scale.items()}
        else:
            scale_values = [restore_boolean_label(label) for label in self.scale]
        object.__setattr__(self, "scale", scale_values)
        object.__setattr__(self, "_scale", scale)
        object.__setattr__(self, "prompt", prompt.text)
        object.__setattr__(self, "_judge", make_judge(self.judge))
        object.__setattr__(self, "_prompt", replace(prompt, text=text, shots=shots))
        object.__setattr__(self, "_more", {})

    @property
    def named(self) -> str:
        """Return the feedback key."""
        return self.key

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metric of its scores."""
        return (self._scale.metric(self.key, self.higher_is_better),)

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the fields that the prompt names."""
        return make_signature(self._prompt.asked, self.map or {})

    async def __call__(self, case: Case, **values: Any) -> dict[str, Any]:
        others = {name: render_value(value) for name, value in values.items() if name not in Case.__dataclass_fields__}
        texts = self._values(case, others)
        return await ask_rating(self.key, self._judge, self._prompt, case, self._scale, texts, logprobs=self.logprobs)

    def exported(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        exported = {**JudgeEvaluator.exported(self, {**parameters, "prompt": None}), "prompt": self.prompt}
        return {**exported, "scale": self.scale} if "scale" in exported else exported

    def _settings_identity(self) -> list[Any]:
        worth = [[label, score] for label, score in self._scale.scores.items()]
        mapped = {name: path if isinstance(path, str) else repr(path) for name, path in (self.map or {}).items()}
        return [worth, mapped, self.logprobs, self.higher_is_better]


def judge(
    name: str,
    prompt: str | Path,
    scale: Any = ("yes", "no"),
    *,
    judge: Any = None,
    examples: Sequence[Mapping[str, Any]] = (),
    map: Mapping[str, Any] | None = None,
    threshold: float | None = None,
    higher_is_better: bool = True,
    logprobs: bool = False,
    max_characters: int | None = None,
    **options: Any,
) -> Evaluator:
    r"""Return a user-defined judge: `judge("polite", "Is this answer polite?\n{outputs}", ("yes", "no"))`.

    `UserDefinedJudge` documents the parameters. `judge` is a model's name, a `Judge`, a function, or None for
    the judge of the environment. `options` are those of `get_evaluator`. `to_dict` and `from_dict` write and
    read the definition. Raises `ValueError`.
    """
    if threshold is not None and make_scale(scale).range is None:
        raise ValueError(f"judge {name!r}: a threshold needs scores; pass a scale {{label: score, …}}")
    given = {
        "key": name,
        "prompt": prompt,
        "scale": scale,
        "judge": judge,
        "examples": examples,
        "map": map,
        "threshold": threshold,
        "higher_is_better": higher_is_better,
        "logprobs": logprobs,
        "max_characters": max_characters,
    }
    defaults = {"examples": (), "higher_is_better": True, "logprobs": False}
    parameters = {name: value for name, value in given.items() if value is not None and value != defaults.get(name)}
    return get_evaluator("judge", **parameters, **options)


def make_signature(names: Sequence[str], mapped: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a judge whose prompt has these placeholders: a parameter per required field, and the case.
    A case that lacks a required field is skipped.
    """
    fields = dict.fromkeys("trace" if name == "trajectory" and name not in mapped else name for name in names)
    # optional, because the inputs may contain the history
    optional = inspect.Parameter("history", _CASE_PARAMETER.kind, default=None)
    parameters = [
        optional if name == "history" and name not in mapped else inspect.Parameter(name, _CASE_PARAMETER.kind)
        for name in fields
    ]
    return inspect.Signature([*parameters, _CASE_PARAMETER])


REPLY_COLUMNS = ("rationale", "rating")  # columns of an example that form the reply of a good judge


def make_shots(examples: Iterable[Any], names: Sequence[str], scale: Scale) -> tuple[Shot, ...]:
    """Return the examples as few-shot turns. Raises `ValueError`, which names the unknown or missing column."""
    columns = (*names, *REPLY_COLUMNS)
    expected = ", ".join(columns)
    shots = []
    for number, row in enumerate(examples, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"example {number} must be a dict with {expected}, got {row!r:.200}")
        for name in row:
            if name not in columns:
                hint = did_you_mean(str(name), columns)
                raise ValueError(f"example {number} has the unknown column {name!r}; expected one of: {expected}{hint}")
        if missing := [name for name in columns if row.get(name) is None]:
            raise ValueError(f"example {number} lacks {', '.join(missing)}; it needs {expected}")
        label = scale.label_of(restore_boolean_label(row["rating"]))
        if label is None:
            labels = ", ".join(map(repr, scale.labels))
            raise ValueError(f"example {number} has the rating {row['rating']!r:.100}, which is none of {labels}")
        if not isinstance(row["rationale"], str) or not row["rationale"].strip():
            raise ValueError(f"example {number} has no rationale: a judge would learn to give none")
        reply = orjson.dumps({"rationale": neutralize(row["rationale"]), "rating": label}).decode()
        shots.append(Shot(tuple((name, render_value(row[name])) for name in names), reply))
    return tuple(shots)


# Judge panels: scores of several judges or samples, their agreement and the combined result.

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
