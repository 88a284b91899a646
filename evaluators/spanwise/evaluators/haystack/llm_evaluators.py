"""LLM evaluators: custom instructions, context relevance and faithfulness; serialization in pipelines."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, get_origin

from spanwise.evaluators.interface import run_coroutine
from spanwise.evaluators.judges.haystack_judges import (
    CONTEXT_RELEVANCE_TASK,
    FAITHFULNESS_TASK,
    FewShotTask,
    ask_until_consistent,
    read_faithfulness,
    read_relevance,
)
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, Ask, NoJudge, ParseFailure
from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge
from spanwise.evaluators.judges.prompt_templates import Prompt, render_value
from spanwise.evaluators.models.model_resolution import first_variable

# Haystack pipeline components: registration, serialization of judges and types.

component: Any = None
try:
    from haystack import component
except ImportError:  # Haystack is optional: the classes also work without its pipelines
    pass

C = TypeVar("C", bound=type)
# module name in stored pipelines, independent of the module that defines a class
PACKAGE_NAME = __name__.rpartition(".")[0]


def register_component(**outputs: Any) -> Callable[[C], C]:
    """Return a decorator that makes a class a Haystack component with these outputs of `run`. Without Haystack it only
    sets the module.
    """

    def decorate(cls: C) -> C:
        cls.__module__ = PACKAGE_NAME
        if component is None:
            return cls
        for name in ("run", "run_async"):
            if name in cls.__dict__:
                component.output_types(**outputs)(cls.__dict__[name])
        registered: C = component(cls)
        return registered

    return decorate


def component_dict(evaluator: object, **parameters: Any) -> dict[str, Any]:
    """Return the result of `to_dict`: the type, and the parameters of its `__init__`."""
    return {"type": f"{PACKAGE_NAME}.{type(evaluator).__qualname__}", "init_parameters": parameters}


_TYPES_BY_NAME = {
    str(kind): kind for kind in (list[str], list[list[str]], list[int], list[float], list[bool], list[Any])
}


def serialize_judge(judge: Any) -> Any:
    """Return a judge as plain values, without its key. Raises `ValueError` for a function or a script, which cannot be
    serialized.
    """
    if judge is None or isinstance(judge, str):
        return judge
    if hasattr(judge, "to_dict") and not isinstance(judge, Judge):
        from haystack.core.serialization import component_to_dict

        return component_to_dict(obj=judge, name="chat_generator")
    return make_judge(judge).to_dict()


def deserialize_judge(judge: Any) -> Any:
    """Restore a judge from the result of `serialize_judge`."""
    if not isinstance(judge, Mapping) or "type" not in judge:
        return judge
    from haystack.utils import deserialize_chatgenerator_inplace

    holder = {"chat_generator": dict(judge)}
    deserialize_chatgenerator_inplace(holder, key="chat_generator")
    return holder["chat_generator"]


def type_to_text(kind: Any) -> str:
    """Return a type as text in Haystack's notation."""
    if component is None:
        return str(kind)
    from haystack.utils import serialize_type

    return serialize_type(kind)


def type_from_text(name: str) -> Any:
    """Return the type with that name. Without Haystack, an unknown name gives `list[Any]`."""
    if component is None:
        return _TYPES_BY_NAME.get(name, list[Any])
    from haystack.utils import deserialize_type

    return deserialize_type(name)


# LLM evaluators: custom instructions, context relevance and faithfulness, row by row.

Examples = list[dict[str, Any]]
RowResult = tuple[dict[str, Any] | None, list[dict[str, Any]]]  # the result of one row, and the usage of its replies
MAX_CONCURRENT_ROWS = 64  # maximum number of rows whose prompts are in memory
_OUTPUT_TYPES = {"results": list[dict[str, Any]], "meta": list[dict[str, Any]] | None}
_SCORED_OUTPUT_TYPES = {"score": float, "individual_scores": list[float], **_OUTPUT_TYPES}
_log = logging.getLogger(__name__)
_NO_GENERATOR_MESSAGE = (
    "no judge is configured: pass chat_generator=, or set SPANWISE_JUDGE to the name of a model (and SPANWISE_JUDGE_URL "
    "and SPANWISE_JUDGE_KEY for its endpoint), or install haystack-ai and set OPENAI_API_KEY for Haystack's "
    "OpenAIChatGenerator"
)


