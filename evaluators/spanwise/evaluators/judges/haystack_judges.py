"""Haystack judges: context relevance and faithfulness, with Haystack's few-shot prompt layout."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spanwise.collector.records import JSON, Case
from spanwise.evaluators.interface.evaluator_spec import SOUNDNESS, TRANSPARENT, VALID
from spanwise.evaluators.judges.judge_evaluator import JudgeEvaluator, Judgement, register_judge
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, ParseFailure, make_object_schema
from spanwise.evaluators.judges.ratings import check_chunks

# in JSON without line breaks, a brace before one of these is part of a string, not the start of an object
_PLACEHOLDER_BRACE = re.compile(r"\{(?=[\s{A-Za-z_])")
_SCALAR_SCHEMAS = [{"type": kind} for kind in ("number", "string", "boolean", "null")]
_ANY_VALUE_SCHEMA: dict[str, JSON] = {
    "anyOf": [*_SCALAR_SCHEMAS, {"type": "array", "items": {"anyOf": _SCALAR_SCHEMAS}}]
}


@dataclass(frozen=True, slots=True)
class FewShotTask:
    """Task with instructions and few-shot examples. Each of the `examples` has `inputs` and `outputs`, which map names
    to values.
    """

    instructions: str
    outputs: Sequence[str]
    examples: Sequence[Mapping[str, Any]]

    def template(self, inputs: Mapping[str, str]) -> str:
        r"""Return the prompt in Haystack's layout. `inputs` maps the name of each input to the placeholder for its value.

        A brace before a word in an example is written as JSON's \u007b, so that it is not a placeholder.
        """
        examples = "\n".join(
            f"Inputs:\n{_escape_json(example['inputs'])}\nOutputs:\n{_escape_json(example['outputs'])}"
            for example in self.examples
        )
        fields = ", ".join(f'"{name}": {{{{ {argument} }}}}' for name, argument in inputs.items())
        return (
            f"Instructions:\n{self.instructions}\n\n"
            f"Generate the response in JSON format with the following keys:\n{json.dumps(list(self.outputs))}\n"
            "Consider the instructions and the examples below to determine those values.\n\n"
            f"Examples:\n{examples}\n\n"
            f"Inputs:\n{{{fields}}}\nOutputs:\n"
        )

    @property
    def schema(self) -> dict[str, JSON]:
        """Return the schema of a reply: the outputs, each with the type that it has in the examples."""
        outputs = [example["outputs"] for example in self.examples]
        columns = {name: [row[name] for row in outputs if name in row] for name in self.outputs}
        return make_object_schema({name: _infer_schema(values) for name, values in columns.items()})


def _escape_json(value: Any) -> str:
    return _PLACEHOLDER_BRACE.sub(r"\\u007b", json.dumps(value))


def _infer_schema(values: Sequence[Any]) -> dict[str, JSON]:
    """Infer a schema from example values. Without values, or with values of several types, the schema allows any scalar
    or list of scalars.
    """
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return {"type": "boolean"}
    if kinds == {int} and set(values) == {0, 1}:
        return {"type": "integer", "enum": [0, 1]}
    if kinds and kinds <= {int, float}:
        return {"type": "number"}
    if kinds == {str}:
        return {"type": "string"}
    if kinds == {list}:
        return {"type": "array", "items": _infer_schema([member for value in values for member in value])}
    if kinds == {dict}:
        names = dict.fromkeys(name for value in values for name in value)
        return make_object_schema(
            {name: _infer_schema([value[name] for value in values if name in value]) for name in names}
        )
    return _ANY_VALUE_SCHEMA


CONTEXT_RELEVANCE_TASK = FewShotTask(
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
FAITHFULNESS_TASK = FewShotTask(
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


def read_relevance(answer: Answer) -> dict[str, Any]:
    """Return a dict of `relevant_statements` and `score`, which is 1 if there are relevant statements, else 0. Raises
    `ParseFailure`.
    """
    statements = _read_list(answer, "relevant_statements", str)
    return {"relevant_statements": statements, "score": int(bool(statements))}


def read_faithfulness(answer: Answer) -> dict[str, Any]:
    """Return a dict of `statements`, `statement_scores` and `score`, the mean of the scores or 0 without statements.
    Raises `ParseFailure`.
    """
    statements = _read_list(answer, "statements", str)
    scores = [int(score) for score in _read_list(answer, "statement_scores", int)]
    if len(scores) != len(statements) or not set(scores) <= {0, 1}:
        raise ParseFailure(f"{len(statements)} statements with the scores {scores!r:.100}", answer.text)
    score = sum(scores) / len(scores) if scores else 0.0
    return {"statements": statements, "statement_scores": scores, "score": score}


async def ask_until_consistent(
    ask: Callable[[int], Awaitable[Answer]], read: Callable[[Answer], dict[str, Any]]
) -> dict[str, Any]:
    """Ask, and parse the answer with `read`. If `read` raises `ParseFailure`, ask once more. `ask` takes the index of
    the sample: 0, then 1.
    """
    answer = await ask(0)
    try:
        return read(answer)
    except ParseFailure:
        return read(await ask(1))


class HaystackJudge(JudgeEvaluator):
    """Base class of judges that perform a task of Haystack's."""

    TASK: ClassVar[FewShotTask]

    async def _judge_task(self, case: Case) -> dict[str, Any]:
        """Ask the question of the task and return the feedback."""
        values = self._values(case)
        async with Judgement(self.PROMPT, self._judge, case) as judgement:
            result = await ask_until_consistent(
                lambda sample: judgement.ask(self._prompt, values, self.TASK.schema, sample=sample), self._read
            )
            outputs = {name: result[name] for name in self.TASK.outputs}
            return judgement.row(float(result["score"]), comment=self._comment(result), metadata=outputs)

    def _read(self, answer: Answer) -> dict[str, Any]:
        """Return the result in an answer. Raises `ParseFailure`."""
        raise NotImplementedError

    def _comment(self, result: Mapping[str, Any]) -> str | None:
        """Return the comment on a result."""
        raise NotImplementedError


