"""Ratings: scales, yes/no questions, ratings per chunk, and G-Eval weighting by token probabilities."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Any, TypeAlias

from spanwise.collector.records import JSON, Case, Document
from spanwise.evaluators.interface import Metric, Skip, Unjudged
from spanwise.evaluators.judges.judge_evaluator import Judgement, gather_or_cancel
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, ParseFailure, Token, make_object_schema
from spanwise.evaluators.judges.llm_client.judge_call import Judge
from spanwise.evaluators.judges.prompt_templates import Prompt, render_values

Label: TypeAlias = str | int
ScaleInput: TypeAlias = Sequence[Label] | Mapping[Any, Any] | range


def make_rating_schema(labels: Sequence[Label]) -> dict[str, JSON]:
    """Return the schema of an object with a rationale, then a rating that is one of the labels. The judge thus writes
    its reasons first.
    """
    kind = "integer" if all(isinstance(label, int) for label in labels) else "string"
    return make_object_schema({"rationale": {"type": "string"}, "rating": {"type": kind, "enum": list(labels)}})


@dataclass(frozen=True, slots=True)
class Scale:
    """Rating scale of a judge.

    `scores` maps each label, in order, to its score: True or False, a number, or None if the label itself is
    the result. `meanings` describe some of the labels.
    """

    scores: Mapping[Label, float | bool | None]
    meanings: Mapping[Label, str]

    @property
    def labels(self) -> tuple[Label, ...]:
        """Return the permitted labels, as they were given."""
        return tuple(self.scores)

    @property
    def schema(self) -> dict[str, JSON]:
        """Return the schema of a reply."""
        return make_rating_schema(self.labels)

    @property
    def is_boolean(self) -> bool:
        """Return whether the scores are True for the first label and False for the second."""
        return all(isinstance(score, bool) for score in self.scores.values())

    @property
    def range(self) -> tuple[float, float] | None:
        """Return the range of the scores, or None if there are none."""
        numbers = [float(score) for score in self.scores.values() if score is not None]
        return (min(numbers), max(numbers)) if numbers else None

    def metric(self, key: str, higher_is_better: bool = True) -> Metric:
        """Return the metric for scores of this scale."""
        return Metric(key, self.range, higher_is_better, 0.5 if self.is_boolean else None, primary=True)

    def instructions(self) -> str:
        """Return the instructions about the scale: the meaning of the labels, and the form of the reply."""
        lines = [f"{label}: {meaning}" for label, meaning in self.meanings.items()]
        rubric = ["The ratings mean:\n" + "\n".join(lines)] if lines else []
        choice = " or ".join(json.dumps(label, ensure_ascii=False) for label in self.labels)
        form = f'{{"rationale": "…", "rating": {choice}}}'
        return "\n\n".join([*rubric, f"Give your reasons first, then the rating, as JSON: {form}"])

    def read(self, answer: Answer) -> tuple[float | bool | None, Label]:
        """Return the score and the label of an answer. Raises `ParseFailure` for an unknown label."""
        rating = answer.value["rating"] if isinstance(answer.value, Mapping) and "rating" in answer.value else None
        label = self.label_of(rating)
        if label is None:
            raise ParseFailure(
                f"the rating is {rating!r:.100}, none of {', '.join(map(str, self.labels))}", answer.text
            )
        return self.scores[label], label

    def label_of(self, rating: Any) -> Label | None:
        """Return the label that matches a rating, ignoring case and quoted numbers, or None."""
        if not isinstance(rating, str | int) or isinstance(rating, bool):
            return None
        return {str(label).casefold(): label for label in self.labels}.get(str(rating).strip().casefold())


def make_scale(given: ScaleInput | Scale) -> Scale:
    """Return a scale from one of these notations. Raises `ValueError`.

    - two labels, `("yes", "no")`: the first passes (True), the second does not (False);
    - more labels, `("formal", "neutral", "casual")`: the label is the result, and there is no score;
    - numbers, `range(1, 6)` or `(1, 2, 3)`: levels, each of which is its score;
    - a dict of levels or labels with their meanings, `{1: "rude", …, 5: "warm"}`: a rubric;
    - a dict of labels with their scores, `{"good": 1, "fair": 0.5, "bad": 0}`.

    True and False are the labels "yes" and "no", because YAML reads these words as booleans.
    """
    if isinstance(given, Scale):
        return given
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | Mapping):
        raise ValueError(f"a scale must be a list of labels, a dict, or a range of levels, got {given!r:.200}")
    labels = [_parse_label(label) for label in given]
    if len(labels) < 2 or len({str(label).casefold() for label in labels}) < len(labels):
        raise ValueError(f"a scale must have at least two labels, all different, got {given!r:.200}")
    if len({type(label) for label in labels}) > 1:
        raise ValueError(f"the labels of a scale must be all texts or all integers, got {given!r:.200}")
    values = list(given.values()) if isinstance(given, Mapping) else []
    if values and all(isinstance(value, int | float) and -inf < value < inf for value in values):
        scores = [value if isinstance(value, bool) else float(value) for value in values]
        return Scale(dict(zip(labels, scores, strict=True)), {})
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"the values of a scale's dict must be all scores or all meanings, got {given!r:.200}")
    by_label: dict[Label, float | bool | None] = dict.fromkeys(labels)
    if all(isinstance(label, int) for label in labels):
        by_label = {label: float(label) for label in labels}
    elif len(labels) == 2:
        by_label = dict(zip(labels, (True, False), strict=True))
    return Scale(by_label, dict(zip(labels, values, strict=True)) if values else {})


def restore_boolean_label(label: Any) -> Any:
    """Return a label as it was written: YAML reads yes and no as True and False."""
    return ("yes" if label else "no") if isinstance(label, bool) else label


def _parse_label(label: Any) -> Label:
    """Return a label without surrounding spaces. A text of digits becomes an integer, because JSON turns the levels of a
    dict into texts. Raises `ValueError`.
    """
    label = restore_boolean_label(label)
    if isinstance(label, str) and label.strip().lstrip("-").isdecimal():
        return int(label)
    if not isinstance(label, str | int) or str(label).strip() == "":
        raise ValueError(f"a label must be a text or an integer, got {label!r:.200}")
    return label.strip() if isinstance(label, str) else label


YES_NO_SCHEMA = make_rating_schema(("yes", "no"))


async def ask_yes_no(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    values: Mapping[str, str] | None = None,
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """Ask a yes/no question and return the feedback: True for yes, with the judge's rationale as the comment.

    With `logprobs`, the metadata have the probability of either label, and that of the chosen label (`confidence`).
    """
    return await ask_rating(evaluator, judge, prompt, case, make_scale(("yes", "no")), values, logprobs=logprobs)


async def ask_yes_no_in_parts(
    evaluator: str, judge: Judge, prompt: Prompt, case: Case, values: Mapping[str, str], name: str = "outputs"
) -> dict[str, Any]:
    """Ask a yes/no question about all of one value, and return the feedback.

    Each part of a long value is judged, and the first no decides. Raises `Skip` if the value is too long.
    """
    scale = make_scale(("yes", "no"))
    async with Judgement(evaluator, judge, case) as judgement:
        parts = prompt.in_parts(values, name)
        answers = await gather_or_cancel(judgement.ask(prompt, part, scale.schema) for part in parts)
        worst = next((index for index, answer in enumerate(answers) if not scale.read(answer)[0]), 0)
        score, label = scale.read(answers[worst])
        comment = get_rationale(answers[worst])
        if len(parts) > 1:
            comment = f"{len(parts)} parts were judged; part {worst + 1}: {comment}"
        metadata = {"parts": len(parts)} if len(parts) > 1 else {}
        return judgement.row(score, comment=comment, label=str(label), metadata=metadata)


async def ask_rating(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    scale: Scale,
    values: Mapping[str, str] | None = None,
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """Ask for a rating and return the feedback: score and label, with the judge's rationale as the comment.

    With `logprobs`, the metadata have the probability of each label, and a graded score is the probability-weighted
    mean of the labels' scores. Without log-probabilities in the reply, the score is that of the label, and a note
    reports it.
    """
    async with Judgement(evaluator, judge, case) as judgement:
        texts = render_values(case, prompt.asked) if values is None else values
        answer = await judgement.ask(prompt, texts, scale.schema, logprobs=TOP_LOGPROBS * logprobs)
        score, label = scale.read(answer)
        weights = compute_label_probabilities(answer, scale.labels) if logprobs else None
        metadata = add_probabilities({}, weights, label) if logprobs else {}
        if weights and scale.range is not None and not scale.is_boolean:
            score = compute_expected_score(weights, {label: float(value or 0) for label, value in scale.scores.items()})
        result = label if score is None else score
        return judgement.row(result, comment=get_rationale(answer), label=str(label), metadata=metadata)


def get_rationale(answer: Answer) -> str | None:
    """Return the judge's rationale, or None if it gave none."""
    rationale = answer.value.get("rationale") if isinstance(answer.value, Mapping) else None
    return str(rationale) if rationale else None


