"""Judgement of one case, and the base class and registration of evaluators that call a judge."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform

import orjson
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanContext

from spanwise.collector.dialects import read_sdk_span
from spanwise.collector.records import JSON, Case, Target
from spanwise.evaluators.interface import (
    DiscardedJudgements,
    JudgementBuffer,
    Metric,
    Skip,
    Unjudged,
    compute_fingerprint,
    get_judge_context,
    make_untraced_target,
    register_builtin,
    to_documents,
    use_judge_context,
)
from spanwise.evaluators.interface.evaluator_spec import VALID
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, Ask, Message, ParseFailure
from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge
from spanwise.evaluators.judges.prompt_templates import MAX_CHARACTERS, PLACEHOLDERS, Prompt, neutralize, render_values
from spanwise.evaluators.judges.prompt_templates import prompt as load
from spanwise.tracer import Run, span
from spanwise.tracer import attribute_names as names
from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.process_runtime import get_runtime
from spanwise.tracer.propagation import make_detached_context
from spanwise.tracer.suggestions import did_you_mean
from spanwise.tracer.trace_capture import Captured, capture, has_collector

# Judgement of one case: its questions, their cost, its own trace, and the resulting feedback row.
#
# The trace does not inherit the application's context: current span, session, user, tags and baggage. If a
# `JudgementBuffer` is active, the runs go to the buffer, and the code that stores the feedback also stores the runs.
# Otherwise the runs are delivered like all spans of this process, provided that the process has a collector.

MAX_SAMPLES = 1_000  # maximum samples of one question in one repetition
_COST_FIELDS = ("calls", "input_tokens", "output_tokens", "cost")  # usage metadata that an `Unjudged` may carry
# fields of a feedback row that the judgement's trace also records
_TRACED_FIELDS = ("key", "score", "label", "comment", "error")


class Judgement:
    """Judgement of one case: `async with Judgement("faithfulness", judge, case) as judgement:`, then `ask` any number of
    times and return `row(…)`.

    A judgement is a separate trace of kind evaluator, with a run per question. The feedback refers to this trace by
    `judge_trace_id`. An `Unjudged` error raised inside the block gets the metadata collected so far.
    """

    def __init__(self, evaluator: str, judge: Judge, case: Case) -> None:
        self._evaluator = evaluator
        self._judge = judge
        self._case = case
        self._trace: JudgementTrace | None = None
        self._rows: list[dict[str, Any]] = []
        self._prompt_labels: dict[str, None] = {}  # distinct labels of the prompts used, in order
        self._unanswered: list[dict[str, Any]] = []  # usage of questions without an answer
        self.answers: list[tuple[Prompt, Answer]] = []
        self.trace_id: str | None = None
        self._left_out: dict[str, int] = {}  # characters by name of the value, maximum over all questions

    async def __aenter__(self) -> Self:
        self._trace = JudgementTrace(self._evaluator, self._case)
        self.trace_id = self._trace.id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        # a skip before the first answer leaves no judgement to keep
        spent = bool(self.answers) or not isinstance(error, Skip)
        rows = [{name: row[name] for name in _TRACED_FIELDS if row.get(name) is not None} for row in self._rows]
        outputs: JSON = rows[0] if len(rows) == 1 else rows or None
        if self._trace is not None and not self._trace.end(outputs, (kind, error, frames), kept=spent):
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
        bare_ratings: tuple[str, ...] = (),
    ) -> Answer:
        """Ask one question; see `Ask` for the parameters. Raises `ParseFailure` and other `Unjudged`, and `Skip` if a budget is exhausted."""
        for name, characters in prompt.left_out(values).items():
            self.leave_out(name, characters)
        ask = Ask(
            messages=prompt.messages(values),
            schema=schema,
            name=prompt.id,
            sample=self._first_sample + sample,
            logprobs=logprobs,
            values=tuple(values[name] for name in prompt.asked),
            bare_ratings=bare_ratings,
        )
        return await self._ask_judge(prompt, ask)

    async def ask_messages(
        self, prompt: Prompt, messages: Sequence[Message], schema: Mapping[str, JSON] | None = None
    ) -> Answer:
        """Ask one question whose messages are complete. `prompt` names it in feedback. Raises as `ask` does."""
        safe = tuple({"role": each["role"], "content": neutralize(each["content"])} for each in messages)
        return await self._ask_judge(
            prompt, Ask(messages=safe, schema=schema, name=prompt.id, sample=self._first_sample)
        )

    @property
    def _first_sample(self) -> int:
        """Return a number per repetition, so that cached answers are never shared between repetitions."""
        run = self._case.run
        repetition = run.repetition if run is not None else get_judge_context().repetition or 0
        return repetition * MAX_SAMPLES

    def leave_out(self, name: str, characters: int) -> None:
        """Record how many characters of a value the judge does not get. The comment and the metadata of the feedback
        report the number.
        """
        self._left_out[name] = max(characters, self._left_out.get(name, 0))

    async def _ask_judge(self, prompt: Prompt, ask: Ask) -> Answer:
        if self._trace is None:
            raise RuntimeError("ask() must be called inside `async with Judgement(…) as judgement`")
        self._prompt_labels[prompt.label] = None
        with self._trace.question(prompt, ask) as question:
            try:
                answer = await self._judge.ask(ask)
            except Unjudged as error:
                spent = {name: error.metadata[name] for name in _COST_FIELDS if error.metadata.get(name) is not None}
                error.metadata = {name: value for name, value in error.metadata.items() if name not in _COST_FIELDS}
                self._unanswered.append(spent)
                question.failed(error.text if isinstance(error, ParseFailure) else None, spent)
                raise
            question.answered(answer)
        self.answers.append((prompt, answer))
        return answer

    def row(self, score: Any = None, *, comment: str | None = None, **more: Any) -> dict[str, Any]:
        """Return a feedback row: a score, a comment, the metadata of the judge, and the id of the judgement's trace.

        `more` are fields of feedback (`key`, `label`, …). `metadata` among them is merged with that of the judge.
        """
        metadata = {**(more.pop("metadata", None) or {}), **self.metadata()}
        if self._left_out:
            missing = " and ".join(f"{count:,} characters of {name}" for name, count in self._left_out.items())
            comment = f"{comment or 'no reasons given'} [not shown to the judge: {missing}]"
        row = {"score": score, "comment": comment, "metadata": metadata, "judge_trace_id": self.trace_id, **more}
        self._rows.append(row)
        return row

    def metadata(self) -> dict[str, Any]:
        """Return model, endpoint, prompts with their hashes, tokens, cost, notes, number of cached answers, and
        characters left out per value.

        Tokens and cost cover the calls that were made. They are None if no reply reported them. The cost is also None
        if that of one call is unknown.
        """
        answers = [answer for _, answer in self.answers]
        spent = [*map(_measure_answer, answers), *self._unanswered]
        costs = [each.get("cost") for each in spent if each.get("calls") or each.get("cost") is not None]
        identity = self._judge.identity
        judge = {
            "model": identity.get("model"),
            "endpoint": identity.get("endpoint"),
            "prompts": sorted(self._prompt_labels),
            **{name: _sum_known(each.get(name) for each in spent) for name in _COST_FIELDS},
            "cost": None if None in costs else _sum_known(costs),
            "cached": sum(answer.cached for answer in answers),
            "left_out": self._left_out,
            "notes": list(dict.fromkeys(note for answer in answers for note in answer.notes)),
        }
        return {"judge": {name: value for name, value in judge.items() if value not in (None, [], {})}}


def _measure_answer(answer: Answer) -> dict[str, Any]:
    if answer.cached:
        return {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": 0.0}
    tokens = (answer.usage.input_tokens, answer.usage.output_tokens) if answer.usage is not None else (None, None)
    return {"calls": answer.calls, "input_tokens": tokens[0], "output_tokens": tokens[1], "cost": answer.cost}


def _sum_known(amounts: Iterable[Any]) -> Any:
    """Return the sum of the known amounts, or None if there are none."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


