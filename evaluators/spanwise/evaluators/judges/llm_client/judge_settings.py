"""Settings of judges: model, endpoint, key, price and limits; ledgers that reserve and settle cost.

The prices give the cost of a call: its maximum before the call, and its actual cost afterwards.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from spanwise.collector.records import JSON, Usage
from spanwise.evaluators.interface import Skip
from spanwise.evaluators.judges.llm_client.chat_completions import Ask, Backend, NoJudge
from spanwise.evaluators.judges.llm_client.openai_backend import OpenAIEndpoint
from spanwise.evaluators.models.model_resolution import OPENAI_URL, check_address, check_key, first_variable

# Budget of judges: ledgers that reserve the maximum cost of a call and settle its actual cost.

USD_TOLERANCE = 1e-9  # tolerance in US dollars when comparing sums


class Amount(NamedTuple):
    """Amount of US dollars and calls."""

    usd: float = 0.0
    calls: int = 0


class AskedModel(NamedTuple):
    """Model that a call asks. `priced` is False if its price is unknown, so that the amount has no US dollars."""

    name: str
    priced: bool


UNKNOWN_MODEL = AskedModel("", priced=False)


class Ledger(Protocol):
    """Interface for booking calls: a judge's budget in this process, or a budget in a store that many workers share."""

    async def book(self, id: str, amount: Amount, model: AskedModel = UNKNOWN_MODEL) -> None:
        """Reserve an amount for the call `id`. A second booking with the same id has no effect. Raises `Skip` if the
        budget is exhausted.
        """

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one. None means that the outcome of the call is unknown: the
        reserved amount stays booked.

        An id without a reservation is ignored.
        """


_current_ledger: ContextVar[Ledger | None] = ContextVar("spanwise-charged", default=None)


@contextmanager
def use_ledger(ledger: Ledger | None) -> Iterator[None]:
    """Book the judge calls of a block in this ledger, in addition to each judge's budget."""
    token = _current_ledger.set(ledger)
    try:
        yield
    finally:
        _current_ledger.reset(token)


def get_ledgers(budget: Ledger | None) -> list[Ledger]:
    """Return the ledgers in which the calls of a judge with this budget are booked."""
    return [ledger for ledger in (budget, _current_ledger.get()) if ledger is not None]


class Budget:
    """Ledger within one process, for one judge or several. Only the judges' loop uses it.

    If an amount would fit without the reservations of other calls, the booking waits until these calls are settled,
    because most calls cost less than reserved.
    """

    def __init__(self, *, max_usd: float | None = None, max_calls: int | None = None) -> None:
        self.max_usd = max_usd
        self.max_calls = max_calls
        self.spent = Amount()
        self._booked: dict[str, Amount] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._process = os.getpid()

    @property
    def reserved(self) -> Amount:
        """Return the amount reserved for calls in progress."""
        return _add_amounts(Amount(), *self._booked.values())

    async def book(self, id: str, amount: Amount, model: AskedModel = UNKNOWN_MODEL) -> None:
        """Reserve an amount for the call `id`. A second booking with the same id has no effect. Raises `Skip` if the
        amount would not fit even without the reservations of other calls.
        """
        if self._process != os.getpid():  # after a fork, calls in progress belong to the parent
            self._process, self._booked, self._waiting = os.getpid(), {}, []
        while id not in self._booked:
            if self._has_room(_add_amounts(self.spent, self.reserved, amount)):
                self._booked[id] = amount
            elif self._booked and self._has_room(_add_amounts(self.spent, amount)):
                settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(settled)
                await settled
            else:
                raise Skip(self._describe_refusal(amount))

    async def settle(self, id: str, actual: Amount | None) -> None:
        """Replace the reserved amount by the actual one. None means that the outcome of the call is unknown: the
        reserved amount counts as spent.

        An id without a reservation is ignored.
        """
        booked = self._booked.pop(id, None)
        if booked is None:
            return
        self.spent = _add_amounts(self.spent, booked if actual is None else actual)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _has_room(self, amount: Amount) -> bool:
        in_usd = self.max_usd is None or amount.usd <= self.max_usd + USD_TOLERANCE
        return in_usd and (self.max_calls is None or amount.calls <= self.max_calls)

    def _describe_refusal(self, amount: Amount) -> str:
        spent, reserved = self.spent, self.reserved
        if self.max_calls is not None and spent.calls + reserved.calls + amount.calls > self.max_calls:
            return f"over budget: max_calls={self.max_calls}, {spent.calls} made, {reserved.calls} under way"
        return (
            f"over budget: max_usd={self.max_usd:g}, ${spent.usd:.6f} spent, ${reserved.usd:.6f} reserved, and this "
            f"call may cost ${amount.usd:.6f}"
        )