TOP_LOGPROBS = 20  # alternatives per token, the maximum of OpenAI
MIN_PROBABILITY = 0.01  # less likely labels are noise
NO_LOGPROBS_NOTE = "no log-probabilities: the rating is the sampled one"
_PADDING = " \t\r\n\"'`*([{"
_RATING_ENDS = " \t\r\n\"'`*)]},.;:"


def compute_label_probabilities(
    answer: Answer, labels: Sequence[str | int], field: str = "rating"
) -> dict[str | int, float] | None:
    """Return the probability of each label at the position of the rating. Labels below 1 % are left out, and the others
    are scaled to a sum of 1.

    The rating is the value of the last property `field` in the reply's JSON. Without JSON, it is the last label that
    occurs as a word, because quotations in a rationale come earlier. The rating may begin inside a token and span
    several tokens. Returns None if the reply has no log-probabilities, or if no label is found.
    """
    position = _find_rating("".join(token.text for token in answer.logprobs), labels, field)
    if position is None:
        return None
    masses: dict[str | int, float] = {}
    for label, probability in _iterate_label_probabilities(answer.logprobs, *position, labels):
        masses[label] = masses.get(label, 0.0) + probability
    likely = {label: mass for label, mass in masses.items() if mass >= MIN_PROBABILITY} or masses
    total = sum(likely.values())
    return {label: likely[label] / total for label in labels if label in likely} if total else None


