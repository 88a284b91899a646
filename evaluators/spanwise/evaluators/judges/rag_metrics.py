"""Components of the RAGAS metrics: statements and verdicts, scores, their base class, similarity by embeddings."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from spanwise.collector.records import JSON, Case, Document
from spanwise.evaluators.builtin.case_text import extract_question, extract_text, split_sentences
from spanwise.evaluators.interface import Skip, get_case_field, run_in_thread
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, Judgement, gather_or_cancel
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, ParseFailure, make_object_schema
from spanwise.evaluators.judges.prompt_templates import PLACEHOLDERS, Prompt
from spanwise.evaluators.judges.prompt_templates import render_value as as_text
from spanwise.evaluators.models import Embedder, embedder

MAX_SHOWN = 3  # maximum failures in a comment; the metadata have all
MAX_STATEMENTS = 200  # maximum statements in metadata
PORTION_LIMITS = 20, 4000  # maximum sentences and characters per call, so that the reply fits into 2,048 tokens
BATCH_SIZE = 15  # statements judged in one call
MAX_STATEMENT_LENGTH = 1000  # maximum characters of a statement
MAX_METADATA_LENGTH = 300  # maximum characters of a statement and of its reason in metadata
_YES_NO: JSON = {"type": "string", "enum": ["yes", "no"]}
_TEXTS: JSON = {"type": "array", "items": {"type": "string"}}
STATEMENTS_SCHEMA = make_object_schema({"statements": _TEXTS})
VERDICT_SCHEMA = make_object_schema({"reason": {"type": "string"}, "verdict": _YES_NO})
QUESTION_SCHEMA = make_object_schema({"question": {"type": "string"}, "noncommittal": _YES_NO})
SENTENCES_SCHEMA = make_object_schema({"reason": {"type": "string"}, "sentences": _TEXTS})


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements extracted from a text. `left_out` says which part of the text was not judged; it is None if all of it
    was judged.
    """

    texts: tuple[str, ...] = ()
    left_out: str | None = None


@dataclass(frozen=True, slots=True)
class StatementVerdict:
    """Verdict on one statement: `holds` is True for "yes"."""

    statement: str
    holds: bool
    reason: str

    @property
    def metadata(self) -> dict[str, JSON]:
        """Return the verdict as a dict of truncated texts, for the metadata of the feedback."""
        texts = {"statement": self.statement, "verdict": "yes" if self.holds else "no", "reason": self.reason}
        return {name: to_one_line(text, MAX_METADATA_LENGTH) for name, text in texts.items()}


def make_numbered_schema(count: int, item: JSON) -> dict[str, JSON]:
    """Return the schema of an object with `count` items under the keys "1", "2", ….

    A reply with a missing or an additional item violates the schema, so a miscount of the judge is detected.
    """
    return make_object_schema({str(number): item for number in range(1, count + 1)})


def read_numbered_items(answer: Answer, count: int, what: str) -> list[Mapping[str, Any]]:
    """Return the items of a reply to `make_numbered_schema`, in order. Raises `ParseFailure` if the numbers are not 1 to
    `count`; the message lists the returned numbers.
    """
    numbers = [str(number) for number in range(1, count + 1)]
    value = answer.value
    if not isinstance(value, Mapping) or set(value) != set(numbers):
        came = f"those of {', '.join(map(str, list(value)[:50])) or 'none'}" if isinstance(value, Mapping) else "a list"
        raise ParseFailure(f"asked for {what} 1 to {count}, got {came}", answer.text)
    if not all(isinstance(value[number], Mapping) for number in numbers):
        raise ParseFailure(f"{what} are objects", answer.text)
    return [value[number] for number in numbers]


def read_verdict(answer: Answer, item: Any, label: str = "verdict") -> bool:
    """Return whether the verdict is yes. Raises `ParseFailure` for any value other than yes and no."""
    verdict = item.get(label) if isinstance(item, Mapping) else None
    if verdict not in ("yes", "no"):
        raise ParseFailure(f'{label} is "yes" or "no", not {verdict!r:.100}', answer.text)
    return bool(verdict == "yes")


def split_bounded_sentences(text: str) -> list[str]:
    """Return the sentences of a text, split further if they are longer than a portion."""
    longest = PORTION_LIMITS[1]
    return [
        sentence[start : start + longest]
        for sentence in split_sentences(text)
        for start in range(0, len(sentence), longest)
    ]