@register_judge(
    "haystack_context_relevance",
    standards=(VALID, TRANSPARENT, SOUNDNESS),
    source="Haystack ContextRelevanceEvaluator",
    canonical="Haystack",
    llm=False,
    example='get_evaluator("ContextRelevance", judge=scripted({"relevant_statements": ["Built in 1912."]})), '
    'inputs="When was it built?", documents=["Built in 1912. It is green."]',
)
class ContextRelevance(HaystackJudge):
    """Relevance of the retrieved context: 1 if the judge finds a statement that helps to answer the question, else
    0.

    It follows Haystack's ContextRelevanceEvaluator (`run()` is in `spanwise.evaluators.haystack`). The statements are
    in the metadata. If a retrieval found nothing, the score is 0 without a call of the judge.
    """

    PROMPT: ClassVar[str] = "haystack_context_relevance"
    TASK: ClassVar[FewShotTask] = CONTEXT_RELEVANCE_TASK

    async def __call__(self, case: Case, inputs: Any, documents: Any) -> dict[str, Any]:
        if not documents:
            return {"score": 0.0, "comment": "nothing was retrieved", "metadata": {"relevant_statements": []}}
        check_chunks(documents)
        return await self._judge_task(case)

    def _read(self, answer: Answer) -> dict[str, Any]:
        return read_relevance(answer)

    def _comment(self, result: Mapping[str, Any]) -> str | None:
        return "\n".join(result["relevant_statements"]) or "no statement is relevant"


@register_judge(
    "haystack_faithfulness",
    standards=(VALID, TRANSPARENT),
    source="Haystack FaithfulnessEvaluator",
    canonical="Haystack",
    llm=False,
    example='get_evaluator("Faithfulness", judge=scripted({"statements": ["In 1912.", "It is green."], '
    '"statement_scores": [1, 0]})), inputs="When was it built?", outputs="In 1912. It is green.", '
    'documents=["Built in 1912."]',
)
class Faithfulness(HaystackJudge):
    """Share of the statements of an answer that can be inferred from the retrieved context; 0 for an answer without
    statements.

    It follows Haystack's FaithfulnessEvaluator (`run()` is in `spanwise.evaluators.haystack`). One question splits
    the answer and scores the statements. Statements and scores are in the metadata. If the two lists of a reply
    differ in length, the question is asked once more; a second mismatch is a parse failure.
    """

    PROMPT: ClassVar[str] = "haystack_faithfulness"
    TASK: ClassVar[FewShotTask] = FAITHFULNESS_TASK
    UNCUT: ClassVar[tuple[str, ...]] = ("outputs", "documents")

    async def __call__(self, case: Case, inputs: Any, outputs: Any, documents: Any) -> dict[str, Any]:
        if documents:
            check_chunks(documents)
        return await self._judge_task(case)

    def _read(self, answer: Answer) -> dict[str, Any]:
        return read_faithfulness(answer)

    def _comment(self, result: Mapping[str, Any]) -> str | None:
        pairs = zip(result["statements"], result["statement_scores"], strict=True)
        missing = [statement for statement, score in pairs if not score]
        return "\n".join(["cannot be inferred:", *missing]) if missing else None


def _read_list(answer: Answer, name: str, kind: type) -> list[Any]:
    """Return the list under `name` in a reply. Raises `ParseFailure` if it is missing, or has members that are not of
    type `kind`.
    """
    values = answer.value.get(name) if isinstance(answer.value, Mapping) else None
    if not isinstance(values, list) or not all(isinstance(member, kind) for member in values):
        raise ParseFailure(f"{name} is {values!r:.100}, no list", answer.text)
    return values