@register_component(**_OUTPUT_TYPES)
class LLMEvaluator:
    """Evaluator that asks a judge about every row of its inputs, with custom instructions and few-shot examples.

    `inputs` are pairs of a name and a list type, `outputs` the keys of a reply, usually 0 or 1.
    `chat_generator` is a Haystack generator, a `Judge`, a model's name, a function, or None for the judge in
    the environment (SPANWISE_JUDGE). If the environment names none, Haystack's `OpenAIChatGenerator` in JSON mode
    is used, provided that Haystack is installed and OPENAI_API_KEY is set. With `raise_on_failure=False`, the result of a failed row is None, and a warning gives the
    reason.

    `{{ name }}` of an input is also a placeholder in the instructions. Any other single word in braces is
    refused. Values are fenced in the prompt. A Haystack generator gets one row at a time, other judges get many
    concurrently. After an unreadable reply the judge is asked once more.
    """

    def __init__(
        self,
        instructions: str,
        inputs: list[tuple[str, Any]],
        outputs: list[str],
        examples: Examples,
        progress_bar: bool = True,
        *,
        raise_on_failure: bool = True,
        chat_generator: Any = None,
    ) -> None:
        self.validate_init_parameters(inputs, outputs, examples)
        if component is not None:
            component.set_input_types(self, **dict(inputs))
        self.instructions = instructions
        self.inputs = inputs
        self.outputs = outputs
        self.examples = examples
        self.progress_bar = progress_bar
        self.raise_on_failure = raise_on_failure
        self._task = FewShotTask(instructions, outputs, examples)
        self._prompt = Prompt(type(self).__name__, self.prepare_template(), names=tuple(name for name, _ in inputs))
        self._chat_generator = chat_generator
        self._generator = make_default_generator() if chat_generator is None else chat_generator
        self._judge = make_judge(self._generator)

    @staticmethod
    def validate_init_parameters(inputs: Any, outputs: Any, examples: Any) -> None:
        """Raise `ValueError` for inputs that are not pairs of a name and a list type, and for outputs that are not
        texts. Also raise it for examples that are not dicts with `inputs` and `outputs`, each a dict by name.
        """
        if not isinstance(inputs, list) or not all(map(_is_input, inputs)):
            raise ValueError(f'inputs must be a list of pairs such as ("questions", list[str]), got {inputs!r:.200}')
        if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
            raise ValueError(f"outputs must be a list of names, got {outputs!r:.200}")
        if not isinstance(examples, list):
            raise ValueError(f"examples must be a list of dicts, got {examples!r:.200}")
        for example in examples:
            if not _is_example(example):
                raise ValueError(f"an example must be {{'inputs': {{…}}, 'outputs': {{…}}}}, got {example!r:.200}")

    @staticmethod
    def validate_input_parameters(expected: Mapping[str, Any], received: Mapping[str, Any]) -> None:
        """Raise `ValueError` for a missing input, an input that is not a list, and lists of unequal length."""
        for name in expected:
            if name not in received:
                raise ValueError(f"the input {name!r} is missing; there are {', '.join(received) or 'none'}")
        for name, values in received.items():
            if not isinstance(values, list):
                raise ValueError(f"the input {name!r} must be a list, got {values!r:.200}")
        lengths = {name: len(values) for name, values in received.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"inputs must be lists of the same length, got {lengths}")

    def prepare_template(self) -> str:
        """Return the prompt: instructions, keys of the reply, examples, and a placeholder for each input."""
        return self._task.template({name: name for name, _ in self.inputs})

    def is_valid_json_and_has_expected_keys(self, expected: list[str], received: str) -> bool:
        """Return whether a text is a JSON object with these keys. If not, raise `ValueError`, or log a warning and
        return False.
        """
        try:
            missing = _find_missing_keys(json.loads(received), expected)
        except ValueError as error:
            missing = f"it is no JSON: {error}"
        if missing and self.raise_on_failure:
            raise ValueError(f"the reply {received!r:.200} is no result: {missing}")
        if missing:
            _log.warning("the reply %.200r is no result: %s", received, missing)
        return not missing

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Return `results`, a dict per row or None for a failed row, and `meta`, the model and token usage of each
        reply.

        Raises `ValueError` for invalid inputs and without a configured judge. With `raise_on_failure`, it also raises
        `ValueError` for a failed row.
        """
        return run_coroutine(self._run(inputs))

    async def run_async(self, **inputs: Any) -> dict[str, Any]:
        """Run like `run`, from async code."""
        return await self._run(inputs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`, without the judge's key.

        Raises `ValueError` if the judge is a function.
        """
        inputs = [[name, type_to_text(kind)] for name, kind in self.inputs]
        return component_dict(
            self, instructions=self.instructions, inputs=inputs, outputs=self.outputs, **self._options()
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LLMEvaluator:
        """Create the evaluator from the values of `to_dict`."""
        parameters = dict(data.get("init_parameters", {}))
        if "inputs" in parameters:
            parameters["inputs"] = [(name, type_from_text(kind)) for name, kind in parameters["inputs"]]
        parameters["chat_generator"] = deserialize_judge(parameters.get("chat_generator"))
        return cls(**parameters)

    async def _run(self, inputs: Mapping[str, list[Any]]) -> dict[str, Any]:
        self.validate_input_parameters(dict(self.inputs), inputs)
        names = [name for name, _ in self.inputs]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(inputs.__getitem__, names), strict=True)]
        theirs = hasattr(self._generator, "run")  # a Haystack generator may not be thread-safe
        judged = await judge_rows(
            self._judged, rows, at_once=1 if theirs else MAX_CONCURRENT_ROWS, bar=self.progress_bar
        )
        results = [result for result, _ in judged]
        if failed := results.count(None):
            _log.warning("%d of %d rows failed: their results are None", failed, len(results))
        return {"results": results, "meta": [reply for _, replies in judged for reply in replies] or None}

    async def _judged(self, row: Mapping[str, Any]) -> RowResult:
        """Return the result of one row, and the usage of its replies."""
        replies: list[dict[str, Any]] = []
        try:
            return await self._result(row, replies), replies
        except NoJudge:  # a missing judge affects all rows
            if self._generator is None and not first_variable("SPANWISE_JUDGE"):
                raise NoJudge(_NO_GENERATOR_MESSAGE) from None
            raise
        except Exception as error:
            if self.raise_on_failure:
                raise ValueError(f"no result for {dict(row)!r:.200}: {error}") from error
            _log.warning("no result for %.200r: %s", dict(row), error)
            return None, replies

    async def _result(self, row: Mapping[str, Any], replies: list[dict[str, Any]]) -> dict[str, Any]:
        values = {name: render_value(value) for name, value in row.items()}
        question = Ask(
            messages=self._prompt.messages(values),
            schema=self._task.schema,
            name=self._prompt.id,
            values=tuple(values.values()),
        )

        async def ask(sample: int) -> Answer:
            answer = await self._judge.ask(replace(question, sample=sample))
            usage, meta = answer.usage, None
            if usage:  # under OpenAI's names
                meta = {
                    "prompt_tokens": usage.input_tokens,
                    "completion_tokens": usage.output_tokens,
                    "total_tokens": usage.total_tokens,
                }
            replies.append({"model": answer.model, "usage": meta})
            return answer

        return await ask_until_consistent(ask, self._read)

    def _read(self, answer: Answer) -> dict[str, Any]:
        """Return the result in an answer. Raises `ParseFailure`."""
        if missing := _find_missing_keys(answer.value, self.outputs):
            raise ParseFailure(missing, answer.text)
        return dict(answer.value)

    def _options(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "chat_generator": serialize_judge(self._chat_generator),
            "progress_bar": self.progress_bar,
            "raise_on_failure": self.raise_on_failure,
        }