def compute_expected_score(weights: Mapping[str | int, float], values: Mapping[str | int, float]) -> float:
    """Return the probability-weighted mean of the labels' values."""
    return sum(weight * values[label] for label, weight in weights.items())


def add_probabilities(
    metadata: Mapping[str, Any], weights: Mapping[str | int, float] | None, rating: str | int
) -> dict[str, Any]:
    """Return the metadata with the labels' probabilities and that of the rating as `confidence`, or with a note why
    there are none.
    """
    if weights is None:
        return {**metadata, "notes": [*metadata.get("notes", ()), NO_LOGPROBS_NOTE]}
    likely = {str(label): round(weight, 6) for label, weight in weights.items()}
    return {**metadata, "probabilities": likely, "confidence": round(weights.get(rating, 0.0), 6)}


def _find_rating(text: str, labels: Sequence[str | int], field: str) -> tuple[int, str | int] | None:
    """Return the position of the rating's first character, and its label. A key that is quoted inside a text has escaped
    quotes, so it does not match.
    """
    either = "|".join(sorted((re.escape(str(label)) for label in labels), key=len, reverse=True))
    in_json = re.compile(rf'"{re.escape(field)}"\s*:\s*"?\s*({either})(?!\w)', re.IGNORECASE)
    as_word = re.compile(rf"(?<![\w.-])({either})(?!\w|\.\d)", re.IGNORECASE)
    matches = [*in_json.finditer(text)] or [*as_word.finditer(text)]
    known = {str(label).lower(): label for label in labels}
    return (matches[-1].start(1), known[matches[-1][1].lower()]) if matches else None


def _iterate_label_probabilities(
    tokens: Sequence[Token], start: int, rating: str | int, labels: Sequence[str | int]
) -> Iterator[tuple[str | int, float]]:
    """Yield (label, probability) pairs for the alternatives at each token of the rating, along the sampled path."""
    path, preceding, text_of_rating = 1.0, "", str(rating).lower()
    end = 0
    for token in tokens:
        begin, end = end, end + len(token.text)
        if end <= start:
            continue
        begins = max(0, start - begin)  # offset of the rating in its first token
        for text, logprob in token.top.items():
            if text == token.text:
                continue
            # the alternative without the characters before the rating and after it
            bare = text.removeprefix(token.text[:begins]).lower().lstrip(_PADDING)
            bare = re.split(f"[{re.escape(_RATING_ENDS)}]", bare, maxsplit=1)[0]
            if (label := _match_label_prefix(preceding + bare, labels)) is not None:
                yield label, path * exp(logprob)
        path *= exp(min(0.0, token.logprob))
        preceding += token.text[begins:].lower().strip(_PADDING if not preceding else "")
        if len(preceding) >= len(text_of_rating):
            break
    yield rating, path


def _match_label_prefix(text: str, labels: Sequence[str | int]) -> str | int | None:
    """Return the label that equals a text, or the only label that begins with it."""
    if not text:
        return None
    exact = [label for label in labels if str(label).lower() == text]
    matches = exact or [label for label in labels if str(label).lower().startswith(text)]
    return matches[0] if len(matches) == 1 else None