def split_portions(text: str, sentences: Sequence[str]) -> list[str]:
    """Return a short text as the only portion. Split a longer text into portions of as many sentences as fit."""
    if not sentences or (len(sentences) <= PORTION_LIMITS[0] and len(text) <= PORTION_LIMITS[1]):
        return [text] if sentences else []
    return list(_iterate_portions(sentences))


def _iterate_portions(sentences: Sequence[str]) -> Iterator[str]:
    portion: list[str] = []
    for sentence in sentences:
        if portion and (
            len(portion) == PORTION_LIMITS[0] or sum(map(len, portion)) + len(sentence) > PORTION_LIMITS[1]
        ):
            yield "\n".join(portion)
            portion = []
        portion.append(sentence)
    yield "\n".join(portion)


def to_one_line(text: str, longest: int = MAX_STATEMENT_LENGTH) -> str:
    """Join the lines of a text and truncate it, so that a statement cannot add lines to a numbered list."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def read_text_list(answer: Answer, name: str, longest: int = MAX_STATEMENT_LENGTH) -> list[str]:
    """Return the list of texts under `name` in a reply, each on one line and truncated. Raises `ParseFailure` for any
    other value.
    """
    texts = answer.value.get(name) if isinstance(answer.value, Mapping) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ParseFailure(f'asked for {{"{name}": […]}}, a list of texts', answer.text)
    return [line for text in texts if (line := to_one_line(text, longest))]


@dataclass(frozen=True, slots=True)
class ComponentResult:
    """Result of a metric component: its score, a comment about failures, and the metadata that it is computed from."""

    score: float
    comment: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RagCase:
    """Case with its judgement and its evaluator."""

    judgement: Judgement
    evaluator: MultiPromptJudge
    case: Case

    @property
    def max_statements(self) -> int:
        """Return the maximum number of sentences and statements of one text."""
        return self.evaluator.max_statements

    def prompt(self, id: str) -> Prompt:
        """Return the prompt of that id."""
        return next(prompt for prompt in self.evaluator.prompts if prompt.id == id)

    def values(self, id: str, **own: str) -> dict[str, str]:
        """Return the values of a prompt's placeholders: the given ones, else those of the case."""
        return self.evaluator._values(self.case, own, self.prompt(id))

    @property
    def question(self) -> str:
        """Return the text of the inputs, "" without inputs."""
        return _to_single_text(get_case_field(self.case, "inputs"), extract_question)

    @property
    def answer(self) -> str:
        """Return the text of the outputs."""
        return _to_single_text(get_case_field(self.case, "outputs"), extract_text)

    @property
    def expected(self) -> str:
        """Return the text of the reference."""
        return _to_single_text(get_case_field(self.case, "reference_outputs"), extract_text)

    @property
    def chunks(self) -> Sequence[Document]:
        """Return the retrieved documents that are not blank."""
        return [document for document in self.case.documents or () if document.content.strip()]

    async def ask(self, id: str, schema: Mapping[str, JSON], **own: str) -> Answer:
        """Ask one question with the prompt of that id."""
        return await self.judgement.ask(self.prompt(id), self.values(id, **own), schema)

    async def statements(self, text: str) -> Statements:
        """Ask the judge to split a text into statements. A blank text has none, and the judge is not called.

        A long text is split into portions, with one question each. At most `most` sentences and `most` statements are
        used. Raises `ParseFailure` and the other errors of `Judgement.ask`.
        """
        sentences = split_bounded_sentences(text)
        portions = split_portions(text, sentences[: self.max_statements])
        answers = await gather_or_cancel(
            self.ask("statements", STATEMENTS_SCHEMA, outputs=portion) for portion in portions
        )
        statements = [text for answer in answers for text in read_text_list(answer, "statements")]
        left_out = None
        if len(sentences) > self.max_statements or len(statements) > self.max_statements:
            left_out = f"only the beginning was judged, {min(self.max_statements, len(statements))} statements"
            missing = sum(map(len, sentences[self.max_statements :])) or sum(
                map(len, statements[self.max_statements :])
            )
            self.judgement.leave_out("sentences", missing)
        return Statements(tuple(statements[: self.max_statements]), left_out)

    async def verdicts(self, id: str, statements: Sequence[str], **own: str) -> list[StatementVerdict]:
        """Ask the judge for a verdict on every statement, with the prompt of that id. Return the verdicts in the order of
        the statements.

        The statements are numbered, and the numbers are part of the schema, so a reply with missing, extra or duplicate
        numbers is invalid. Raises `ParseFailure` and the other errors of `Judgement.ask`.
        """
        batches = [statements[start : start + BATCH_SIZE] for start in range(0, len(statements), BATCH_SIZE)]
        judged = await gather_or_cancel(self._judge_batch(id, batch, own) for batch in batches)
        return [verdict for batch in judged for verdict in batch]

    async def _judge_batch(self, id: str, statements: Sequence[str], own: Mapping[str, str]) -> list[StatementVerdict]:
        listed = "\n".join(f"{number}. {statement}" for number, statement in enumerate(statements, 1))
        schema = make_numbered_schema(len(statements), VERDICT_SCHEMA)
        answer = await self.ask(id, schema, statements=listed, **own)
        items = read_numbered_items(answer, len(statements), "verdicts")
        return [
            StatementVerdict(statement, read_verdict(answer, item), to_one_line(str(item.get("reason") or "")))
            for statement, item in zip(statements, items, strict=True)
        ]