JUDGED_FIELDS = ("inputs", "outputs", "reference_outputs")
MAX_VALUE_BYTES = 4_000  # maximum bytes of each on the root run; the question runs hold complete values

ExitArguments: TypeAlias = tuple[type[BaseException] | None, BaseException | None, Any]


class JudgementTrace:
    """Trace of one judgement while it is running. A nested judgement becomes a part of the outer judgement's trace.

    `id` is None if nothing is recorded or stored.
    """

    def __init__(self, evaluator: str, case: Case) -> None:
        known = get_judge_context()
        self._buffer: JudgementBuffer | None = known.judgements
        self._stack = ExitStack()
        self._captured: Captured | None = None
        self._run: Run | None = None
        self.id: str | None = None  # 32 hex digits
        if get_runtime().off or isinstance(self._buffer, DiscardedJudgements):
            return
        if known.inside is not None:
            self.id = known.inside.id
            self._run = self._stack.enter_context(span(evaluator, kind="evaluator", inputs=_select_judged_values(case)))
            return
        before = attach(make_detached_context())
        self._stack.callback(detach, before)
        target = known.target or (Target(trace_id=case.trace.trace_id) if case.trace is not None else None)
        metadata = {"evaluator": known.evaluator or evaluator, "version": known.version}
        if target is not None and target != make_untraced_target():
            metadata["judged_trace"] = target.trace_id
            metadata["judged_span"] = target.span_id
            metadata["judged_session"] = target.session_id
        captured = capture(evaluator, kind="evaluator", inputs=_select_judged_values(case))
        self._captured = self._stack.enter_context(captured)
        self._run, self.id = self._captured.run, self._captured.trace_id
        self._run.set_metadata({name: value for name, value in metadata.items() if value is not None})
        _link_to_judged(self._run, target, case)
        self._stack.enter_context(use_judge_context(inside=self))

    @contextmanager
    def question(self, prompt: Prompt, ask: Ask) -> Iterator[_QuestionRun]:
        """Record one question as a run that lasts for the block. An exception raised in the block becomes the run's
        error.
        """
        if self._run is None:
            yield _QuestionRun(None)
            return
        with span(prompt.id, kind="llm", inputs={"messages": list(ask.messages)}) as run:
            run.set_metadata({"prompt": prompt.label, **({"sample": ask.sample} if ask.sample else {})})
            yield _QuestionRun(run)

    def end(self, outputs: JSON, failed: ExitArguments, *, kept: bool) -> bool:
        """End the trace, and deliver it if `kept`. Return whether it was delivered."""
        if self._run is None:
            return False
        if outputs is not None:
            self._run.set_outputs(outputs)
        self._stack.__exit__(*failed)
        return kept and (self._captured is None or self._deliver(self._captured))

    def _deliver(self, captured: Captured) -> bool:
        if self._buffer is None:
            if not has_collector():  # without a collector, the judged texts would stay in the spool
                return False
            captured.deliver()
            return True
        runs = [read_sdk_span(ended) for ended in captured.spans(0)[0]]
        self._buffer.add(runs)
        return any(run.parent_id is None for run in runs)