CHUNK_SCALE = make_scale(("yes", "no"))
MAX_CONCURRENT_CHUNKS = 64  # maximum chunks judged at once, which bounds the questions in memory
CHUNK_PLACEHOLDERS = ("documents", "retrieved_context")  # placeholders for the single chunk of a question


@dataclass(frozen=True, slots=True)
class ChunkVerdict:
    """Rating and rationale of one chunk, or the error in their place."""

    rating: str | None = None
    rationale: str | None = None
    error: Exception | None = None


async def rate_chunks(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    chunks: Sequence[Document],
    values: Mapping[str, str],
) -> dict[str, Any]:
    """Return the share of yes among the judged chunks. `values` are those of the prompt except the chunk.

    `ratings`, `rationales` and `error_messages` of the metadata have one entry per chunk, None if it does not
    exist. A chunk whose judgement failed, or that has no text, is excluded from the denominator. Raises `Skip`
    if there is nothing to judge, and `Unjudged` if all judgements failed.
    """
    check_chunks(chunks)
    gate = asyncio.Semaphore(MAX_CONCURRENT_CHUNKS)
    async with Judgement(evaluator, judge, case) as judgement:
        questions = (_rate_chunk(judgement, prompt, values, chunk.content, gate) for chunk in chunks)
        verdicts = await asyncio.gather(*questions)
        lists: dict[str, list[str | None]] = {
            "ratings": [verdict.rating for verdict in verdicts],
            "rationales": [verdict.rationale for verdict in verdicts],
            "error_messages": [None if each.error is None else describe_error(each.error) for each in verdicts],
        }
        ratings = [verdict.rating for verdict in verdicts if verdict.rating is not None]
        if not ratings:
            raise _make_no_verdict_error(verdicts, lists)
        score = ratings.count("yes") / len(ratings)
        comment = f"yes for {ratings.count('yes')} of {len(ratings)} chunks"
        if failed := len(verdicts) - len(ratings):
            comment += f"; {failed} could not be judged"
        return judgement.row(score, comment=comment, metadata=lists)


def check_chunk_prompt(prompt: Prompt) -> None:
    """Raise `ValueError` for a prompt without a placeholder for the chunk, as its question would be the same for all
    chunks.
    """
    if not set(CHUNK_PLACEHOLDERS) & set(prompt.asked):
        raise ValueError(f"prompt {prompt.id!r} is asked about each chunk, so it must contain {{documents}}")


def check_chunks(documents: Sequence[Document]) -> None:
    """Raise `Skip` if nothing was retrieved, or only documents without text."""
    if not documents:
        raise Skip("needs documents; none was retrieved")
    if not any(document.content.strip() for document in documents):
        raise Skip(f"needs the content of documents; none of the {len(documents)} has any")


async def _rate_chunk(
    judgement: Judgement, prompt: Prompt, values: Mapping[str, str], text: str, gate: asyncio.Semaphore
) -> ChunkVerdict:
    if not text.strip():
        return ChunkVerdict(error=Skip("the chunk has no content"))
    try:
        async with gate:
            answer = await judgement.ask(
                prompt, {**values, **dict.fromkeys(CHUNK_PLACEHOLDERS, text)}, CHUNK_SCALE.schema
            )
        return ChunkVerdict(str(CHUNK_SCALE.read(answer)[1]), get_rationale(answer))
    except Exception as error:  # an error affects only its own chunk
        return ChunkVerdict(error=error)


def describe_error(error: Exception) -> str:
    """Return the message of a failed judgement, for the metadata."""
    return str(error) if isinstance(error, Unjudged | Skip) else f"{type(error).__name__}: {error}"


async def catch_outcome(key: str, judging: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return the feedback of a judgement. A skip or an error becomes feedback too, so that the results of the other
    judgements are not lost.
    """
    try:
        return await judging
    except Skip as skip:
        return {"key": key, "comment": str(skip)}
    except Exception as error:
        metadata, trace_id = getattr(error, "metadata", None), getattr(error, "judge_trace_id", None)
        return {"key": key, "error": describe_error(error), "metadata": metadata, "judge_trace_id": trace_id}


def _make_no_verdict_error(verdicts: Sequence[ChunkVerdict], lists: Mapping[str, Any]) -> Exception:
    """Return an error with the message of the first failure, or a skip if all chunks were skipped, as with an exhausted
    budget.
    """
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    failures = [error for error in errors if not isinstance(error, Skip)]
    message = describe_error((failures or errors)[0]) + (
        f" (none of {len(errors)} chunks was judged)" if errors[1:] else ""
    )
    return Unjudged(message, lists) if failures else Skip(message)