async def score_faithfulness(asking: RagCase) -> ComponentResult:
    """Return the share of the answer's statements that follow from the context. Raises `Skip` if the answer makes no
    statements.
    """
    stated = await asking.statements(asking.answer)
    if not stated.texts:
        raise Skip("the answer makes no statements: faithfulness is undefined")
    verdicts = _reject_all(stated.texts, "nothing was retrieved")
    if asking.chunks:
        verdicts = await asking.verdicts("faithfulness", stated.texts)
    return _make_share_result(verdicts, "statements", "do not follow from the context", stated.left_out)


async def score_context_recall(asking: RagCase) -> ComponentResult:
    """Return the share of the reference's sentences that can be attributed to the context."""
    sentences = split_bounded_sentences(asking.expected)
    if not sentences:
        raise Skip("the reference is empty: context recall is undefined")
    listed = [to_one_line(sentence) for sentence in sentences[: asking.max_statements]]
    left_out = None
    if len(sentences) > asking.max_statements:
        left_out = f"of {len(sentences)} sentences the first {asking.max_statements} were judged"
        asking.judgement.leave_out("sentences", sum(map(len, sentences[asking.max_statements :])))
    verdicts = _reject_all(listed, "nothing was retrieved")
    if asking.chunks:
        verdicts = await asking.verdicts("context_recall", listed)
    return _make_share_result(verdicts, "expected sentences", "cannot be attributed to the context", left_out)


async def score_answer_relevancy(asking: RagCase, embed: EmbedFunction, count: int) -> ComponentResult:
    """Return the mean cosine of the question with questions generated from the answer; 0 if all are marked
    noncommittal.
    """
    if not asking.question.strip():
        raise Skip("the question is empty: answer relevancy is undefined")
    if not asking.answer.strip():
        raise Skip("the answer is empty: answer relevancy is undefined")
    check_embedder(embed)  # checked before the first paid call
    answer = await asking.ask("answer_relevancy", make_numbered_schema(count, QUESTION_SCHEMA), outputs=asking.answer)
    items = read_numbered_items(answer, count, "questions")
    noncommittal = [read_verdict(answer, item, "noncommittal") for item in items]
    questions = []
    for item in items:
        question = item.get("question")
        if not isinstance(question, str) or not question.strip():
            raise ParseFailure(f"a question is a text, not {question!r:.100}", answer.text)
        questions.append(to_one_line(question))
    cosines = await compute_similarities(embed, asking.question, questions)
    metadata = {
        "questions": [
            {"question": question, "similarity": cosine, "noncommittal": is_noncommittal}
            for question, cosine, is_noncommittal in zip(questions, cosines, noncommittal, strict=True)
        ]
    }
    if all(noncommittal):
        return ComponentResult(0.0, f"the answer is noncommittal, as one to {questions[0]!r}", metadata)
    least = min(range(count), key=cosines.__getitem__)
    comment = f"farthest of the questions that it answers: {questions[least]!r} (similarity {cosines[least]:.2f})"
    return ComponentResult(sum(cosines) / count, comment, metadata)