def make_budget(max_usd: float | None, max_calls: int | None, given: Ledger | None) -> Ledger | None:
    """Return the ledger for a judge with these limits, or None if it needs none.

    The given ledger is used, unless it is a `Budget` with other limits: then a new `Budget` replaces it. Without
    limits, a given `Budget` is not used.
    """
    if max_usd is None and max_calls is None:
        return None if isinstance(given, Budget) else given
    if given is None or (isinstance(given, Budget) and (given.max_usd, given.max_calls) != (max_usd, max_calls)):
        return Budget(max_usd=max_usd, max_calls=max_calls)
    return given


def _add_amounts(*amounts: Amount) -> Amount:
    return Amount(sum(amount.usd for amount in amounts), sum(amount.calls for amount in amounts))


# Settings of judges: model, endpoint, key, price and limits, from arguments or the environment.

MESSAGE_OVERHEAD = 1_024  # bytes for roles, separators and instructions that an endpoint adds to messages and schema
MILLION = 1_000_000
_NO_JUDGE_MESSAGE = (
    'no judge is configured: pass judge="gpt-4o-mini" or another model\'s name, or set SPANWISE_JUDGE '
    "(and SPANWISE_JUDGE_URL and SPANWISE_JUDGE_KEY for its endpoint); there is no default model"
)


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a `Judge`, whose docstring explains them. The constructor checks them and reads missing ones from the
    environment.
    """

    model: str = ""
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    price: tuple[float, float] | None = None
    backend: Backend | None = None
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int = 2048
    concurrency: int = 16
    deadline: float = 120.0
    cache: bool | str | Path | None = None
    max_age: float = 30 * 86_400.0
    max_usd: float | None = None
    max_calls: int | None = None
    budget: Ledger | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_fields(self)
        if backend := self.backend:
            if not callable(getattr(backend, "complete", None)):
                raise ValueError(
                    f"backend must have a method complete(ask), got {backend!r:.200}; pass functions as judge="
                )
            if self.base_url is not None:
                raise ValueError(
                    f"a judge has a base_url or a backend, not both: {self.base_url!r} and {backend!r:.200}"
                )
            object.__setattr__(self, "model", self.model or self.backend.model)
        else:
            _read_environment(self)
        if self.price is not None:
            object.__setattr__(self, "price", tuple(self.price))
        object.__setattr__(self, "budget", make_budget(self.max_usd, self.max_calls, self.budget))
        if self.max_usd is not None and self.prices is None:
            raise ValueError(
                f"max_usd={self.max_usd!r} cannot be enforced: the price of {self.model or 'a judge'!r} is unknown; pass "
                "price=(dollars per million tokens of input, of output), or max_calls"
            )

    @property
    def answering(self) -> Backend:
        """Return the backend that answers. Raises `NoJudge`."""
        self.check()
        return self.backend or self._endpoint

    def check(self) -> None:
        """Raise `NoJudge` if no model is configured, or if there is no key for OpenAI."""
        if self.backend is not None:
            return
        if not self.model:
            raise NoJudge(_NO_JUDGE_MESSAGE)
        if self.base_url == OPENAI_URL and not self.api_key:
            raise NoJudge(
                f"the judge {self.model!r} at {OPENAI_URL} needs a key: set OPENAI_API_KEY or SPANWISE_JUDGE_KEY, or set "
                "SPANWISE_JUDGE_URL to another endpoint"
            )

    @property
    def where(self) -> str:
        """Return a description of the endpoint or function that receives the prompts."""
        if self.backend is not None:
            return self.backend.where
        return self._endpoint.where if self.model else "none (no judge is configured)"

    @property
    def prices(self) -> tuple[float, float] | None:
        """Return US dollars per million tokens of input and of output: the setting `price`, else the price in
        genai-prices. Return None if the price is unknown.
        """
        if self.price is not None or self.backend is not None or not self.model:
            return self.price
        return look_up_price(self.model, self.base_url)

    @property
    def most_tokens(self) -> int:
        """Return the maximum tokens of a reply. They exceed `max_tokens` if the model was found to spend tokens on
        reasoning.
        """
        return self.max_tokens if self.backend is not None else self._endpoint.most_tokens

    @property
    def identity(self) -> Mapping[str, JSON]:
        """Return the settings that affect judgements: model, endpoint and parameters, never the key."""
        if self.backend is not None:
            return {"model": self.model, "endpoint": self.backend.where}
        parameters = {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}
        return {"model": self.model, "endpoint": self.base_url, **parameters}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `make_judge`, without the key, which is read from the environment.

        Raises `ValueError` for a judge with a backend, such as a function: stored data that names code to run cannot
        be trusted.
        """
        if self.backend is not None:
            raise ValueError(f"a judge that calls {self.backend.where} cannot be serialized")
        plain: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name in ("backend", "budget", "api_key") or value == each.default:
                continue
            if isinstance(value, tuple):
                value = list(value)
            plain[each.name] = str(value) if isinstance(value, Path) else value
        return plain

    @property
    def _endpoint(self) -> OpenAIEndpoint:
        return OpenAIEndpoint(
            model=self.model,
            base_url=self.base_url or OPENAI_URL,
            api_key=self.api_key,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            timeout=self.deadline / 2,  # leaves time for another attempt after a hang
            bounded=self.max_usd is not None,
        )


