"""Scoring of cases: the view of a trace, session or example, and the evaluators applied to it.

An exception of an evaluator becomes feedback with the outcome "error", so it costs no other evaluator's feedback.
Exceptions that end the whole run (see `is_interruption`) are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import fields as fields_of
from dataclasses import replace
from itertools import count
from os import PathLike
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, overload

from spanwise.collector import connect
from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Case, Document, Example, Feedback, Run, Target, Trace
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.datasets import to_messages, unwrap_single_value, view_example, view_outputs
from spanwise.evaluators.interface import (
    DATABRICKS_COLUMNS,
    AwaitFunction,
    Batch,
    Evaluator,
    as_evaluator,
    claim_keys,
    is_interruption,
    list_declared_keys,
    make_loop_waiter,
    make_untraced_target,
    run_coroutine,
    run_in_thread,
    to_documents,
    to_plain,
)
from spanwise.evaluators.scoring.composite_evaluator import attach_feedback, get_parts
from spanwise.tracer import attribute_names as names

# Case builder: the view of a trace, session, example or plain values that evaluators get.

RETRIEVAL_KINDS = frozenset({"retriever", "reranker"})
_CASE_FIELDS = frozenset(field.name for field in fields_of(Case))
_NORMALIZED_FIELDS = ("inputs", "outputs", "reference_outputs", "conditions", "guidelines", "history", "metadata")
_DOCUMENT_FIELDS = frozenset({"documents", "expected_documents"})


def make_case(
    target: Trace | Iterable[Trace] | None, example: Example | None = None, kind: str = "kv", **fields: Any
) -> Case:
    """Return the case that evaluators score. `target` is a finished trace, the traces of a session in any order, or None
    for plain values alone.

    - `inputs`, `reference_outputs` and `history` come from the example, as datasets of its `kind` show them
      ("kv": unchanged, "llm" and "chat": as texts). Without an example, `inputs` are those of the root run.
    - `outputs` are those of the root run, as `kind` shows them.
    - `documents` are the retrieved documents: `()` if a retriever or reranker ran and found nothing. If none
      ran, they are the example's documents, else None.
    - `expected_documents`, `conditions` and `guidelines` come from the example.
    - `metadata` merges that of the root run and that of the example. The example's value wins.
    - For a session, `trace`, `inputs`, `outputs` and `documents` are those of the latest turn. `history` holds
      the messages of all turns.
    - For a run that was retried, only the final attempt counts. `trace` leaves failed attempts out.
    - `fields` override these values if they are not None. They are fields of `Case` or Databricks' column names
      (`request`, `response`, `expected_response`, …). Documents may be texts or dicts.

    Raises `TypeError` for an unknown field, for a field given twice, and for invalid documents. Raises
    `ValueError` for an empty session.
    """
    if target is None:
        case_fields = _trace_fields(None, example, kind)
    elif isinstance(target, Trace):
        case_fields = _trace_fields(final_attempt(target), example, kind)
    else:
        case_fields = _session_fields(target, example, kind)
    case_fields.update(_explicit_fields(fields))
    return Case(example=example, **case_fields)


def normalize_case(case: Case) -> Case:
    """Convert the values of a case to plain values, as `evaluate()` passes them to evaluators. The result shares no
    mutable objects with the caller.
    """
    values = ((name, getattr(case, name)) for name in _NORMALIZED_FIELDS)
    changed = {name: plain for name, value in values if (plain := to_plain(value)) is not value}
    if "outputs" in changed and case.native_outputs is None:
        changed["native_outputs"] = case.outputs
    return replace(case, **changed) if changed else case


def retrieved_documents(trace: Trace) -> tuple[Document, ...] | None:
    """Return the retrieved documents: `()` if a retrieval ran and found nothing, None if none ran."""
    documents = trace.documents
    if documents:
        return documents
    return () if any(run.kind in RETRIEVAL_KINDS for run in trace.runs) else None


def final_attempt(trace: Trace) -> Trace:
    """Return the trace without its failed attempts, which `evaluate(…, retries=…)` keeps below its root run."""
    if names.ATTEMPT not in trace.root.attributes:
        return trace
    children: dict[str | None, list[Run]] = {}
    for run in trace.runs:
        children.setdefault(run.parent_id, []).append(run)
    left_out: set[str] = set()
    waiting = [trace.root]  # visits the runs that are connected to the root, each parent before its children
    while waiting:
        run = waiting.pop()
        if run is not trace.root and (names.ATTEMPT in run.attributes or run.parent_id in left_out):
            left_out.add(run.span_id)
        waiting += children.pop(run.span_id, [])
    return replace(trace, runs=tuple(run for run in trace.runs if run.span_id not in left_out))


def _trace_fields(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    fields = _input_fields(trace, example, kind)
    if trace is not None:
        fields["trace"] = trace
        fields["outputs"] = view_outputs(trace.root.outputs, kind)
    if example is not None:
        fields["expected_documents"] = example.expected_documents
        fields["conditions"] = example.conditions
        fields["guidelines"] = example.guidelines
    documents = retrieved_documents(trace) if trace is not None else None
    fields["documents"] = example.documents if documents is None and example is not None else documents
    metadata = trace.root.metadata if trace is not None else {}
    if example is not None and example.metadata:
        metadata = {**metadata, **example.metadata} if metadata else example.metadata
    fields["metadata"] = metadata
    return fields


def _input_fields(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    """Return `inputs`, and for an example also `reference_outputs` and `history`. Without an example, the root run
    supplies them.
    """
    if example is not None:
        return view_example(example, kind)
    if trace is None or kind == "kv":
        return {"inputs": trace.root.inputs if trace is not None else None}
    return view_example(Example(inputs=trace.root.inputs, id=trace.trace_id), kind)


def _session_fields(traces: Iterable[Trace], example: Example | None, kind: str) -> dict[str, Any]:
    listed: list[Any] = list(traces) if isinstance(traces, Iterable) else [traces]
    for member in listed:
        if not isinstance(member, Trace):
            raise TypeError(f"a case is built from a trace, the traces of a session, or None, got {member!r:.200}")
    turns = sorted(map(final_attempt, listed), key=lambda trace: trace.root.start_ns)
    if not turns:
        raise ValueError("a session has at least one trace")
    inputs = _trace_fields(turns[-1], None, kind)["inputs"]
    history = [message for turn in turns for message in _turn_messages(turn.root)]
    return {**_trace_fields(turns[-1], example, kind), "inputs": inputs, "history": history}


def _turn_messages(root: Run) -> list[JSON]:
    """Return the messages of one turn: the user's, and the assistant's if it answered."""
    conversation = to_messages(unwrap_single_value(root.inputs))
    question = conversation[-1].get("content") if conversation else unwrap_single_value(root.inputs)
    answer = view_outputs(root.outputs, "chat")
    messages = (("user", question), ("assistant", answer))
    return [{"role": role, "content": content} for role, content in messages if content is not None]


def _explicit_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None. Raises `TypeError` for an unknown field, and for one that is given twice."""
    explicit: dict[str, Any] = {}
    for key, value in fields.items():
        name = DATABRICKS_COLUMNS.get(key, key)
        if name not in _CASE_FIELDS:
            raise TypeError(f"unknown case field {name!r}; expected one of: {', '.join(sorted(_CASE_FIELDS))}")
        if name in explicit:
            raise TypeError(f"{name!r} is given twice: {key!r} is Databricks' name of it")
        if value is not None:
            explicit[name] = to_documents(value) if name in _DOCUMENT_FIELDS else value
    return explicit