async def score_context_precision(asking: RagCase) -> ComponentResult:
    """Return the average precision of the retrieved chunks. Relevant chunks are those useful for the expected answer."""
    documents = (asking.case.documents or ())[: asking.max_statements]
    if not documents:
        raise Skip("nothing was retrieved: context precision is undefined")
    if not asking.expected.strip():
        raise Skip("the reference is empty: context precision is undefined")

    async def judge_chunk(document: Document) -> StatementVerdict:
        if not document.content.strip():
            return StatementVerdict("", False, "it is empty")
        answer = await asking.ask("context_precision", VERDICT_SCHEMA, documents=document.content)
        reason = to_one_line(str(answer.value["reason"]))
        return StatementVerdict(to_one_line(document.content), read_verdict(answer, answer.value), reason)

    verdicts = await gather_or_cancel(map(judge_chunk, documents))
    useless = [f"[{number}] {verdict.reason}" for number, verdict in enumerate(verdicts, 1) if not verdict.holds]
    comment = _make_failure_comment("chunks", "are of no use for the expected answer", useless, len(verdicts))
    if len(asking.case.documents or ()) > asking.max_statements:
        comment = f"{comment}; only the first {asking.max_statements} chunks were judged"
    chunks = [
        {
            "chunk": number,
            "id": document.id,
            "verdict": verdict.metadata["verdict"],
            "reason": verdict.metadata["reason"],
        }
        for number, (document, verdict) in enumerate(zip(documents, verdicts, strict=True), 1)
    ]
    return ComponentResult(
        compute_average_precision([verdict.holds for verdict in verdicts]), comment, {"chunks": chunks}
    )


async def score_context_relevancy(asking: RagCase) -> ComponentResult:
    """Return the share of the context's sentences that help to answer the question."""
    sentences = [sentence for document in asking.chunks for sentence in split_bounded_sentences(document.content)]
    if not sentences:
        raise Skip("the context has no sentences: context relevancy is undefined")
    if not asking.question.strip():
        raise Skip("the question is empty: context relevancy is undefined")
    judged = sentences[: asking.max_statements]
    if len(sentences) > asking.max_statements:
        asking.judgement.leave_out("sentences", sum(map(len, sentences[asking.max_statements :])))
    portions = split_portions("\n".join(judged), judged)
    answers = await gather_or_cancel(
        asking.ask("context_relevancy", SENTENCES_SCHEMA, documents=portion) for portion in portions
    )
    copied = [line for answer in answers for line in read_text_list(answer, "sentences", 5000)]
    relevant, invented = match_sentences(judged, copied)
    irrelevant = [sentence for index, sentence in enumerate(judged) if index not in relevant]
    comment = _make_failure_comment("sentences", "do not help to answer the question", irrelevant, len(judged))
    metadata = {
        "sentences": len(judged),
        "relevant": [to_one_line(judged[index]) for index in sorted(relevant)][:MAX_STATEMENTS],
        "not_in_the_context": invented[:MAX_STATEMENTS],
    }
    if len(sentences) > asking.max_statements:
        comment = f"{comment}; of {len(sentences)} sentences the first {asking.max_statements} were looked at"
    return ComponentResult(len(relevant) / len(judged), comment, metadata)


def compute_average_precision(relevant: Sequence[bool]) -> float:
    """Return the mean of precision@k over the ranks k of relevant items; 0 if none is relevant."""
    hits = list(accumulate(map(int, relevant)))
    precisions = [hits[index] / (index + 1) for index, holds in enumerate(relevant) if holds]
    return sum(precisions) / len(precisions) if precisions else 0.0


def compute_f1(tp: int, fp: int, fn: int) -> float:
    """Return TP / (TP + ½ (FP + FN)); 0 without any true positive."""
    return tp / (tp + 0.5 * (fp + fn)) if tp else 0.0


def match_sentences(sentences: Sequence[str], copied: Sequence[str]) -> tuple[set[int], list[str]]:
    """Match the sentences that a judge copied with the original sentences. Return the indices of the copied sentences,
    and the copies that match no sentence.

    A copy may be wrapped, quoted, truncated, repeated, or contain several sentences. Each sentence counts once. All
    sentences with the same words count as copied.
    """
    texts = [_normalize_sentence(sentence) for sentence in sentences]
    relevant: set[int] = set()
    invented = []
    for copy in copied:
        matches = {
            index
            for copied_sentence in split_bounded_sentences(copy)
            for index in _find_positions(texts, _normalize_sentence(copied_sentence))
        }
        relevant |= matches
        if not matches:
            invented.append(copy)
    return relevant, invented


