"""Pairwise comparison of two answers or experiments by a judge, in both orders.

The method is that of MT-Bench (Zheng et al. 2023, arXiv 2306.05685, section 3.4).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import fmean
from typing import Any, Literal, Protocol, TypeAlias

from spanwise.collector.records import Feedback, Target
from spanwise.collector.statistics import sign_flip_test
from spanwise.evaluators.interface import (
    JudgementBuffer,
    Skip,
    Unjudged,
    get_judge_context,
    run_coroutine,
    use_judge_context,
)
from spanwise.evaluators.judges.judge_evaluator import Judgement
from spanwise.evaluators.judges.llm_client.chat_completions import ParseFailure
from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge
from spanwise.evaluators.judges.prompt_templates import Prompt, prompt, render_value
from spanwise.evaluators.judges.ratings import make_rating_schema
from spanwise.evaluators.scoring.case_scoring import make_case

Winner: TypeAlias = Literal["first", "second", "tie"]

_NAMES = ("inputs", "first", "second")
_SCHEMA = make_rating_schema(("A", "B", "tie"))
_REPETITION = " ×"  # separates the example id of a run from the number of its repetition
_PAIRS_PER_BATCH = 50  # pairs that are judged together
_WINNER_SCORES: Mapping[Winner, float] = {"first": 1.0, "tie": 0.5, "second": 0.0}
_SWAPPED_WINNER: Mapping[Winner, Winner] = {"first": "second", "second": "first", "tie": "tie"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Result of comparing one pair of answers.

    `verdicts` holds the better answer as judged with the first answer shown first, then with the second answer
    shown first. `winner` is the answer that both name, else "tie". `turned` is the position that the judge
    preferred if its verdict changed with the order.
    """

    winner: Winner
    verdicts: tuple[Winner, Winner]
    rationales: tuple[str | None, str | None]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    judge_trace_id: str | None = None

    @property
    def turned(self) -> Literal["first", "second"] | None:
        """Return "first" if the judge preferred the answer shown first in both orders, "second" for the opposite, else
        None.
        """
        return {("first", "second"): "first", ("second", "first"): "second"}.get(self.verdicts)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """Results of comparing all pairs of two experiments: wins, ties and errors."""

    key: str
    names: tuple[str, str]
    pairs: Mapping[str, Preference]  # by example id, with the repetition unless it is the first
    errors: Mapping[str, str]
    alone: int  # runs without a counterpart, or that failed

    @property
    def wins(self) -> tuple[int, int]:
        """Return the number of pairs that the first experiment won, and the number that the second won."""
        winners = [preference.winner for preference in self.pairs.values()]
        return winners.count("first"), winners.count("second")

    @property
    def ties(self) -> int:
        """Return the number of pairs that neither won."""
        return len(self.pairs) - sum(self.wins)

    @property
    def turned(self) -> tuple[int, int]:
        """Return the number of verdicts that changed with the order: in favour of the answer shown first, and of the one
        shown second.
        """
        places = [preference.turned for preference in self.pairs.values()]
        return places.count("first"), places.count("second")

    @property
    def p(self) -> float | None:
        """Return the p-value of the hypothesis that neither experiment is better; None without pairs.

        Repetitions of an example are averaged first. The test flips the signs of the examples' results.
        """
        results: dict[str, list[float]] = {}
        for run, preference in self.pairs.items():
            results.setdefault(run.rpartition(_REPETITION)[0] or run, []).append(_WINNER_SCORES[preference.winner])
        return sign_flip_test([2 * fmean(scores) - 1 for scores in results.values()]) if results else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        pairs = {
            id: {"winner": preference.winner, "verdicts": list(preference.verdicts)}
            for id, preference in self.pairs.items()
        }
        names = {"key": self.key, "names": list(self.names), "errors": dict(self.errors), "alone": self.alone}
        return {**names, "wins": list(self.wins), "ties": self.ties, "turned": list(self.turned), "pairs": pairs}

    def __str__(self) -> str:
        (first, second), (to_first, to_second) = self.wins, self.turned
        lines = [f"{self.key}: {self.names[0]} wins {first}, {self.names[1]} wins {second}, {self.ties} ties"]
        if self.p is not None:
            lines.append(f"p {self.p:.3g} that neither is better")
        if to_first or to_second:
            lines.append(f"{to_first + to_second} verdicts turned with the order: {to_first} to the answer shown first")
        if self.errors:
            lines.append(f"{len(self.errors)} pairs could not be judged, as with: {next(iter(self.errors.values()))}")
        return "\n".join([*lines, f"{self.alone} runs failed or have no counterpart" * bool(self.alone)]).rstrip()