MAX_TURNS = 1_000  # maximum traces of a session; of a longer session, the latest are used
PAGE_TRACES = 100


def load_turns(session: str, where: TraceStore | str | PathLike[str] | None, project: str | None = None) -> list[Trace]:
    """Return the traces of a session, oldest first, of one project or of all.

    Only the last trace has all of its runs, as evaluators need it in full. The others have only their root run.
    Raises `NotFound` for a session without traces.
    """
    if where is None or isinstance(where, str | PathLike):
        with closing(connect(where)) as store:
            return load_turns(session, store, project)
    turns: list[Trace] = []
    cursor: str | None = None
    while len(turns) < MAX_TURNS:
        page = where.traces(session=session, project=project, limit=PAGE_TRACES, cursor=cursor)
        traces = where.many([summary.trace_id for summary in page])
        turns += [
            trace if not turns and trace is traces[0] else replace(trace, runs=(trace.root,), feedback=())
            for trace in traces
        ]
        if (cursor := page.next) is None:
            break
    if not turns:
        raise NotFound(f"session {session!r} has no traces in {where.where}")
    return turns[::-1]


# Evaluators applied to cases: `score`, batches for models, threads and the event loop.

StoreLocation: TypeAlias = "TraceStore | str | PathLike[str] | None"


class ScoreResult(list[Feedback]):
    """List of the feedback of one evaluator on one case or set, with access by key: `result["pii"]`."""

    def __init__(self, feedback: Iterable[Feedback] = (), primary: str | None = None) -> None:
        super().__init__(feedback)
        self._primary = primary  # key of the evaluator's primary metric

    @overload
    def __getitem__(self, at: SupportsIndex) -> Feedback: ...

    @overload
    def __getitem__(self, at: slice) -> list[Feedback]: ...

    @overload
    def __getitem__(self, at: str) -> Feedback: ...

    def __getitem__(self, at: SupportsIndex | slice | str) -> Feedback | list[Feedback]:
        """Return the feedback at an index or a slice, or the first one with a key. Raises `KeyError` for an unknown
        key.
        """
        if not isinstance(at, str):
            return super().__getitem__(at)
        for feedback in self:
            if feedback.key == at:
                return feedback
        raise KeyError(f"no feedback has the key {at!r}; expected one of: {self._keys()}")

    @property
    def score(self) -> float | bool:
        """Return the score of the primary key, or of the only feedback.

        Raises `ValueError` if there is no such feedback, or if it is an error, a skip or a label. The message gives
        the reason.
        """
        candidates = self if len(self) == 1 else [feedback for feedback in self if feedback.key == self._primary]
        if len(candidates) != 1:
            raise ValueError(
                f"there is no single score among {len(self)} feedbacks; choose one by key or index: {self._keys()}"
            )
        feedback = candidates[0]
        if feedback.score is not None:
            return feedback.score
        if feedback.outcome == "score":
            raise ValueError(f"{feedback.key!r} has the label {feedback.label!r} and no score")
        raise ValueError(f"{feedback.key!r} has no score: {feedback.outcome}: {feedback.error or feedback.comment}")

    def _keys(self) -> str:
        return ", ".join(dict.fromkeys(feedback.key for feedback in self)) or "none"