def _find_positions(texts: Sequence[str], sentence: str) -> list[int]:
    same = [index for index, text in enumerate(texts) if sentence and text == sentence]
    if same or len(sentence) < _MIN_DISTINCTIVE_LENGTH:
        return same
    parts = [index for index, text in enumerate(texts) if sentence in text]
    if parts:  # a text that is part of several different sentences is ambiguous
        return parts if len({texts[index] for index in parts}) == 1 else []
    return [index for index, text in enumerate(texts) if len(text) >= _MIN_DISTINCTIVE_LENGTH and text in sentence]


_MIN_DISTINCTIVE_LENGTH = 12  # minimum characters of a part that identifies its sentence


def _normalize_sentence(sentence: str) -> str:
    """Return the words of a sentence in lower case. Sentences with the same words count as equal."""
    return " ".join(re.findall(r"\w+", sentence.casefold()))


def _to_single_text(value: Any, read: Callable[[Any], str]) -> str:
    """Return the only text of a value, or all of the value as JSON if it has several."""
    try:
        return read(value)
    except ValueError:
        return as_text(value)


def _reject_all(statements: Sequence[str], why: str) -> list[StatementVerdict]:
    return [StatementVerdict(statement, False, why) for statement in statements]


def _make_share_result(
    verdicts: Sequence[StatementVerdict], what: str, fail: str, *limits: str | None
) -> ComponentResult:
    missed = [f"{verdict.statement!r} ({verdict.reason})" for verdict in verdicts if not verdict.holds]
    comment = "; ".join(filter(None, [_make_failure_comment(what, fail, missed, len(verdicts)), *limits]))
    metadata = {"statements": [verdict.metadata for verdict in verdicts[:MAX_STATEMENTS]]}
    score = (len(verdicts) - len(missed)) / len(verdicts)
    return ComponentResult(score, comment, metadata)


def _make_failure_comment(what: str, fail: str, failed: Sequence[str], of: int) -> str:
    """Return a comment about failures: "1 of 3 statements do not follow from the context: …"."""
    if not failed:
        return f"0 of {of} {what} {fail}"
    excerpts = "; ".join(to_one_line(text, 300) for text in failed[:MAX_SHOWN])
    return f"{len(failed)} of {of} {what} {fail}: {excerpts}{'; …' if len(failed) > MAX_SHOWN else ''}"