@lru_cache(maxsize=256)
def look_up_price(model: str, base_url: str | None) -> tuple[float, float] | None:
    """Return US dollars per million tokens of input and of output according to genai-prices, or None if it has no price.

    A model at an unknown address has no price, even if its name is known.
    """
    from genai_prices import Usage as Billed
    from genai_prices import calc_price

    from spanwise.collector.dialects import has_price

    if not has_price(base_url):
        return None
    try:
        price = calc_price(Billed(input_tokens=1, output_tokens=1), model, provider_api_url=base_url)
    except LookupError:
        return None
    return float(price.input_price) * MILLION, float(price.output_price) * MILLION


def compute_cost(judge: JudgeSettings, usage: Usage) -> float | None:
    """Return the US dollars for a judge's call, or None if its price is unknown."""
    if judge.price is not None:
        return (usage.input_tokens * judge.price[0] + usage.output_tokens * judge.price[1]) / MILLION
    if judge.prices is None:
        return None
    # the collector's `compute_cost` accounts for price tiers, cached tokens and time-dependent prices
    from spanwise.collector.dialects import compute_cost, find_provider

    provider = find_provider(judge.base_url) if judge.base_url else None
    return compute_cost(judge.model, usage, {"gen_ai.provider.name": provider}, time.time_ns())


def compute_max_cost(judge: JudgeSettings, ask: Ask) -> Amount:
    """Return the maximum cost of one call: one token per byte of the question, and the longest reply."""
    usage = Usage(count_question_bytes(ask) + MESSAGE_OVERHEAD, judge.most_tokens)
    return Amount(compute_cost(judge, usage) or 0.0, 1)


