"""One evaluator's judgement of one case: its questions, what they cost, and the feedback that comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from spanwise.collector.records import JSON, Case
from spanwise.evaluators.judges._ask import Answer, Ask, ParseFailure
from spanwise.evaluators.judges._judge import Judge
from spanwise.evaluators.judges._prompts import Prompt
from spanwise.evaluators.judges._traced import Traced
from spanwise.evaluators.protocol import Skip, Unjudged, surroundings

SAMPLES = 1_000  # of one question in one repetition, at most
_SPENT = ("calls", "input_tokens", "output_tokens", "cost")  # what an `Unjudged` may say of its question
_SAID = ("key", "score", "label", "comment", "error")  # of a row, what its trace says again


class Judgement:
    """`async with Judgement("faithfulness", judge, case) as judgement:` ask as often as needed, return `row(…)`.

    It is a trace of its own, of kind evaluator, with a run per question; `judge_trace_id` of the feedback is its id.
    What is raised inside bears what was found out so far.
    """

    def __init__(self, evaluator: str, judge: Judge, case: Case) -> None:
        self._evaluator = evaluator
        self._judge = judge
        self._case = case
        self._trace: Traced | None = None
        self._rows: list[dict[str, Any]] = []
        self._asked_with: dict[str, None] = {}  # labels of prompts
        self._in_vain: list[dict[str, Any]] = []  # what questions have taken that came to no answer
        self.answers: list[tuple[Prompt, Answer]] = []
        self.trace_id: str | None = None
        self._left_out: dict[str, int] = {}  # characters by name of a value, the most of all questions

    async def __aenter__(self) -> Self:
        self._trace = Traced(self._evaluator, self._case)
        self.trace_id = self._trace.id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        spent = bool(self.answers) or not isinstance(error, Skip)  # a question that was never asked is no judgement
        if self._trace is not None and not self._trace.end(self._said(), (kind, error, frames), kept=spent):
            self.trace_id = None
            for row in self._rows:
                row["judge_trace_id"] = None
        if isinstance(error, Unjudged):
            error.metadata = {**self.metadata(), **error.metadata}
            error.judge_trace_id = self.trace_id

    async def ask(
        self,
        prompt: Prompt,
        values: Mapping[str, str],
        schema: Mapping[str, JSON] | None = None,
        *,
        sample: int = 0,
        logprobs: int = 0,
    ) -> Answer:
        """One question. Raises `ParseFailure` and other `Unjudged`, `Skip` when a budget is used up."""
        for name, characters in prompt.left_out(values).items():
            self.leave_out(name, characters)
        ask = Ask(
            messages=prompt.messages(values),
            schema=schema,
            name=prompt.id,
            sample=self._repetition * SAMPLES + sample,
            logprobs=logprobs,
            values=tuple(values[name] for name in prompt.asked),
        )
        return await self._asked(prompt, ask)

    def leave_out(self, name: str, characters: int) -> None:
        """Record that so many characters of a value are not shown to the judge, so that the feedback says it."""
        self._left_out[name] = max(characters, self._left_out.get(name, 0))

    async def _asked(self, prompt: Prompt, ask: Ask) -> Answer:
        if self._trace is None:
            raise RuntimeError("a judgement is entered before it asks: async with Judgement(…) as judgement")
        self._asked_with[prompt.label] = None
        with self._trace.question(prompt, ask) as question:
            try:
                answer = await self._judge.ask(ask)
            except Unjudged as error:
                spent = {name: error.metadata[name] for name in _SPENT if error.metadata.get(name) is not None}
                error.metadata = {name: told for name, told in error.metadata.items() if name not in _SPENT}
                self._in_vain.append(spent)
                question.failed(error.text if isinstance(error, ParseFailure) else None, spent)
                raise
            question.answered(answer)
        self.answers.append((prompt, answer))
        return answer

    @property
    def _repetition(self) -> int:
        """Which repetition of an experiment is judged: none is answered by what was said of another."""
        if self._case.run is not None:
            return self._case.run.repetition
        return surroundings().repetition or 0

    def row(self, score: Any = None, *, comment: str | None = None, **more: Any) -> dict[str, Any]:
        """What an evaluator returns: a score and why, what it took, and where it can be seen.

        `more` are fields of feedback (`key`, `label`, …); `metadata` among them stand beside those of the judge.
        """
        metadata = {**(more.pop("metadata", None) or {}), **self.metadata()}
        if self._left_out:
            missing = " and ".join(f"{count:,} characters of {name}" for name, count in self._left_out.items())
            comment = f"{comment or 'no reasons given'} [not shown to the judge: {missing}]"
        row = {"score": score, "comment": comment, "metadata": metadata, "judge_trace_id": self.trace_id, **more}
        self._rows.append(row)
        return row

    def metadata(self) -> dict[str, Any]:
        """Model, endpoint, prompts with their hashes, tokens, cost, what was noted, how many answers were cached, how
        many characters of which value were left out.

        Tokens and cost are of the calls that were made: None where no reply told them. The cost is None, too, where
        that of one call is not known.
        """
        answers = [answer for _, answer in self.answers]
        spent = [*map(_spent, answers), *self._in_vain]
        identity = self._judge.identity
        judge = {
            "model": identity.get("model"),
            "endpoint": identity.get("endpoint"),
            "prompts": sorted(self._asked_with),
            **{name: _sum(each.get(name) for each in spent) for name in _SPENT},
            "cost": _cost(spent),
            "cached": sum(answer.cached for answer in answers),
            "left_out": self._left_out,
            "notes": list(dict.fromkeys(note for answer in answers for note in answer.notes)),
        }
        return {"judge": {name: value for name, value in judge.items() if value not in (None, [], {})}}

    def _said(self) -> JSON:
        said = [{name: row[name] for name in _SAID if row.get(name) is not None} for row in self._rows]
        return said[0] if len(said) == 1 else said or None


def _spent(answer: Answer) -> dict[str, Any]:
    if answer.cached:
        return {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": 0.0}
    tokens = (answer.usage.input_tokens, answer.usage.output_tokens) if answer.usage is not None else (None, None)
    return {"calls": answer.calls, "input_tokens": tokens[0], "output_tokens": tokens[1], "cost": answer.cost}


def _cost(spent: Iterable[Mapping[str, Any]]) -> float | None:
    """Return what questions have cost; None where one of them took tokens whose price is not known, or untold ones."""
    priced = [each.get("cost") for each in spent if each.get("calls") or each.get("cost") is not None]
    return None if None in priced else _sum(priced)


def _sum(amounts: Iterable[Any]) -> Any:
    """Of those that are known; None where none is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