_REQUIRED_PLACEHOLDERS: Mapping[str, str] = {  # placeholder that a prompt must contain to judge anything
    "statements": "outputs",
    "faithfulness": "statements",
    "answer_correctness": "statements",
    "context_recall": "statements",
    "context_precision": "documents",
    "context_relevancy": "documents",
    "answer_relevancy": "outputs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiPromptJudge(JudgeEvaluator):
    """Base class of judges with several prompts. `max_statements` limits the sentences and statements of one text; a
    comment reports the limit if it applied.

    Besides the fields of a case, prompts may name `{statements}` (numbered, one per line), `{text}` (of the other
    answer) and `{questions}` (the requested number).
    """

    NAMES: ClassVar[tuple[str, ...]] = (*PLACEHOLDERS, "statements", "text", "questions")
    OPTIONAL: ClassVar[Mapping[str, str]] = {"inputs": "(not known)"}

    max_statements: int = 200

    def __post_init__(self) -> None:
        if self.FURTHER and isinstance(self.prompt, str | Path):
            ids = ", ".join((self.PROMPT, *self.FURTHER))
            raise ValueError(
                f"the evaluator has several prompts: {ids}; replace one with prompt={{{self.PROMPT!r}: …}}"
            )
        JudgeEvaluator.__post_init__(self)
        if self.max_statements < 1:
            raise ValueError(f"max_statements must be an integer >= 1, got {self.max_statements!r}")
        for prompt in self.prompts:
            if (must := _REQUIRED_PLACEHOLDERS[prompt.id]) not in prompt.asked:
                raise ValueError(f"the prompt {prompt.id!r} has no {{{must}}}: nothing would be judged")

    def _settings_identity(self) -> list[Any]:
        return [self.max_statements]

    async def _judged(
        self, id: str, case: Case, component: Callable[[RagCase], Coroutine[Any, Any, ComponentResult]]
    ) -> Any:
        async with Judgement(id, self._judge, case) as judgement:
            result = await component(RagCase(judgement=judgement, evaluator=self, case=case))
            return judgement.row(result.score, comment=result.comment, metadata=result.metadata)


def set_question_count(prompt: Prompt, questions: int) -> Prompt:
    """Return a prompt with `{questions}` replaced by the number. Raises `ValueError`."""
    if not 1 <= questions <= 20:
        raise ValueError(f"questions must be an integer from 1 to 20, got {questions!r}")
    return replace(prompt, text=prompt.text.replace("{questions}", str(questions)))


EmbedFunction: TypeAlias = Callable[[list[str]], Any]
EMBED_HELP = (
    "embed must be a function, possibly async, from a list of texts to one vector each, or the name of a model: "
    "embed='all-MiniLM-L6-v2'"
)


def make_embed_function(given: Any) -> EmbedFunction:
    """Return the function that embeds texts: a given function, or that of an `Embedder` or a named model (None: the
    default model).

    Raises `ValueError` for any other value.
    """
    if callable(given) and not hasattr(given, "encode"):  # a SentenceTransformer is also callable
        return given  # type: ignore[no-any-return]
    return embedder(given).embed


def check_embedder(embed: EmbedFunction) -> None:
    """Raise `NoModel` if the function belongs to an `Embedder` whose model is incomplete."""
    if isinstance(owner := getattr(embed, "__self__", None), Embedder):
        owner.check()


def get_embedder_identity(embed: EmbedFunction) -> list[Any]:
    """Return the embedder's settings that affect scores, or nothing for a function, whose behaviour is unknown."""
    owner = getattr(embed, "__self__", None)
    return [dict(owner.identity)] if isinstance(owner, Embedder) else []


async def compute_similarities(embed: EmbedFunction, text: str, others: Sequence[str]) -> list[float]:
    """Return the cosines, in [-1, 1], of a text with each of the others.

    Raises `Skip` for a vector of zeros, whose direction is undefined, and `ValueError` for invalid vectors.
    """
    texts = [text, *others]
    first, *vectors = await embed_texts(embed, texts)
    if not any(first):
        raise Skip(f"the similarity is undefined: embed gave a vector of zeros for {text!r:.200}")
    for other, vector in zip(others, vectors, strict=True):
        if not any(vector):
            raise Skip(f"the similarity is undefined: embed gave a vector of zeros for {other!r:.200}")
    return [_compute_cosine(first, vector) for vector in vectors]


async def embed_texts(embed: EmbedFunction, texts: Sequence[str]) -> list[list[float]]:
    """Return one vector of finite numbers per text, all of the same length. Raises `ValueError` for invalid vectors."""
    returned = await run_in_thread(lambda: embed(list(texts)))
    if inspect.isawaitable(returned):
        returned = await returned
    rows = _to_list(returned)
    if not isinstance(rows, list) or len(rows) != len(texts):
        count = f"{len(rows)} vectors" if isinstance(rows, list) else f"{returned!r:.100}"
        raise ValueError(f"embed returned {count} for {len(texts)} texts; {EMBED_HELP}")
    vectors = []
    for row in map(_to_list, rows):
        try:
            vector = [float(number) for number in row]
        except (TypeError, ValueError) as error:
            raise ValueError(f"embed returned {row!r:.100} as a vector; {EMBED_HELP}") from error
        if not vector or not all(map(math.isfinite, vector)):
            raise ValueError(
                f"embed returned a vector of {len(vector)} numbers, {vector!r:.100}; it must be finite and not empty"
            )
        vectors.append(vector)
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError(f"embed returned vectors of different lengths: {sorted({len(vector) for vector in vectors})}")
    return vectors


def _to_list(value: Any) -> Any:
    """Convert arrays, tensors and tuples to lists."""
    as_list = getattr(value, "tolist", None)
    plain = as_list() if callable(as_list) else value
    return list(plain) if isinstance(plain, tuple) else plain


def _compute_cosine(first: list[float], second: list[float]) -> float:
    """Return the cosine of two vectors. They are first scaled by their largest number, so that squares neither underflow
    nor overflow.
    """
    first, second = _scale_vector(first), _scale_vector(second)
    product = math.fsum(a * b for a, b in zip(first, second, strict=True))
    return max(-1.0, min(1.0, product / (math.hypot(*first) * math.hypot(*second))))


def _scale_vector(vector: list[float]) -> list[float]:
    greatest = max(map(abs, vector))
    return [number / greatest for number in vector]
