"""What the RAGAS family asks and counts: each component once, for the evaluator of its name and for `ragas`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from spanwise.collector.records import JSON, Case, Document
from spanwise.evaluators.builtin._texts import question_of, text_of
from spanwise.evaluators.judges._ask import Answer, ParseFailure
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._prompts import Prompt
from spanwise.evaluators.judges._similarity import Embed, check, similarities
from spanwise.evaluators.judges._statements import (
    VERDICT,
    Statements,
    Verdict,
    items_of,
    numbered,
    one_line,
    pieces,
    portions_of,
    statements_of,
    verdict_in,
    verdicts_on,
)
from spanwise.evaluators.judges._together import together
from spanwise.evaluators.judges._values import text_of as as_text
from spanwise.evaluators.judges._values import texts_of
from spanwise.evaluators.protocol import Skip, value_of

SHOWN = 3  # of what failed, in a comment; the metadata have all
KEPT = 200  # of the statements, in metadata
QUESTION: Mapping[str, JSON] = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "noncommittal": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["question", "noncommittal"],
    "additionalProperties": False,
}
SENTENCES: Mapping[str, JSON] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "sentences": {"type": "array", "items": {"type": "string"}}},
    "required": ["reason", "sentences"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Found:
    """What a component came to: its score, what failed in words, and what it was counted from."""

    score: float
    comment: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One case before the judge, with the prompts by id; `most` bounds sentences and statements."""

    judgement: Judgement
    prompts: Mapping[str, Prompt]
    case: Case
    most: int

    def values(self, id: str, **own: str) -> dict[str, str]:
        """What the prompt of that id asks for: what is given here, else what the case has."""
        asked = self.prompts[id].asked
        others = texts_of(self.case, [name for name in asked if name not in own], optional={"inputs": "(not known)"})
        return {name: own[name] if name in own else others[name] for name in asked}

    @property
    def question(self) -> str:
        """The text of the inputs, "" without any."""
        return _words(value_of(self.case, "inputs"), question_of)

    @property
    def answer(self) -> str:
        """The text of the outputs."""
        return _words(value_of(self.case, "outputs"), text_of)

    @property
    def expected(self) -> str:
        """The text of the reference."""
        return _words(value_of(self.case, "reference_outputs"), text_of)

    @property
    def chunks(self) -> Sequence[Document]:
        """What was retrieved and is not blank."""
        return [document for document in self.case.documents or () if document.content.strip()]

    async def statements(self, text: str) -> Statements:
        """What a text states."""
        return await statements_of(self.judgement, self.prompts["statements"], self._portion, text, self.most)

    async def verdicts(self, id: str, statements: Sequence[str], **own: str) -> list[Verdict]:
        """Whether they hold, by the prompt of that id."""
        return await verdicts_on(
            self.judgement, self.prompts[id], statements, lambda listed: self.values(id, statements=listed, **own)
        )

    async def ask(self, id: str, schema: Mapping[str, JSON], **own: str) -> Answer:
        """One question."""
        return await self.judgement.ask(self.prompts[id], self.values(id, **own), schema)

    def _portion(self, text: str) -> dict[str, str]:
        return self.values("statements", outputs=text)


async def faithfulness(asking: Asking) -> Found:
    """Statements of the answer that follow from the context, over all. Raises `Skip` where it states nothing."""
    stated = await asking.statements(asking.answer)
    if not stated.texts:
        raise Skip("the answer makes no statements: faithfulness is undefined")
    verdicts = _none_of(stated.texts, "nothing was retrieved")
    if asking.chunks:
        verdicts = await asking.verdicts("faithfulness", stated.texts)
    return _share(verdicts, "statements", "do not follow from the context", stated.left_out)


