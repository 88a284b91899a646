"""Backend for Python functions and Haystack generators."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import orjson

from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Unjudged, run_in_thread
from spanwise.evaluators.judges.llm_client.chat_completions import (
    Ask,
    Backend,
    Completion,
    Message,
    add_schema_instruction,
    extract_text,
    join_messages,
    parse_completion,
)
from spanwise.tracer.http_connections import suppress_instrumentation

_warm_up_lock = threading.Lock()
_LIST_TYPES = (list, tuple, Sequence)


@dataclass(frozen=True, slots=True)
class FunctionBackend:
    """Backend that calls a Python function, on a thread, or on the judges' loop if the function is async.

    The argument is a list of message dicts (role and content) if the first parameter is named `messages` or annotated
    as a list. Else it is the prompt as one text. The function returns a text, a dict (the requested object), a
    `Completion`, or a reply of an OpenAI-like client or Haystack generator.
    """

    call: Callable[..., Any]

    @property
    def model(self) -> str:
        """Return the function's name."""
        name = getattr(self.call, "__name__", None) or type(self.call).__name__
        return "lambda" if name == "<lambda>" else str(name)

    @property
    def where(self) -> str:
        """Return the place where the function is defined."""
        module = getattr(self.call, "__module__", None) or type(self.call).__module__
        return f"the function {module}.{getattr(self.call, '__qualname__', self.model)} in this process"

    async def complete(self, ask: Ask) -> Completion:
        """Return the function's reply. Raises the errors of the function, and `Unjudged` for an invalid reply."""
        messages = add_schema_instruction(ask.messages, ask.schema) if ask.schema is not None else ask.messages
        given = (
            [dict(message) for message in messages] if has_messages_parameter(self.call) else join_messages(messages)
        )
        return _to_completion(await _call_function(self.call, given), self.model)


@dataclass(frozen=True, slots=True)
class HaystackBackend:
    """Backend that calls a Haystack generator, for chats (`run(messages=…)`) or for texts (`run(prompt=…)`)."""

    component: Any

    @property
    def model(self) -> str:
        """Return the generator's model name, else the name of its class."""
        return str(getattr(self.component, "model", None) or type(self.component).__name__)

    @property
    def where(self) -> str:
        """Return the generator's class, and its address if it has one."""
        address = getattr(self.component, "api_base_url", None)
        return f"{self.model} by Haystack's {type(self.component).__name__}{f' at {address}' if address else ''}"

    async def complete(self, ask: Ask) -> Completion:
        """Return the generator's reply. Raises the errors of the generator, and `Unjudged` for an invalid reply."""
        messages = add_schema_instruction(ask.messages, ask.schema) if ask.schema is not None else ask.messages
        return _to_completion(await _call_function(self._run, messages), self.model)

    def _run(self, messages: Sequence[Message]) -> Any:
        warm_up = getattr(self.component, "warm_up", None)
        if warm_up is not None:
            with _warm_up_lock:  # prevents two threads from loading the model at once
                warm_up()
        if "prompt" in inspect.signature(self.component.run).parameters:
            return self.component.run(prompt=join_messages(messages))
        from haystack.dataclasses import ChatMessage

        makers = {"system": ChatMessage.from_system, "assistant": ChatMessage.from_assistant}
        chat = [makers.get(message["role"], ChatMessage.from_user)(message["content"]) for message in messages]
        return self.component.run(messages=chat)


def make_backend(given: Any) -> Backend:
    """Return a backend for a `Backend`, a Haystack generator or a callable. Raises `ValueError`."""
    if not isinstance(given, type):
        if callable(getattr(given, "complete", None)) and isinstance(getattr(given, "where", None), str):
            return given  # type: ignore[no-any-return]
        if callable(getattr(given, "run", None)) and not inspect.ismodule(given):
            return HaystackBackend(given)
        if callable(given):
            return FunctionBackend(given)
    raise ValueError(
        "a judge must be a Judge, a model's name, a dict such as {'model': …, 'base_url': …}, a function from a prompt to a "
        f"reply, or a Haystack generator, got {given!r:.200}"
    )


def has_messages_parameter(call: Callable[..., Any]) -> bool:
    """Return whether a function's first parameter is a list of messages, judged by its name or annotation."""
    try:
        first = next(iter(inspect.signature(call).parameters.values()), None)
    except (TypeError, ValueError):  # the function has no Python signature
        return False
    if first is None:
        return False
    hint = first.annotation
    if isinstance(hint, str):
        try:
            hint = get_type_hints(call).get(first.name)
        except Exception:  # the annotation uses names that are imported only for type checkers
            hint = list if hint.startswith(("list", "Sequence")) else None
    return first.name == "messages" or hint in _LIST_TYPES or getattr(hint, "__origin__", None) in _LIST_TYPES


async def _call_function(call: Callable[..., Any], given: Any) -> Any:
    """Return the result of a call, awaited if it is awaitable. Raises the errors of the call."""
    with suppress_instrumentation():
        is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004
        try:
            returned = call(given) if is_async else await run_in_thread(lambda: call(given))
            return await returned if inspect.isawaitable(returned) else returned
        except StopIteration as error:  # a coroutine cannot raise StopIteration
            raise RuntimeError(f"{call!r} raised StopIteration: it has no more replies") from error


def _to_completion(returned: Any, model: str) -> Completion:
    """Convert a reply of any supported type. Raises `Unjudged`."""
    if isinstance(returned, Completion):
        return replace(returned, model=returned.model or model)
    if hasattr(returned, "choices") and hasattr(returned, "model_dump"):
        returned = returned.model_dump()
    if isinstance(returned, Mapping) and "choices" in returned:
        completion = parse_completion(returned)
        return replace(completion, model=completion.model or model)
    if isinstance(returned, Mapping) and isinstance(returned.get("replies"), list) and returned["replies"]:
        meta = returned.get("meta")
        first_meta = meta[0] if isinstance(meta, list) and meta and isinstance(meta[0], Mapping) else {}
        return _message_to_completion(returned["replies"][0], first_meta, model)
    return _message_to_completion(returned, {}, model)


def _message_to_completion(message: Any, meta: Mapping[str, Any], model: str) -> Completion:
    """Convert a text, a message of Haystack (`text`, `meta`) or of LangChain (`content`), or a plain value, which
    becomes JSON.
    """
    if isinstance(message, str):
        return Completion(text=message, model=meta.get("model") or model, usage=_read_usage(meta))
    for name in ("text", "content"):
        if isinstance(content := getattr(message, name, None), str | list):
            meta = getattr(message, "meta", None) or meta
            finish = meta.get("finish_reason")
            return Completion(
                text=extract_text(content), model=meta.get("model") or model, usage=_read_usage(meta), finish=finish
            )
    if hasattr(message, "model_dump"):
        message = message.model_dump()
    if not isinstance(message, Mapping | list | int | float):
        raise Unjudged(f"the judge function returned {message!r:.200}; expected a text or a dict")
    try:
        text = orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, RecursionError) as error:
        raise Unjudged(
            f"the judge function returned {message!r:.200}, which cannot be converted to JSON: {error}"
        ) from None
    return Completion(text=text, model=model)


def _read_usage(meta: Mapping[str, Any]) -> Usage | None:
    return parse_completion({"usage": meta.get("usage")}).usage
