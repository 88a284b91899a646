"""Haystack's judges of single cases: relevance of the context, and faithfulness of the answer to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spanwise.collector.records import Case
from spanwise.evaluators.judges._ask import Answer, ParseFailure
from spanwise.evaluators.judges._base import Judged
from spanwise.evaluators.judges._chunks import check_chunks
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._task import Task
from spanwise.evaluators.judges._values import texts_of
from spanwise.evaluators.protocol import Metric, builtin
from spanwise.evaluators.protocol.standards import SOUNDNESS, TRANSPARENT, VALID

CONTEXT_RELEVANCE = Task(
    "Which sentences of the contexts does somebody need who is to answer the question? List these and no others, "
    "letter by letter as they stand there. Where no sentence helps, the list is empty: []",
    ["relevant_statements"],
    [
        {
            "inputs": {
                "questions": "How long is the Rhine?",
                "contexts": ["The Rhine is about 1,230 km long. Its valley is full of castles."],
            },
            "outputs": {"relevant_statements": ["The Rhine is about 1,230 km long."]},
        },
        {
            "inputs": {
                "questions": "Who painted the ceiling of the chapel?",
                "contexts": ["The chapel opens at nine.", "Tickets are sold at the gate."],
            },
            "outputs": {"relevant_statements": []},
        },
        {
            "inputs": {
                "questions": "Which of the two bridges is older?",
                "contexts": ["The stone bridge was built in 1357.", "The iron bridge followed in 1841. It is green."],
            },
            "outputs": {
                "relevant_statements": ["The stone bridge was built in 1357.", "The iron bridge followed in 1841."]
            },
        },
    ],
)
FAITHFULNESS = Task(
    "Judge whether an answer is faithful to its contexts. First split the predicted answer into single statements, "
    "each to be understood by itself. Then score every statement: 1 if it can be inferred from the contexts, 0 if it "
    "cannot. Give as many scores as statements, in the same order.",
    ["statements", "statement_scores"],
    [
        {
            "inputs": {
                "questions": "How long is the Rhine, and where does it end?",
                "contexts": ["The Rhine is about 1,230 km long and flows into the North Sea."],
                "predicted_answers": "It reaches the North Sea after more than 1,200 km.",
            },
            "outputs": {
                "statements": ["The Rhine reaches the North Sea.", "The Rhine is more than 1,200 km long."],
                "statement_scores": [1, 1],
            },
        },
        {
            "inputs": {
                "questions": "Who painted the ceiling of the chapel?",
                "contexts": ["The chapel opens at nine."],
                "predicted_answers": "Michelangelo",
            },
            "outputs": {
                "statements": ["Michelangelo painted the ceiling of the chapel."],
                "statement_scores": [0],
            },
        },
        {
            "inputs": {
                "questions": "When was the stone bridge built?",
                "contexts": ["The stone bridge was built in 1357."],
                "predicted_answers": "The stone bridge was built in 1357, by order of the king.",
            },
            "outputs": {
                "statements": ["The stone bridge was built in 1357.", "The king ordered the stone bridge."],
                "statement_scores": [1, 0],
            },
        },
    ],
)


def relevance_of(answer: Answer) -> dict[str, Any]:
    """`relevant_statements`, and as `score` 1 if there are any, else 0. Raises `ParseFailure`."""
    statements = _listed(answer, "relevant_statements", str)
    return {"relevant_statements": statements, "score": int(bool(statements))}


def faithfulness_of(answer: Answer) -> dict[str, Any]:
    """`statements`, `statement_scores`, and as `score` their mean, 0 without statements. Raises `ParseFailure`."""
    statements = _listed(answer, "statements", str)
    scores = [int(score) for score in _listed(answer, "statement_scores", int)]
    if len(scores) != len(statements) or not set(scores) <= {0, 1}:
        raise ParseFailure(f"{len(statements)} statements with the scores {scores!r:.100}", answer.text)
    score = sum(scores) / len(scores) if scores else 0.0
    return {"statements": statements, "statement_scores": scores, "score": score}


async def read_twice(
    ask: Callable[[int], Awaitable[Answer]], read: Callable[[Answer], dict[str, Any]]
) -> dict[str, Any]:
    """What is read of an answer; of another one (`ask` takes the number of the sample) where it contradicts itself."""
    answer = await ask(0)
    try:
        return read(answer)
    except ParseFailure:
        return read(await ask(1))


@builtin(
    "haystack_context_relevance",
    metrics=(Metric("haystack_context_relevance", threshold=0.5, primary=True),),
    standards=(VALID, TRANSPARENT, SOUNDNESS),
    source="Haystack ContextRelevanceEvaluator",
    canonical="Haystack",
    judge=True,
    kind="model",
    llm=False,
    example='get("ContextRelevance", judge=scripted({"relevant_statements": ["Built in 1912."]})), '
    'inputs="When was it built?", documents=["Built in 1912. It is green."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRelevance(Judged):
    """Whether the retrieved context holds anything that is needed to answer the question: 1 if the judge finds a
    relevant statement, else 0, as Haystack's ContextRelevanceEvaluator (`run()` is in `spanwise.evaluators.haystack`).

    The statements are in the metadata. Where a retrieval found nothing it is 0 without asking.
    """

    PROMPT: ClassVar[str] = "haystack_context_relevance"

    async def __call__(self, case: Case, inputs: Any, documents: Any) -> dict[str, Any]:
        if not documents:
            return {"score": 0.0, "comment": "nothing was retrieved", "metadata": {"relevant_statements": []}}
        check_chunks(documents)
        return await _row(self, CONTEXT_RELEVANCE, case, relevance_of, _relevant)


@builtin(
    "haystack_faithfulness",
    metrics=(Metric("haystack_faithfulness", threshold=0.5, primary=True),),
    standards=(VALID, TRANSPARENT),
    source="Haystack FaithfulnessEvaluator",
    canonical="Haystack",
    judge=True,
    kind="model",
    llm=False,
    example='get("Faithfulness", judge=scripted({"statements": ["In 1912.", "It is green."], '
    '"statement_scores": [1, 0]})), inputs="When was it built?", outputs="In 1912. It is green.", '
    'documents=["Built in 1912."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness(Judged):
    """The share of the statements of an answer that can be inferred from the retrieved context, 0 for an answer without
    statements, as Haystack's FaithfulnessEvaluator (`run()` is in `spanwise.evaluators.haystack`).

    One question splits and scores; statements and scores are in the metadata. A reply whose lists differ in length is
    asked for once more, then it is a parse failure.
    """

    PROMPT: ClassVar[str] = "haystack_faithfulness"
    UNCUT: ClassVar[tuple[str, ...]] = ("outputs", "documents")

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Any) -> dict[str, Any]:
        if documents:
            check_chunks(documents)
        return await _row(self, FAITHFULNESS, case, faithfulness_of, _not_inferred)


async def _row(
    judged: Judged,
    task: Task,
    case: Case,
    read: Callable[[Answer], dict[str, Any]],
    why: Callable[[Mapping[str, Any]], str | None],
) -> dict[str, Any]:
    """The feedback of what is read of an answer; `why` makes the comment."""
    prompt = judged.prompts[0]
    values = texts_of(case, prompt.asked)
    async with Judgement(prompt.id, judged._judge, case) as judgement:
        result = await read_twice(lambda sample: judgement.ask(prompt, values, task.schema, sample=sample), read)
        told = {name: result[name] for name in task.outputs}
        return judgement.row(float(result["score"]), comment=why(result), metadata=told)


def _relevant(result: Mapping[str, Any]) -> str:
    return "\n".join(result["relevant_statements"]) or "no statement is relevant"


def _not_inferred(result: Mapping[str, Any]) -> str | None:
    pairs = zip(result["statements"], result["statement_scores"], strict=True)
    missing = [statement for statement, score in pairs if not score]
    return "\n".join(["cannot be inferred:", *missing]) if missing else None


def _listed(answer: Answer, name: str, kind: type) -> list[Any]:
    """The list under a name. Raises `ParseFailure` for anything else."""
    given = answer.value.get(name) if isinstance(answer.value, Mapping) else None
    if not isinstance(given, list) or not all(isinstance(member, kind) for member in given):
        raise ParseFailure(f"{name} is {given!r:.100}, no list", answer.text)
    return given