def count_question_bytes(ask: Ask) -> int:
    """Return the number of bytes of messages and schema."""
    # the schema counts twice, because some endpoints also get it in the messages
    schema = 2 * len(orjson.dumps(ask.schema)) if ask.schema is not None else 0
    return schema + sum(len(message["content"].encode(errors="replace")) for message in ask.messages)


def _check_fields(judge: JudgeSettings) -> None:
    if judge.model != "" or judge.backend is None:
        object.__setattr__(judge, "model", check_text("model", judge.model, empty=judge.model == ""))
    check_price(judge.price)
    check_number("temperature", judge.temperature, most=2.0, none=True)
    check_integer("seed", judge.seed, least=None, none=True)
    check_integer("max_tokens", judge.max_tokens)
    check_integer("concurrency", judge.concurrency)
    check_number("deadline", judge.deadline, positive=True)
    check_number("max_age", judge.max_age)
    check_number("max_usd", judge.max_usd, none=True)
    check_integer("max_calls", judge.max_calls, least=0, none=True)
    if judge.cache is not None and not isinstance(judge.cache, bool | str | Path):
        raise ValueError(f"cache must be True, False, None or a path, got {judge.cache!r}")


def _read_environment(judge: JudgeSettings) -> None:
    """Set model, address and key that were not given."""
    openai_url = first_variable("OPENAI_BASE_URL") or OPENAI_URL
    judge_url = first_variable("SPANWISE_JUDGE_URL") or openai_url
    url = _check_base_url(judge.base_url or judge_url)
    api_key = check_key(judge.api_key)
    # a key from the environment is only used with an address from the environment, because the owner of any other
    # address could collect the key
    if not api_key and url == _check_base_url(judge_url):
        api_key = check_key(first_variable("SPANWISE_JUDGE_KEY", "OPENAI_API_KEY"))
    elif not api_key and url == _check_base_url(openai_url):
        api_key = check_key(first_variable("OPENAI_API_KEY"))
    object.__setattr__(judge, "model", judge.model or first_variable("SPANWISE_JUDGE") or "")
    object.__setattr__(judge, "base_url", url)
    object.__setattr__(judge, "api_key", api_key)


def _check_base_url(url: Any) -> str:
    return check_address(url, "base_url (or SPANWISE_JUDGE_URL, OPENAI_BASE_URL)")


def check_text(name: str, value: Any, *, empty: bool = False) -> str:
    """Return a text without surrounding spaces. Raises `ValueError`."""
    if not isinstance(value, str) or not (value.strip() or empty):
        raise ValueError(f"{name} must be the name of a model, got {value!r:.200}")
    return value.strip()


def check_number(name: str, value: Any, *, most: float = math.inf, positive: bool = False, none: bool = False) -> None:
    """Raise `ValueError` unless the value is a finite number from 0 to `most`. With `positive`, 0 is not allowed. With
    `none`, None is allowed.
    """
    if value is None and none:
        return
    if not _is_number(value) or not 0 <= value <= most or (positive and value == 0):
        bounds = f"{'> 0' if positive else '>= 0'}{'' if most == math.inf else f' and <= {most:g}'}"
        raise ValueError(f"{name} must be a number {bounds}, got {value!r}")


def check_integer(name: str, value: Any, *, least: int | None = 1, none: bool = False) -> None:
    """Raise `ValueError` unless the value is an integer of at least `least` (None: any integer). With `none`, None is
    allowed.
    """
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise ValueError(f"{name} must be an integer{'' if least is None else f' >= {least}'}, got {value!r}")


def check_price(price: Any) -> None:
    """Raise `ValueError` unless the value is a pair of prices or None."""
    if price is None:
        return
    pair: Any = price if isinstance(price, tuple | list) and len(price) == 2 else (None, None)
    if not all(_is_number(value) and value >= 0 for value in pair):
        raise ValueError(
            f"price must be US dollars per million tokens of input and of output, such as (0.15, 0.6), got {price!r}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
