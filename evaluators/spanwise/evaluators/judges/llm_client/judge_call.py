"""Judge, and a call of it: cache, single flight, budget, rate limit, attempts, parsing; dry run.

All attempts share one deadline. An unreadable reply leads to one follow-up question. After the call, the actual cost
is settled and the answer is cached. All of this runs on the judges' loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Skip, Unjudged, compute_retry_delay, is_task_cancelled, is_transient
from spanwise.evaluators.judges.llm_client.answer_cache import (
    AnswerCache,
    BatchedCacheAccess,
    compute_cache_key,
    get_cache_path,
)
from spanwise.evaluators.judges.llm_client.chat_completions import (
    MAX_REPLY_LENGTH,
    Answer,
    Ask,
    Completion,
    CutOff,
    ParsedReply,
    ParseFailure,
    parse_reply,
)
from spanwise.evaluators.judges.llm_client.function_backend import make_backend
from spanwise.evaluators.judges.llm_client.judge_event_loop import get_loop_singleton, run_on_judge_loop
from spanwise.evaluators.judges.llm_client.judge_rate_limiter import get_limiter
from spanwise.evaluators.judges.llm_client.judge_settings import (
    Amount,
    AskedModel,
    JudgeSettings,
    check_text,
    compute_cost,
    compute_max_cost,
    count_question_bytes,
    get_ledgers,
)
from spanwise.evaluators.judges.llm_client.openai_backend import (
    OpenAIEndpoint,
    ReplyTimeout,
    describe_call_error,
    is_connection_failure,
    is_possibly_billed,
    is_rate_limited,
    load_client,
)
from spanwise.tracer.suggestions import did_you_mean

# Dry run of judges: counts and prices questions, and answers them with sample values of their schema.
#
# An estimate takes two dry runs, because further questions may depend on an answer: one always picks the first label
# of an enumeration, the other the last.

BYTES_PER_TOKEN = 4  # approximate: more for English prose, fewer for JSON and other languages
REPLY_TOKENS = 150  # approximate tokens of a short rationale and a verdict
LIST_LENGTH = 5  # length of lists that the schema does not limit, such as the statements of an answer
MAX_DEPTH = 12  # maximum depth to which a schema is followed, because it may be recursive
_SAMPLE_TEXT = "A statement of about the length that one has."


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunCounts:
    """Counts of a dry run: calls, cached answers, approximate tokens and US dollars, and maximum dollars (None: no
    price).

    The maximum is what a budget reserves: one token per byte of the question, and the longest reply.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int = 0
    usd: float | None = 0.0
    usd_at_most: float | None = 0.0

    def __add__(self, other: DryRunCounts) -> DryRunCounts:
        return DryRunCounts(
            calls=self.calls + other.calls,
            cached=self.cached + other.cached,
            input_tokens=self.input_tokens + other.input_tokens,
            usd=_add_costs(self.usd, other.usd),
            usd_at_most=_add_costs(self.usd_at_most, other.usd_at_most),
        )


class JudgeDryRun:
    """Counter of questions in a dry run. `label` is the index of the label that answers pick: 0 or -1."""

    def __init__(self, label: int = 0) -> None:
        self.counted = DryRunCounts()
        self._label = label

    def answer(self, judge: JudgeSettings, ask: Ask, cached: Answer | None) -> Answer:
        """Return the cached answer, else a sample value of the question's schema."""
        if cached is not None:
            self.counted += DryRunCounts(cached=1)
            return cached
        tokens = -(-count_question_bytes(ask) // BYTES_PER_TOKEN)
        usd = compute_cost(judge, Usage(tokens, REPLY_TOKENS))
        most_usd = compute_max_cost(judge, ask).usd if usd is not None else None
        self.counted += DryRunCounts(calls=1, input_tokens=tokens, usd=usd, usd_at_most=most_usd)
        value = _SAMPLE_TEXT if ask.schema is None else make_sample_value(ask.schema, self._label)
        return Answer(value=value, text=str(value), model=judge.model, usage=Usage(), cost=0.0)


current_dry_run: ContextVar[JudgeDryRun | None] = ContextVar("spanwise-rehearsing", default=None)


@contextmanager
def use_dry_run(dry_run: JudgeDryRun) -> Iterator[None]:
    """Replace all judge calls in a block by answers of the dry run."""
    token = current_dry_run.set(dry_run)
    try:
        yield
    finally:
        current_dry_run.reset(token)


def make_sample_value(schema: Mapping[str, Any], label: int = 0, depth: int = 0) -> Any:
    """Return a sample value of a JSON schema: the first or last label of an enumeration, lists of maximum length."""
    if depth > MAX_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][label]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            return make_sample_value(schema[keyword][0], label, depth + 1)
    return _make_sample_of_type(schema, label, depth + 1)