@contextmanager
def group_judgements(evaluator: str, case: Case) -> Iterator[None]:
    """Group the judgements inside a block into one trace, such as those of a panel's members."""
    traced = JudgementTrace(evaluator, case)
    try:
        yield
    except BaseException as error:
        traced.end(None, (type(error), error, error.__traceback__), kept=not isinstance(error, Skip))
        raise
    traced.end(None, (None, None, None), kept=True)


class _QuestionRun:
    """Run that records one question. Without a run (`run` is None), its methods do nothing."""

    def __init__(self, run: Run | None) -> None:
        self._run = run

    def answered(self, answer: Answer) -> None:
        """Record an answer. A cached answer has no usage, as the original call already counted it."""
        if self._run is None:
            return
        self._run.set_outputs(answer.text)
        self._run.set_model(answer.model)
        metadata: dict[str, Any] = {"cached": True} if answer.cached else {}
        if answer.notes:
            metadata["notes"] = list(answer.notes)
        if metadata:
            self._run.set_metadata(metadata)
        if not answer.cached and answer.usage is not None:
            self._spent(answer.usage.input_tokens, answer.usage.output_tokens, answer.cost)

    def failed(self, reply: str | None, spent: Mapping[str, Any]) -> None:
        """Record a question without a usable answer: the invalid reply, if there was one, and the usage."""
        if self._run is None:
            return
        if reply is not None:
            self._run.set_outputs(reply)
        self._spent(spent.get("input_tokens"), spent.get("output_tokens"), spent.get("cost"))

    def _spent(self, input_tokens: int | None, output_tokens: int | None, cost: float | None) -> None:
        """Record tokens and cost. If the cost is unknown, mark the run as unpriced, so that no price is derived from the
        model's name.
        """
        if self._run is not None:
            self._run.set_usage(input_tokens, output_tokens, cost=cost)
            if cost is None:
                self._run.set_attribute(names.UNPRICED, True)