async def context_recall(asking: Asking) -> Found:
    """Sentences of the reference that can be attributed to the context, over all."""
    told = pieces(asking.expected)
    if not told:
        raise Skip("the reference is empty: context recall is undefined")
    listed = [one_line(sentence) for sentence in told[: asking.most]]
    left_out = None
    if len(told) > asking.most:
        left_out = f"of {len(told)} sentences the first {asking.most} were judged"
        asking.judgement.leave_out("sentences", sum(map(len, told[asking.most :])))
    verdicts = _none_of(listed, "nothing was retrieved")
    if asking.chunks:
        verdicts = await asking.verdicts("context_recall", listed)
    return _share(verdicts, "expected sentences", "cannot be attributed to the context", left_out)


async def answer_relevancy(asking: Asking, embed: Embed, count: int) -> Found:
    """The mean cosine of the question with questions that the answer answers; 0 where all say that it answers none."""
    if not asking.question.strip():
        raise Skip("the question is empty: answer relevancy is undefined")
    if not asking.answer.strip():
        raise Skip("the answer is empty: answer relevancy is undefined")
    check(embed)  # before anything is paid for
    answer = await asking.ask("answer_relevancy", numbered(count, QUESTION), outputs=asking.answer)
    said = items_of(answer, count, "questions")
    evades = [verdict_in(answer, one, "noncommittal") for one in said]
    asked = [_question(answer, one) for one in said]
    cosines = await similarities(embed, asking.question, asked)
    metadata = {
        "questions": [
            {"question": question, "similarity": cosine, "noncommittal": evading}
            for question, cosine, evading in zip(asked, cosines, evades, strict=True)
        ]
    }
    if all(evades):
        return Found(0.0, f"the answer is noncommittal, as one to {asked[0]!r}", metadata)
    least = min(range(count), key=cosines.__getitem__)
    comment = f"farthest of the questions that it answers: {asked[least]!r} (similarity {cosines[least]:.2f})"
    return Found(sum(cosines) / count, comment, metadata)


async def context_precision(asking: Asking) -> Found:
    """Average precision of the retrieved chunks, each useful for the expected answer or not."""
    documents = (asking.case.documents or ())[: asking.most]
    if not documents:
        raise Skip("nothing was retrieved: context precision is undefined")
    if not asking.expected.strip():
        raise Skip("the reference is empty: context precision is undefined")
    verdicts = await together(_chunk(asking, document) for document in documents)
    useless = [f"[{place}] {one.reason}" for place, one in enumerate(verdicts, 1) if not one.holds]
    comment = _told("chunks", "are of no use for the expected answer", useless, len(verdicts))
    if len(asking.case.documents or ()) > asking.most:
        comment = f"{comment}; only the first {asking.most} chunks were judged"
    chunks = [
        {"chunk": place, "id": document.id, "verdict": one.told["verdict"], "reason": one.told["reason"]}
        for place, (document, one) in enumerate(zip(documents, verdicts, strict=True), 1)
    ]
    return Found(average_precision([one.holds for one in verdicts]), comment, {"chunks": chunks})


async def context_relevancy(asking: Asking) -> Found:
    """Sentences of the context that help to answer the question, over all of its sentences."""
    told = [sentence for document in asking.chunks for sentence in pieces(document.content)]
    if not told:
        raise Skip("the context has no sentences: context relevancy is undefined")
    if not asking.question.strip():
        raise Skip("the question is empty: context relevancy is undefined")
    looked_at = told[: asking.most]
    if len(told) > asking.most:
        asking.judgement.leave_out("sentences", sum(map(len, told[asking.most :])))
    portions = portions_of("\n".join(looked_at), looked_at)
    answers = await together(asking.ask("context_relevancy", SENTENCES, documents=portion) for portion in portions)
    copied = [line for answer in answers for line in _copied(answer)]
    relevant, invented = matched(looked_at, copied)
    irrelevant = [sentence for place, sentence in enumerate(looked_at) if place not in relevant]
    comment = _told("sentences", "do not help to answer the question", irrelevant, len(looked_at))
    metadata = {
        "sentences": len(looked_at),
        "relevant": [one_line(looked_at[place]) for place in sorted(relevant)][:KEPT],
        "not_in_the_context": invented[:KEPT],
    }
    if len(told) > asking.most:
        comment = f"{comment}; of {len(told)} sentences the first {asking.most} were looked at"
    return Found(len(relevant) / len(looked_at), comment, metadata)