async def ascore(
    evaluator: Any,
    on: Trace | Case | Sequence[Case] | None = None,
    *,
    example: Example | None = None,
    session: str | None = None,
    store: StoreLocation = None,
    **fields: Any,
) -> ScoreResult:
    """Return the feedback of one evaluator like `score`, from async code."""
    judge = as_evaluator(evaluator)
    primary = next((metric.key for metric in judge.metrics if metric.primary), None)
    return ScoreResult(await _score(judge, on, example, session, store, fields), primary)


async def _score(
    judge: Evaluator,
    on: Trace | Case | Sequence[Case] | None,
    example: Example | None,
    session: str | None,
    store: StoreLocation,
    fields: dict[str, Any],
) -> list[Feedback]:
    if session is not None:
        return await _score_session(judge, on, session, store, example, fields)
    if store is not None:
        raise TypeError("store= is only valid with session=: score(…, session=id, store=…)")
    if judge.summary:
        return await judge.evaluate_set(_input_cases(on, fields), make_untraced_target())
    case = _input_case(on, example, fields)
    target = Target(trace_id=case.trace.trace_id) if case.trace else make_untraced_target()
    if isinstance(on, Trace) and "outputs" not in fields and (skipped := skip_failed(judge, case, target)):
        return skipped
    return (await judge.evaluate_batch([case], [target]))[0]


def score(
    evaluator: Any,
    on: Trace | Case | Sequence[Case] | None = None,
    *,
    example: Example | None = None,
    session: str | None = None,
    store: StoreLocation = None,
    **fields: Any,
) -> ScoreResult:
    """Return the feedback of one evaluator on a trace, a case, or values: `score(get_evaluator("exact"), outputs="a",
    reference_outputs="b")`.

    `fields` are those of `Case`, or Databricks' columns (`request`, `response`, …). They override those of a
    trace. The evaluator gets plain values, as in `evaluate()`: a dict for a model, Python numbers for numpy's.
    A set-level evaluator takes a list of cases, or one list per field.

    With the id of a `session`, the evaluator gets the last turn, and all turns as `history`. The feedback is about
    the session. The session is read from `store` (None: see `spanwise.collector.connect`). Nothing is stored: call
    `store.add_feedback(…)` for that.

    The result is a list of feedback. `result.score` is the score of the primary key or of the only feedback;
    `result["pii"]` is the feedback with a key.

    An exception of the evaluator is not raised: it becomes feedback with the outcome "error". Raises
    `TypeError` if `evaluator` is not an evaluator, and for unknown fields. Raises `ValueError` for lists of
    unequal length, and `NotFound` for a session without traces.
    """
    return run_coroutine(ascore(evaluator, on, example=example, session=session, store=store, **fields))