class _ScoredEvaluator(LLMEvaluator):
    """Base of Haystack's predefined tasks, whose results have scores."""

    TASK: FewShotTask
    INPUTS: Sequence[tuple[str, Any]]

    def __init__(
        self,
        examples: Examples | None = None,
        progress_bar: bool = True,
        raise_on_failure: bool = True,
        chat_generator: Any = None,
    ) -> None:
        task = replace(self.TASK, examples=examples or self.TASK.examples)
        LLMEvaluator.__init__(
            self,
            task.instructions,
            list(self.INPUTS),
            list(task.outputs),
            [dict(example) for example in task.examples],
            progress_bar,
            raise_on_failure=raise_on_failure,
            chat_generator=chat_generator,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`, without the judge's key."""
        return component_dict(self, **self._options())

    async def _run(self, inputs: Mapping[str, list[Any]]) -> dict[str, Any]:
        report = await LLMEvaluator._run(self, inputs)
        results: list[dict[str, Any]] = []
        for result in report["results"]:
            if result is None:
                results.append({**{name: [] for name in self.outputs}, "score": math.nan, "status": "error"})
            else:
                results.append({**result, "status": "evaluated"})
        scores = [result["score"] for result in results]
        valid = [score for score in scores if not math.isnan(score)]
        mean = sum(valid) / len(valid) if valid else math.nan
        return {"results": results, "meta": report["meta"], "score": mean, "individual_scores": scores}


@register_component(**_SCORED_OUTPUT_TYPES)
class ContextRelevanceEvaluator(_ScoredEvaluator):
    """Relevance of contexts to their question: 1 if the judge finds a statement that helps to answer it, else 0."""

    TASK = CONTEXT_RELEVANCE_TASK
    INPUTS = (("questions", list[str]), ("contexts", list[list[str]]))

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Evaluate `questions` and `contexts` (a list of texts each).

        Returns `results` with `relevant_statements`, `score` and `status` ("evaluated", "error"), and
        `individual_scores` (NaN for a failed row). `score` is the mean over the rows that did not fail.
        """
        return run_coroutine(self._run(inputs))

    async def run_async(self, **inputs: Any) -> dict[str, Any]:
        """Run like `run`, from async code."""
        return await self._run(inputs)

    def _read(self, answer: Answer) -> dict[str, Any]:
        return read_relevance(answer)


@register_component(**_SCORED_OUTPUT_TYPES)
class FaithfulnessEvaluator(_ScoredEvaluator):
    """Share of the statements of an answer that can be inferred from its contexts; 0 without statements."""

    TASK = FAITHFULNESS_TASK
    INPUTS = (("questions", list[str]), ("contexts", list[list[str]]), ("predicted_answers", list[str]))

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Evaluate `questions`, `contexts` (a list of texts each) and `predicted_answers`.

        Returns `results` with `statements`, `statement_scores`, `score` and `status` ("evaluated", "error"), and
        `individual_scores` (NaN for a failed row). `score` is the mean over the rows that did not fail.
        """
        return run_coroutine(self._run(inputs))

    async def run_async(self, **inputs: Any) -> dict[str, Any]:
        """Run like `run`, from async code."""
        return await self._run(inputs)

    def _read(self, answer: Answer) -> dict[str, Any]:
        return read_faithfulness(answer)


def make_default_generator() -> Any:
    """Return Haystack's generator for OpenAI in JSON mode.

    Return None if the environment names a judge, without Haystack, and without a key for OpenAI.
    """
    if component is None or first_variable("SPANWISE_JUDGE") or not first_variable("OPENAI_API_KEY"):
        return None
    from haystack.components.generators.chat import OpenAIChatGenerator

    return OpenAIChatGenerator(generation_kwargs={"response_format": {"type": "json_object"}})


def _is_input(pair: Any) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    name, kind = pair
    origin: Any = get_origin(kind)
    return isinstance(name, str) and name.isascii() and name.isidentifier() and origin is list


def _is_example(example: Any) -> bool:
    if not isinstance(example, dict) or example.keys() != {"inputs", "outputs"}:
        return False
    sides = example.values()
    return all(isinstance(side, dict) and all(isinstance(name, str) for name in side) for side in sides)


def _find_missing_keys(value: Any, expected: Sequence[str]) -> str | None:
    """Return a description of the missing keys, or None if the value is an object with all of them."""
    if not isinstance(value, Mapping):
        return f"it is no object but {value!r:.100}"
    lacking = [name for name in expected if name not in value]
    return f"it lacks {', '.join(map(repr, lacking))}; it has {', '.join(map(repr, value))}" if lacking else None


T = TypeVar("T")
R = TypeVar("R")


async def judge_rows(judge: Callable[[R], Awaitable[T]], rows: Sequence[R], *, at_once: int, bar: bool) -> list[T]:
    """Return the result of every row, in order, with at most `at_once` rows in progress. Raises the first failure."""
    gate = asyncio.Semaphore(at_once)
    with _progress_bar(len(rows), bar) as advance:

        async def judge_row(row: R) -> T:
            async with gate:
                judged = await judge(row)
            advance()
            return judged

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(judge_row(row)) for row in rows]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
    return [task.result() for task in tasks]


@contextmanager
def _progress_bar(total: int, is_shown: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr if it is a terminal or notebook, and yield a function that advances it."""
    from rich.progress import Progress

    from spanwise.collector.terminal_escaping import TerminalConsole

    console = TerminalConsole(stderr=True)
    visible = is_shown and (console.is_terminal or console.is_jupyter)
    with Progress(console=console, transient=True, disable=not visible) as progress:
        task = progress.add_task("judging", total=total)
        yield lambda: progress.advance(task)