def _make_sample_of_type(schema: Mapping[str, Any], label: int, depth: int) -> Any:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list | tuple) and kind else kind
    if kind == "object":
        return {name: make_sample_value(each, label, depth) for name, each in (schema.get("properties") or {}).items()}
    if kind == "array":
        length = schema.get("maxItems") or max(LIST_LENGTH, schema.get("minItems") or 0)
        return [
            make_sample_value(schema.get("items") or {"type": "string"}, label, depth)
            for _ in range(min(length, 1_000))
        ]
    if kind in ("number", "integer"):
        return schema.get("minimum", schema.get("maximum", 1))
    return {"boolean": label == 0, "null": None}.get(kind, _SAMPLE_TEXT)


def _add_costs(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


# Judge, and a call of it from top to bottom: cache, single flight, budget, rate limit, attempts, parsing.

log = logging.getLogger("spanwise.evaluators")
ATTEMPT_SHARE = 0.5  # share of the deadline for one attempt, so that a hang leaves time for another


@dataclass(frozen=True, kw_only=True)
class Judge(JudgeSettings):
    """LLM judge: a model behind an OpenAI-compatible endpoint, or any `backend`.

    Missing arguments are read from the environment when the judge is created:

    - `model` from SPANWISE_JUDGE;
    - `base_url` from SPANWISE_JUDGE_URL, else OPENAI_BASE_URL, else OpenAI's address;
    - `api_key` from SPANWISE_JUDGE_KEY, else OPENAI_API_KEY. A key from the environment is only used with an
      address from the environment. With another `base_url`, pass its `api_key`.

    `price` is US dollars per million tokens of input and of output; None looks it up in genai-prices.
    `temperature` and `seed` are left out if a model refuses them. `max_tokens` limits the tokens of a reply; a
    reasoning model gets up to 16 times as many.

    `deadline` is in seconds, for one question with all its attempts. `concurrency` limits the concurrent
    questions of all judges of this process with the same endpoint, model and key. `cache` None caches answers
    of endpoints, but not of functions and scripts. A path sets the cache file. `max_age` is the maximum age of
    a cached answer in seconds.

    `max_usd` and `max_calls` limit the spending of this judge and its copies made with `dataclasses.replace`.
    Before each call, its maximum cost is reserved in `budget`, which several judges may share. Raises
    `ValueError`.
    """

    async def ask(self, ask: Ask) -> Answer:
        """Return the judge's answer. Raises `ParseFailure`, `Unjudged`, and `Skip` if the budget is exhausted."""
        if current_dry_run.get() is None:  # a dry run makes no calls and needs no key
            self.check()
        return await run_on_judge_loop(lambda: _ask_with_cache(self, ask))


def make_judge(given: Any = None) -> Judge:
    """Return the judge for a `Judge`, a model's name, a dict of `Judge` arguments, a function, a Haystack generator, or
    a `Backend`.

    None gives the judge of the environment. Raises `ValueError`.
    """
    if isinstance(given, Judge):
        return given
    if given is None:
        return Judge()
    if isinstance(given, str):
        return Judge(model=check_text("judge", given))
    if isinstance(given, Mapping):
        known = [each.name for each in dataclasses.fields(Judge) if each.name not in ("backend", "budget")]
        for name in given:
            if name not in known:
                raise ValueError(
                    f"unknown judge setting {name!r}; expected one of: {', '.join(known)}{did_you_mean(str(name), known)}"
                )
        return Judge(**given)
    return Judge(backend=make_backend(given))


async def _ask_with_cache(judge: JudgeSettings, ask: Ask) -> Answer:
    path = get_cache_path(judge)
    dry_run = current_dry_run.get()
    if path is None and dry_run is not None:
        return dry_run.answer(judge, ask, None)
    if path is None:
        return (await JudgeCall(judge, ask).answer())[0]
    cache = get_loop_singleton((AnswerCache, path), lambda: AnswerCache(path))
    key = compute_cache_key(judge, ask)
    if dry_run is not None:
        return dry_run.answer(judge, ask, await _read_cached(cache, key, judge, ask))
    # `api_key` is included because the endpoint may accept one key and refuse another
    flight_key = (path, key, judge.api_key, judge.deadline, judge.max_age)

    async def ask_and_cache() -> Answer:
        """Return the cached answer, or ask the judge and write its answer to the cache before returning it."""
        cached = await _read_cached(cache, key, judge, ask)
        if cached is not None:
            return cached
        answer, completion = await JudgeCall(judge, ask).answer()
        await get_loop_singleton(("put", cache), lambda: BatchedCacheAccess(cache.put_all)).run((key, completion))
        return answer

    answer, is_shared = await get_loop_singleton(SingleFlight, SingleFlight).run(flight_key, ask_and_cache)
    return make_cached_answer(answer) if is_shared else answer


async def _read_cached(cache: AnswerCache, key: bytes, judge: JudgeSettings, ask: Ask) -> Answer | None:
    completion = await get_loop_singleton(("get", cache), lambda: BatchedCacheAccess(cache.get_all)).run(
        (key, judge.max_age)
    )
    return _completion_to_answer(judge, ask, completion) if completion is not None else None


def _completion_to_answer(judge: JudgeSettings, ask: Ask, completion: Completion) -> Answer | None:
    """Return a cached reply as an answer, or None if it can no longer be parsed."""
    try:
        reply = parse_reply(ask, completion)
    except Exception:
        return None
    return make_cached_answer(
        Answer(
            value=reply.value,
            text=completion.text,
            model=completion.model or judge.model,
            logprobs=completion.logprobs,
            notes=(*completion.notes, *reply.notes),
        )
    )


def make_cached_answer(answer: Answer) -> Answer:
    """Return the answer marked as cached: no calls, no cost, no usage."""
    return replace(answer, cached=True, calls=0, cost=0.0, usage=Usage())


class Deadline:
    """Deadline in seconds for one question with all its attempts. It starts with the first call, so waiting in the queue
    does not count.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until: float | None = None

    def start(self) -> None:
        """Start the deadline with the first call. Later calls change nothing."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self.seconds

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds left, at least 0, or None before the start."""
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    @property
    def of_attempt(self) -> float:
        """Return the timeout of the next attempt in seconds."""
        whole = self.seconds * ATTEMPT_SHARE
        return whole if self.seconds_left is None else min(whole, self.seconds_left)


class JudgeCall:
    """Execution of one question, on the judges' loop."""

    def __init__(self, judge: JudgeSettings, ask: Ask) -> None:
        self._judge = judge
        self._backend = judge.answering
        self._ask = ask
        self._limiter = get_limiter(judge)
        self._deadline = Deadline(judge.deadline)
        self._tries = 0
        self._calls = 0  # attempts that reached a server
        self._failed: Exception | None = None  # error of the last attempt, more informative than a timeout in the queue
        self._usages: list[Usage | None] = []
        self._notes: list[str] = []

    async def answer(self) -> tuple[Answer, Completion]:
        """Return the judge's answer, and the reply that it was parsed from.

        Raises `ParseFailure`, other `Unjudged`, `Skip` if the budget does not allow the first call, and errors of a
        judge function.
        """
        if isinstance(self._backend, OpenAIEndpoint):
            await load_client()
        try:
            completion = await self._complete(self._ask)
            try:
                reply = parse_reply(self._ask, completion)
            except ParseFailure as failure:
                reply, completion = await self._ask_again(completion, failure)
        except Unjudged as error:
            usage = sum_usage(self._usages)
            spent: dict[str, object] = {"calls": self._calls} if self._calls or usage is not None else {}
            if usage is not None:
                spent |= {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
                spent["cost"] = compute_cost(self._judge, usage)
            error.metadata = {**error.metadata, **spent}
            raise
        return self._answer(reply, completion), completion

    async def _ask_again(self, unread: Completion, failure: ParseFailure) -> tuple[ParsedReply, Completion]:
        """Ask again, quoting the reply and its problem. Raises `ParseFailure` with both replies."""
        first = failure.text[:MAX_REPLY_LENGTH]
        try:
            completion = await self._complete(make_followup_question(self._ask, unread, failure))
            reply = parse_reply(self._ask, completion)
        except ParseFailure as second:
            second.metadata = {**second.metadata, "reply": second.text[:MAX_REPLY_LENGTH], "first_reply": first}
            raise second from None
        except (Unjudged, Skip) as error:
            failure.metadata = {**failure.metadata, "reply": first, "asked_again": str(error)}
            raise failure from None
        self._notes.append(f"asked again: {str(failure)[:200]}")
        return reply, completion

    async def _complete(self, ask: Ask) -> Completion:
        """Call the backend until it replies. After a transient error, call again, as long as the deadline allows. If the
        reply of a reasoning model was truncated, call again with more tokens, as long as the limit allows.
        """
        self._failed = None
        attempt = 0
        while True:
            try:
                return await self._attempt(ask)
            except (CutOff, _CostIncreased) as error:
                if isinstance(error, CutOff) and not error.again:
                    raise
                attempt = 0
            except Skip:
                if self._failed is None:
                    raise
                raise self._to_unjudged(self._failed) from self._failed
            except Exception as error:
                # after a refusal, the limiter already delays all calls as the server requests
                pause = 0.0 if is_rate_limited(error) else compute_retry_delay(attempt, error)
                left = self._deadline.seconds_left  # None if the call never left the queue
                has_time = left is not None and pause < left
                if not (is_transient(error) and has_time) or self._limiter.gives_up(error, pause):
                    converted = self._to_unjudged(self._failed or error)
                    if converted is error:
                        raise
                    raise converted from error
                attempt += 1
                await asyncio.sleep(pause)

    def _to_unjudged(self, error: Exception) -> Exception:
        """Convert a transient network or server error to `Unjudged`. Return any other error unchanged."""
        if isinstance(error, SpanwiseError) or not is_transient(error):
            return error
        where, seconds = self._judge.where, self._deadline.seconds
        attempts = f"{self._tries} attempt{'s' if self._tries != 1 else ''}"
        reason = describe_call_error(error, self._judge.api_key)
        if is_connection_failure(error):
            return Unjudged(f"{where} cannot be reached, after {attempts}: {reason}")
        return Unjudged(f"{where} gave no answer within {seconds:g} s after {attempts}: {reason}")

    async def _attempt(self, ask: Ask) -> Completion:
        bound, is_retry, left = self._judge.concurrency, self._tries > 0, self._deadline.seconds_left
        within = self._deadline.seconds if left is None else left
        async with self._reserve_budget(ask) as booked, self._limiter.call(bound, again=is_retry, within=within):
            # another call detected a reasoning model and raised the token limit
            if compute_max_cost(self._judge, ask).usd > booked.amount.usd:
                raise _CostIncreased
            self._deadline.start()
            self._tries += 1
            self._calls += 1
            booked.started = True
            completion = await self._call_backend(ask)
            booked.settle(completion.usage)
            self._usages.append(completion.usage)
            return completion

    @asynccontextmanager
    async def _reserve_budget(self, ask: Ask) -> AsyncIterator[_BudgetReservation]:
        """Reserve the maximum cost of one call for the duration of a block, then settle the actual cost, also after an
        error.
        """
        booking = _BudgetReservation(self._judge, compute_max_cost(self._judge, ask))
        ledgers, id = get_ledgers(self._judge.budget), uuid4().hex
        model = AskedModel(self._judge.model, priced=self._judge.prices is not None)
        if not ledgers:
            yield booking
            return
        try:
            async with asyncio.timeout(self._deadline.seconds_left):
                for ledger in ledgers:
                    await ledger.book(id, booking.amount, model)
            yield booking
        except BaseException as error:
            booking.fail(error)
            raise
        finally:
            for ledger in ledgers:
                await ledger.settle(id, booking.actual)

    async def _call_backend(self, ask: Ask) -> Completion:
        seconds = self._deadline.of_attempt
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._backend.complete(ask)
        except TimeoutError as error:
            self._failed = ReplyTimeout(f"no reply within {seconds:.3g} s") if limit.expired() else error
            raise self._failed from error
        except asyncio.CancelledError as error:
            if is_task_cancelled():
                raise
            raise Unjudged(f"{self._judge.where} cancelled the question") from error
        except CutOff as cut:
            self._usages.append(cut.usage)
            self._failed = cut
            raise
        except Exception as error:
            self._failed = error
            if is_connection_failure(error):
                self._calls -= 1
                self._announce(error)
            raise

    def _announce(self, error: Exception) -> None:
        """Log that the endpoint cannot be reached, once for all concurrent questions to it."""
        patience = self._limiter.unreachable(self._deadline.seconds)
        if patience is not None:
            reason = describe_call_error(error, self._judge.api_key)
            log.warning(
                "spanwise: the judge %s cannot be reached: %s; retrying for up to %.3g s",
                self._judge.where,
                reason,
                patience,
            )

    def _answer(self, reply: ParsedReply, completion: Completion) -> Answer:
        usage = sum_usage(self._usages)
        return Answer(
            value=reply.value,
            text=completion.text,
            model=completion.model or self._judge.model,
            usage=usage,
            cost=compute_cost(self._judge, usage) if usage is not None else None,
            logprobs=completion.logprobs,
            notes=(*completion.notes, *self._notes, *reply.notes),
            calls=self._calls,
        )


class _CostIncreased(Exception):
    """Raised if the maximum cost of a call has increased since it was booked."""


class _BudgetReservation:
    """Reserved amount of a call, and its actual cost."""

    def __init__(self, judge: JudgeSettings, amount: Amount) -> None:
        self._judge = judge
        self.amount = amount
        self.started = False
        self._is_unknown = False

    @property
    def actual(self) -> Amount | None:
        """Return the actual cost of the call, or None if its outcome is unknown."""
        return None if self._is_unknown else self.amount

    def settle(self, usage: Usage | None) -> None:
        """Set the amount to the cost of a reply. If the endpoint reports no usage, the reserved maximum remains."""
        cost = compute_cost(self._judge, usage) if usage is not None else None
        if cost is not None:
            self.amount = Amount(cost, 1)

    def fail(self, error: BaseException) -> None:
        """Set the amount for a failed call.

        A truncated reply costs its usage. A call that was not made, or that the server refused, costs nothing. If a
        call broke off and may have been billed, its outcome is unknown.
        """
        if isinstance(error, CutOff):
            self.settle(error.usage)
        elif self.started and is_possibly_billed(error):
            self._is_unknown = True
        else:
            self.amount = Amount()


def make_followup_question(ask: Ask, unread: Completion, failure: ParseFailure) -> Ask:
    """Return the question extended by an unreadable reply and the reason."""
    expected = "the answer" if ask.schema is None else "one JSON object as it was asked for, and nothing else"
    unread_reply = {"role": "assistant", "content": unread.text[:MAX_REPLY_LENGTH] or "(nothing)"}
    request = {"role": "user", "content": f"That could not be read ({str(failure)[:500]}). Reply with {expected}."}
    return replace(ask, messages=(*ask.messages, unread_reply, request))


def sum_usage(usages: list[Usage | None]) -> Usage | None:
    """Return the total usage of all replies, or None if one of them reported none."""
    known = [usage for usage in usages if usage is not None]
    if not known or len(known) < len(usages):
        return None
    details: dict[str, int] = {}
    for usage in known:
        for name, tokens in usage.details.items():
            details[name] = details.get(name, 0) + tokens
    return Usage(sum(usage.input_tokens for usage in known), sum(usage.output_tokens for usage in known), details)


class SingleFlight:
    """Questions in progress by key, so that equal concurrent questions share one call. Only the judges' loop uses it."""

    def __init__(self) -> None:
        self._pending: dict[object, asyncio.Future[Answer | Unjudged | None]] = {}

    async def run(self, key: object, ask: Callable[[], Awaitable[Answer]]) -> tuple[Answer, bool]:
        """Return the answer, and whether another caller's question supplied it. Raises the errors of `ask`.

        All waiting callers get the answer, or a copy of an `Unjudged` error, which would affect all of them. If the
        asking caller exhausted its budget or was cancelled, the next caller asks instead.
        """
        while key in self._pending:
            pending = self._pending[key]
            await asyncio.wait([pending])
            outcome = pending.result()
            if isinstance(outcome, Answer):
                return outcome, True
            if outcome is not None:
                raise _copy_error(outcome)
        return await self._start(key, ask), False

    async def _start(self, key: object, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        future = self._pending[key] = asyncio.get_running_loop().create_future()
        outcome: Answer | Unjudged | None = None
        try:
            outcome = answer = await ask()
            return answer
        except Unjudged as error:
            outcome = _copy_error(error)
            raise
        finally:
            del self._pending[key]
            future.set_result(outcome)


def _copy_error(error: Unjudged) -> Unjudged:
    """Return a copy of an error for each waiting caller, as feedback adds caller-specific metadata to it."""
    another = type(error).__new__(type(error))
    another.args = error.args
    another.__dict__.update(error.__dict__)
    another.metadata = dict(error.metadata)
    another.__cause__ = error.__cause__
    return another