async def _score_session(
    judge: Evaluator, on: Any, session: str, store: StoreLocation, example: Example | None, fields: dict[str, Any]
) -> list[Feedback]:
    if on is not None or judge.summary:
        scope = f"set-level evaluator {judge.key!r}" if judge.summary else "a trace or a case"
        raise TypeError(f"session={session!r} cannot be combined with {scope}")
    turns = await asyncio.to_thread(load_turns, session, store)
    target = Target(session_id=session)
    return (await judge.evaluate_batch([normalize_case(make_case(turns, example, **fields))], [target]))[0]


def _input_case(on: Any, example: Example | None, fields: dict[str, Any]) -> Case:
    if isinstance(on, Case):
        return normalize_case(on)
    if on is None or isinstance(on, Trace):
        return normalize_case(make_case(on, example, **fields))
    raise TypeError(f"expected a trace, a case or field values to score, got {on!r:.200}")


def _input_cases(on: Any, columns: dict[str, Any]) -> list[Case]:
    if on is not None:
        return [_input_case(member, None, {}) for member in ([on] if isinstance(on, Trace | Case) else on)]
    listed: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if column is None:
            continue
        # a single value, such as a text, is no list, and a set has no order
        if isinstance(column, str | bytes | Mapping | Set) or not isinstance(column, Iterable):
            raise TypeError(f"a set-level evaluator needs a list per field, got {name}={column!r:.200}")
        listed[name] = list(column)
    lengths = {name: len(column) for name, column in listed.items()}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"the lists of a set must have the same length, got {counted}")
    rows = zip(*listed.values(), strict=True)
    return [_input_case(None, None, dict(zip(listed, row, strict=True))) for row in rows]


_FAILURE_FIELDS = frozenset(
    {"run", "root_run", "trace", "case"}
)  # evaluators that need one of these can judge a failed run