def average_precision(relevant: Sequence[bool]) -> float:
    """The mean, over the relevant, of the precision at their places; 0 where none is."""
    hits = list(accumulate(map(int, relevant)))
    precisions = [hits[place] / (place + 1) for place, holds in enumerate(relevant) if holds]
    return sum(precisions) / len(precisions) if precisions else 0.0


def f1(tp: int, fp: int, fn: int) -> float:
    """TP / (TP + ½ (FP + FN)); 0 without any true positive."""
    return tp / (tp + 0.5 * (fp + fn)) if tp else 0.0


def matched(told: Sequence[str], copied: Sequence[str]) -> tuple[set[int], list[str]]:
    """Which sentences were copied, by place, and what was copied from nowhere.

    A copy may be wrapped, quoted, cut at its ends, of several sentences, or repeated: each sentence counts once, and
    every sentence of the same words with it.
    """
    texts = [_bare(sentence) for sentence in told]
    relevant: set[int] = set()
    invented = []
    for copy in copied:
        found = {place for one in pieces(copy) for place in _places(texts, _bare(one))}
        relevant |= found
        if not found:
            invented.append(copy)
    return relevant, invented


def _places(texts: Sequence[str], wanted: str) -> list[int]:
    same = [place for place, text in enumerate(texts) if wanted and text == wanted]
    if same or len(wanted) < _TELLING:
        return same
    parts = [place for place, text in enumerate(texts) if wanted in text]
    if parts:  # a part that stands in several sentences tells none
        return parts if len({texts[place] for place in parts}) == 1 else []
    return [place for place, text in enumerate(texts) if len(text) >= _TELLING and text in wanted]


_TELLING = 12  # characters of a part that tells from which sentence it is


def _bare(sentence: str) -> str:
    """What of a sentence tells it from others: its words."""
    return " ".join(re.findall(r"\w+", sentence.casefold()))


def _words(value: Any, read: Callable[[Any], str]) -> str:
    """The one text of a value; of one with several, all of it as JSON."""
    try:
        return read(value)
    except ValueError:
        return as_text(value)


async def _chunk(asking: Asking, document: Document) -> Verdict:
    if not document.content.strip():
        return Verdict("", False, "it is empty")
    answer = await asking.ask("context_precision", VERDICT, documents=document.content)
    return Verdict(one_line(document.content), verdict_in(answer, answer.value), one_line(str(answer.value["reason"])))


def _question(answer: Answer, said: Mapping[str, Any]) -> str:
    question = said.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ParseFailure(f"a question is a text, not {question!r:.100}", answer.text)
    return one_line(question)


def _copied(answer: Answer) -> list[str]:
    listed = answer.value.get("sentences") if isinstance(answer.value, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(sentence, str) for sentence in listed):
        raise ParseFailure('asked for {"sentences": […]}, a list of texts', answer.text)
    return [line for sentence in listed if (line := one_line(sentence, 5000))]


def _none_of(statements: Sequence[str], why: str) -> list[Verdict]:
    return [Verdict(statement, False, why) for statement in statements]


def _share(verdicts: Sequence[Verdict], what: str, fail: str, *limits: str | None) -> Found:
    missed = [f"{one.statement!r} ({one.reason})" for one in verdicts if not one.holds]
    comment = "; ".join(filter(None, [_told(what, fail, missed, len(verdicts)), *limits]))
    metadata = {"statements": [one.told for one in verdicts[:KEPT]]}
    score = (len(verdicts) - len(missed)) / len(verdicts)
    return Found(score, comment, metadata)


def _told(what: str, fail: str, failed: Sequence[str], of: int) -> str:
    """What failed, in words: "1 of 3 statements do not follow from the context: …"."""
    if not failed:
        return f"0 of {of} {what} {fail}"
    shown = "; ".join(one_line(one, 300) for one in failed[:SHOWN])
    return f"{len(failed)} of {of} {what} {fail}: {shown}{'; …' if len(failed) > SHOWN else ''}"