class ComparedRuns(Protocol):
    """Interface of an experiment that can be compared."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Any: ...
    def rows(self) -> Iterator[Any]:
        """Return rows with `example_id`, `repetition`, `inputs`, `outputs`, `error` and `trace`."""
        ...


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Judge that names the better of two answers. Create one with `pairwise`."""

    key: str
    prompt: Prompt
    judge: Judge

    @property
    def version(self) -> str:
        """Return 8 hex digits of the hash of prompt and judge."""
        identity = self.prompt.hash, sorted(self.judge.identity.items(), key=str)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:8]

    def __call__(self, inputs: Any, first: Any, second: Any) -> Preference:
        """Compare two answers to the same inputs. Raises `Unjudged` if the judge gives no usable verdict."""
        preference: Preference = run_coroutine(self.prefer(inputs, first, second))
        return preference

    async def prefer(self, inputs: Any, first: Any, second: Any) -> Preference:
        """Compare two answers, from async code."""
        case = make_case(None, inputs=inputs, outputs={"first": first, "second": second})
        async with Judgement(self.key, self.judge, case) as both:
            verdicts = await asyncio.gather(
                self._ask_in_order(both, inputs, first, second), self._ask_in_order(both, inputs, second, first)
            )
            (verdict, why), (turned, why_turned) = verdicts
            swapped_verdict = _SWAPPED_WINNER[turned]
            winner: Winner = verdict if verdict == swapped_verdict else "tie"
            row = both.row(_WINNER_SCORES[winner], comment=why)
            return Preference(
                winner=winner,
                verdicts=(verdict, swapped_verdict),
                rationales=(why, why_turned),
                metadata=row["metadata"],
                judge_trace_id=row["judge_trace_id"],
            )

    async def _ask_in_order(
        self, judgement: Judgement, inputs: Any, first: Any, second: Any
    ) -> tuple[Winner, str | None]:
        values = {"inputs": render_value(inputs), "first": render_value(first), "second": render_value(second)}
        answer = await judgement.ask(self.prompt, values, _SCHEMA)
        winners: Mapping[str, Winner] = {"a": "first", "b": "second", "tie": "tie"}
        winner = winners.get(str(answer.value.get("rating")).lower())
        if winner is None:
            raise ParseFailure(f"the rating is {answer.value.get('rating')!r:.100}, none of A, B, tie", answer.text)
        return winner, answer.value.get("rationale")

    def compare(self, first: ComparedRuns, second: ComparedRuns, *, keep: bool = True) -> Preferences:
        """Compare two experiments, example by example and repetition by repetition.

        With `keep`, both runs of a pair get feedback: 1 for the better one, ½ each for a tie. Its rule names the
        other experiment.
        """
        return run_coroutine(self.acompare(first, second, keep=keep))

    async def acompare(self, first: ComparedRuns, second: ComparedRuns, *, keep: bool = True) -> Preferences:
        """Compare like `compare`, from async code."""

        async def prefer_row(row: Any, other: Any) -> Preference | Unjudged | Skip:
            try:
                return await self.prefer(row.inputs, row.outputs, other.outputs)
            except (Unjudged, Skip) as error:
                return error

        others: dict[str, Any] = {}
        runs = 0  # of both experiments, failed ones included
        for row in second.rows():
            runs += 1
            if row.error is None:
                others[_run_key(row)] = row
        pairs: dict[str, Preference] = {}
        errors: dict[str, str] = {}
        rows = iter(first.rows())
        context = get_judge_context()
        judgements = JudgementBuffer() if keep else context.judgements
        while chunk := list(islice(rows, _PAIRS_PER_BATCH)):
            runs += len(chunk)
            matched = [(row, others[_run_key(row)]) for row in chunk if row.error is None and _run_key(row) in others]
            with use_judge_context(judgements=judgements):
                results = await asyncio.gather(*(prefer_row(*pair) for pair in matched))
            for (row, _), result in zip(matched, results, strict=True):
                if isinstance(result, Preference):
                    pairs[_run_key(row)] = result
                else:
                    errors[_run_key(row)] = str(result)
            if keep:
                feedback_rows = [
                    feedback
                    for pair, result in zip(matched, results, strict=True)
                    for feedback in self._rows(pair, result, first, second)
                ]
                first.store.append(judgements.take() if judgements else [], feedback_rows)
        alone = runs - 2 * (len(pairs) + len(errors))
        return Preferences(key=self.key, names=(first.name, second.name), pairs=pairs, errors=errors, alone=alone)

    def _rows(
        self, pair: tuple[Any, Any], result: Preference | Unjudged | Skip, first: ComparedRuns, second: ComparedRuns
    ) -> Iterable[Feedback]:
        sides: Sequence[tuple[Any, Any, ComparedRuns, bool]] = ((*pair, second, False), (pair[1], pair[0], first, True))
        for row, other, opponent, turned in sides:
            # only one of the two rows has the metadata with the cost, so that the cost counts once
            metadata = {} if turned or isinstance(result, Skip) else dict(result.metadata)
            fields: dict[str, Any]
            if isinstance(result, Preference):
                verdicts = [_SWAPPED_WINNER[verdict] if turned else verdict for verdict in result.verdicts]
                metadata["pairwise"] = {
                    "with": other.trace.trace_id,
                    "verdicts": verdicts,
                    "turned": result.turned,
                }
                score = _WINNER_SCORES[result.winner]
                fields = {"score": 1 - score if turned else score, "comment": result.rationales[0]}
            elif isinstance(result, Skip):
                fields = {"outcome": "skip", "comment": str(result)}
            else:
                fields = {"outcome": "error", "error": str(result)}
            yield Feedback(
                target=Target(trace_id=row.trace.trace_id),
                key=self.key,
                source="model",
                evaluator=self.key,
                version=self.version,
                rule=f"against {opponent.name} {opponent.id[:8]}",
                metadata=metadata,
                judge_trace_id=getattr(result, "judge_trace_id", None),
                **fields,
            )


def _run_key(row: Any) -> str:
    return f"{row.example_id}{_REPETITION}{row.repetition + 1}" if row.repetition else str(row.example_id)


def pairwise(key: str, criterion: str, *, judge: Any = None) -> Pairwise:
    """Return a judge of pairs: `better = pairwise("better", "Which answer helps the customer more?")`.

    `better(inputs, one, other)` compares two answers; `better.compare(before, after)` compares two experiments
    over the same examples. The judge gets each pair in both orders. Raises `ValueError` for an empty criterion.
    """
    if not criterion.strip():
        raise ValueError(f"criterion must not be empty, got {criterion!r}")
    frame = prompt("pairwise", names=_NAMES)
    plain = criterion.strip().replace("{", "(").replace("}", ")")  # braces would be placeholders
    return Pairwise(key, replace(frame, text=frame.text.replace("[criterion]", plain)), make_judge(judge))