def _select_judged_values(case: Case) -> Mapping[str, JSON]:
    """Return the judged values, each truncated to `MAX_VALUE_BYTES`, which is enough for lists and pages."""
    values = ((name, getattr(case, name)) for name in JUDGED_FIELDS)
    return {name: orjson.loads(to_json(value, MAX_VALUE_BYTES)) for name, value in values if value is not None}


def _link_to_judged(run: Run, target: Target | None, case: Case) -> None:
    """Link the run to the judged span, else to the root of the judged trace if it is known."""
    root = case.run
    trace_id = target.trace_id if target is not None else None
    if trace_id is None and root is not None:
        trace_id = root.trace_id
    span_id = (target.span_id if target is not None else None) or (root.span_id if root is not None else None)
    if trace_id is not None and span_id is not None:
        run.span.add_link(SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True))


T = TypeVar("T")


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls concurrently and return the results in order. If one fails, cancel the others, so that no unused
    answer is paid for.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


# Base class and registration of evaluators that call a judge: prompt overrides, judge, values and version.

C = TypeVar("C", bound=type)

# Parameters that `_changed_parameters` leaves out, because `_settings_identity` of their class contains them or because
# they are only names.
_IDENTITY_PARAMETERS = frozenset(
    "agent assessment_name embed examples global_guidelines higher_is_better judge key logprobs map max_characters "
    "max_statements maximum minimum model prompt questions scale similarity tools weights".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEvaluator:
    """Base class of evaluators that call a judge. Subclasses are frozen dataclasses.

    - `judge` is a `Judge`, a model's name, a dict, a function, or None for the judge of the environment.
    - `prompt` replaces the prompt `PROMPT`. It is a text, the path of a text file, or a dict of these by prompt id. A
      dict is for evaluators with several prompts (`FURTHER`).
    - `max_characters` limits the characters of a case in one question.

    A subclass with its own `__post_init__` must call `JudgeEvaluator.__post_init__(self)` first.
    """

    PROMPT: ClassVar[str] = ""
    FURTHER: ClassVar[tuple[str, ...]] = ()  # ids of additional prompts, which `self._more` holds by id
    NAMES: ClassVar[tuple[str, ...]] = PLACEHOLDERS
    UNCUT: ClassVar[tuple[str, ...]] = ()  # values that must be complete: a case with a longer one is skipped
    OPTIONAL: ClassVar[Mapping[str, str]] = {}  # fields that a case may lack, and the texts that replace them

    judge: Any = None
    prompt: str | Path | Mapping[str, Any] | None = None
    max_characters: int = MAX_CHARACTERS
    _judge: Judge = field(init=False, repr=False, compare=False)
    _prompt: Prompt = field(init=False, repr=False, compare=False)
    _more: Mapping[str, Prompt] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise ValueError(f"max_characters must be an integer >= 1, got {self.max_characters!r}")
        overrides = self._own_prompts()
        object.__setattr__(self, "_judge", make_judge(self.judge))
        object.__setattr__(
            self, "_prompt", load(self.PROMPT, overrides, self.NAMES, bound=self.max_characters, uncut=self.UNCUT)
        )
        more = {id: load(id, overrides, self.NAMES, bound=self.max_characters) for id in self.FURTHER}
        object.__setattr__(self, "_more", more)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Return all prompts that the evaluator may use, for `spanwise evaluators show` and the version."""
        return (self._prompt, *self._more.values())

    @property
    def judges(self) -> tuple[Judge, ...]:
        """Return all judges that the evaluator may call."""
        return (self._judge,)

    @property
    def where(self) -> tuple[str, ...]:
        """Return descriptions of the endpoints or functions that receive the prompts."""
        return tuple(dict.fromkeys(judge.where for judge in self.judges))

    def ready(self) -> None:
        """Raise `NoJudge` if one of the judges cannot be called."""
        for judge in self.judges:
            judge.check()

    @property
    def version(self) -> str:
        """Return 8 hex digits of the hash of prompts, judge and parameters. They are the version of the feedback."""
        prompts = [[prompt.id, prompt.hash] for prompt in self.prompts]
        identity = [prompts, self.max_characters, dict(self._judge.identity), *self._settings_identity()]
        if changed := self._changed_parameters():
            identity.append(changed)
        return hashlib.sha256(orjson.dumps(identity)).hexdigest()[:8]

    def exported(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters as they are stored and shown: prompts as texts, the judge without its key."""
        exported = dict(parameters)
        if exported.get("prompt") is not None:
            exported["prompt"] = self._plain_prompt(exported["prompt"])
        if exported.get("judge") is not None:
            exported["judge"] = export_judge(self._judge, exported["judge"])
        return exported

    def _values(
        self, case: Case, own: Mapping[str, str] = MappingProxyType({}), prompt: Prompt | None = None
    ) -> dict[str, str]:
        """Return the text for each placeholder of a prompt: one of `own`, else the field of the case. Raises `Skip` for a
        missing field.
        """
        names = [name for name in (prompt or self._prompt).asked if name not in own]
        return {**render_values(case, names, optional=self.OPTIONAL), **own}

    def _changed_parameters(self) -> dict[str, str]:
        """Return fingerprints of the parameters that differ from their defaults and are not in
        `_IDENTITY_PARAMETERS`.
        """
        values = {
            parameter.name: getattr(self, parameter.name)
            for parameter in fields(self)
            if parameter.init and parameter.name not in _IDENTITY_PARAMETERS
        }
        defaults = {parameter.name: parameter.default for parameter in fields(self)}
        return {name: compute_fingerprint(value) for name, value in values.items() if value != defaults[name]}

    def _settings_identity(self) -> list[Any]:
        """Return the settings of a subclass that determine the version, in addition to prompts, length and judge."""
        return []

    def _own_prompts(self) -> Mapping[str, Any]:
        """Return the prompt overrides by id. Raises `ValueError` for an unknown id."""
        if not isinstance(self.prompt, Mapping):
            return {} if self.prompt is None else {self.PROMPT: self.prompt}
        known = (self.PROMPT, *self.FURTHER)
        for id in self.prompt:
            if id not in known:
                raise ValueError(f"unknown prompt {id!r}; expected one of: {', '.join(known)}{did_you_mean(id, known)}")
        return self.prompt

    def _plain_prompt(self, given: Any) -> Any:
        """Return the parameter `prompt` with texts in place of paths. Subclasses may override it."""
        if isinstance(given, Mapping):
            return {prompt.id: prompt.text for prompt in self.prompts if prompt.id in given}
        return self._prompt.text if isinstance(given, Path) else given


def export_judge(judge: Judge, given: Any) -> Any:
    """Return a judge as plain values without its key. A judge that cannot be serialized (a function, a script) is
    returned unchanged.
    """
    return given if isinstance(given, str) or judge.backend is not None else judge.to_dict()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def register_judge(
    id: str,
    *,
    metrics: tuple[Metric, ...] | None = None,
    standards: tuple[str, ...] = (VALID,),
    canonical: str = "by hand",
    **facts: Any,
) -> Callable[[C], C]:
    """Make a subclass of `JudgeEvaluator` a frozen dataclass and register it as an evaluator.

    `facts` are fields of `EvaluatorSpec`. By default there is one metric, from 0 to 1 with the threshold 0.5. The
    parameters of `__call__` are the fields that a case must have or may have, see `use_arguments`.
    """
    metrics = metrics or (Metric(id, threshold=0.5, primary=True),)
    register = register_builtin(
        id, metrics=metrics, standards=standards, canonical=canonical, judge=True, kind="model", **facts
    )

    def decorate(cls: C) -> C:
        cls.__call__ = use_arguments(cls.__call__)  # type: ignore[method-assign]
        judge_class: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        registered: C = register(judge_class)
        return registered

    return decorate


def use_arguments(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Decorate `__call__` so that the fields of its case are the arguments, which `map` and `prepare_data` determine.

    `__call__` then needs its parameters only to declare the fields, and works on the case. A declared field without an
    argument has the default of its parameter, so that the judge does not see a value that `map` replaces.
    """
    parameters = dict(list(inspect.signature(call).parameters.items())[1:])  # without self
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }

    @functools.wraps(call)
    async def wrapper(self: JudgeEvaluator, *positional: Any, **named: Any) -> Any:
        arguments = {**dict(zip(parameters, positional, strict=False)), **named}
        values = {**defaults, **arguments}
        fields = {name: value for name, value in values.items() if name in Case.__dataclass_fields__}
        if fields.get("documents") is not None:
            fields["documents"] = to_documents(fields["documents"])
        return await call(self, **{**arguments, "case": replace(arguments["case"], **fields)})

    return wrapper