class CaseScorer:
    """Scorer that applies evaluators of single cases, grouped by the thread or event loop that runs them.

    Plain evaluators (`Evaluator.plain`) run on the caller's thread or loop, one after the other. All others run
    concurrently, except composites, which run last. The argument `only` of the methods restricts a call to these evaluators.
    """

    def __init__(self, evaluators: Sequence[Evaluator], batch_size: int = 32) -> None:
        self._batchers = {
            judge.key: CaseBatcher(judge, batch_size) for judge in evaluators if isinstance(judge.function, Batch)
        }
        self._composites = tuple(judge for judge in evaluators if get_parts(judge))
        self.has_composites = bool(self._composites)
        self._plain = tuple(judge for judge in evaluators if judge.plain and not get_parts(judge))
        self._others = tuple(judge for judge in evaluators if not judge.plain)
        self.has_concurrent = bool(self._others)
        self._owners = list_declared_keys(evaluators)
        self._returned: set[str] = set()  # keys of plain evaluators that returned at least once
        self._looked = {judge.key: count(1) for judge in evaluators if judge.max_cases is not None}

    def score_on_thread(
        self, case: Case, target: Target, wait: AwaitFunction, only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the plain evaluators on this thread. If an evaluator returns an awaitable, `wait` blocks until its
        result is there.
        """
        feedback: list[Feedback] = []
        for evaluator in _select_evaluators(self._plain, only):
            left_out = self._left_out(evaluator, case, target)
            results = left_out or evaluator.evaluate_here(case, target, wait)
            feedback += claim_keys(self._owners, evaluator, results, target)
        return feedback

    async def score_on_loop(
        self, case: Case, target: Target, only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the plain evaluators on the event loop. Slow ones move to threads."""
        feedback: list[Feedback] = []
        for evaluator in _select_evaluators(self._plain, only):
            results = self._left_out(evaluator, case, target) or await self._try_on_thread(evaluator, case, target)
            feedback += claim_keys(self._owners, evaluator, results, target)
        return feedback

    async def score_concurrently(
        self, case: Case, target: Target, only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the evaluators that are not plain, concurrently."""

        async def score_case(evaluator: Evaluator) -> list[Feedback]:
            if left_out := self._left_out(evaluator, case, target):
                return left_out
            batcher = self._batchers.get(evaluator.key)
            return await (evaluator.evaluate(case, target) if batcher is None else batcher.score(case, target))

        evaluators = _select_evaluators(self._others, only)
        outcomes = await asyncio.gather(*map(score_case, evaluators), return_exceptions=True)
        feedback: list[Feedback] = []
        for evaluator, outcome in zip(evaluators, outcomes, strict=True):
            feedback += claim_keys(self._owners, evaluator, evaluator.settled(outcome, target), target)
        return feedback

    def score_composites(
        self, case: Case, target: Target, feedback: Sequence[Feedback], only: Sequence[Evaluator] | None = None
    ) -> list[Feedback]:
        """Score with the composites, in order, after all other evaluators gave `feedback`."""
        results: list[Feedback] = []
        for evaluator in _select_evaluators(self._composites, only):
            known = attach_feedback(case, (*feedback, *results))
            results += claim_keys(self._owners, evaluator, evaluator.evaluate_here(known, target), target)
        return results

    async def _try_on_thread(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback]:
        """Run an evaluator on a thread until it has returned once, then on the event loop. If it hung on the event loop,
        it would block the loop and Ctrl-C.
        """
        if evaluator.key in self._returned:
            return await evaluator.evaluate(case, target)
        wait = make_loop_waiter(asyncio.get_running_loop())
        feedback: list[Feedback] = await run_in_thread(lambda: evaluator.evaluate_here(case, target, wait))
        self._returned.add(evaluator.key)
        return feedback

    def _left_out(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback] | None:
        """Return skips if the task failed or the evaluator has scored its maximum number of cases, else None."""
        if failed := skip_failed(evaluator, case, target):
            return failed
        if evaluator.max_cases is None or next(self._looked[evaluator.key]) <= evaluator.max_cases:
            return None
        return evaluator.make.skip(target, f"it has looked at {evaluator.max_cases} cases (max_dataset_rows)")


def skip_failed(evaluator: Evaluator, case: Case, target: Target) -> list[Feedback] | None:
    """Return skips if the task failed, or was cancelled without outputs, and the evaluator judges its outputs."""
    run = case.run
    cancelled = run is not None and run.status == "cancelled" and run.outputs is None
    if run is None or not (cancelled or run.status == "error"):
        return None
    if _FAILURE_FIELDS & set(evaluator.needs) or "outputs" in evaluator.uses:
        return None
    reason = "the run was cancelled before it returned" if cancelled else f"the task failed: {run.error or 'error'}"
    return evaluator.make.skip(target, reason)


def _select_evaluators(evaluators: Sequence[Evaluator], only: Sequence[Evaluator] | None) -> Sequence[Evaluator]:
    if only is None:
        return evaluators
    keys = {judge.key for judge in only}
    return [judge for judge in evaluators if judge.key in keys]


IDLE_S = 0.02  # seconds that a batch waits for more cases

FeedbackFuture: TypeAlias = "asyncio.Future[list[Feedback]]"


class WaitingCase(NamedTuple):
    """Case that waits for its batch, with the future of its feedback."""

    case: Case
    target: Target
    outcome: FeedbackFuture


class CaseBatcher:
    """Batches of cases for one evaluator: up to `size` cases, or those that arrive within `IDLE_S` seconds."""

    def __init__(self, evaluator: Evaluator, size: int) -> None:
        self._evaluator = evaluator
        self._size = size
        self._waiting: list[WaitingCase] = []
        self._batch_lock = asyncio.Lock()  # two concurrent batches would only share the model's threads
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def score(self, case: Case, target: Target) -> list[Feedback]:
        """Return the feedback on one case after its batch was scored."""
        loop = asyncio.get_running_loop()
        outcome: FeedbackFuture = loop.create_future()
        self._waiting.append(WaitingCase(case, target, outcome))
        if len(self._waiting) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(IDLE_S, self._start)
        return await outcome

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush())
        self._running.add(task)
        task.add_done_callback(self._end_batch)

    async def _flush(self) -> None:
        async with self._batch_lock:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            if batch:
                await self._score_batch(batch)

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        """Start the next batch if cases wait, also after a batch that was cancelled."""
        self._running.discard(task)
        self._waiting = [waiting for waiting in self._waiting if not waiting.outcome.done()]
        if self._waiting and not self._running and self._timer is None:
            self._start()

    async def _score_batch(self, batch: Sequence[WaitingCase]) -> None:
        """Set the outcome of every case of a batch, also if scoring fails. Otherwise the callers would wait forever."""
        cases, targets, outcomes = zip(*batch, strict=True)
        try:
            feedback = await self._evaluator.evaluate_batch(cases, targets)
        except BaseException as error:
            for outcome in outcomes:
                if not outcome.done():
                    outcome.cancel(f"the batch was not scored: {type(error).__name__}")
            if is_interruption(error):
                raise
            return
        for outcome, of_case in zip(outcomes, feedback, strict=True):
            if not outcome.done():
                outcome.set_result(of_case)
