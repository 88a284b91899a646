"""Backend for OpenAI-compatible endpoints: unsupported parameters, classification of errors.

A parameter counts as unsupported only after a call without it succeeded. An error may mention a parameter for another
reason, or quote a prompt that mentions it.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import orjson

from spanwise.collector.formatting import first_line
from spanwise.collector.records import JSON
from spanwise.evaluators.interface import Unjudged, get_http_status, get_response_headers, is_transient, run_in_thread
from spanwise.evaluators.judges.llm_client.chat_completions import (
    REASONING_TOKENS,
    Ask,
    Completion,
    CutOff,
    Declined,
    Unbilled,
    add_schema_instruction,
    parse_completion,
)
from spanwise.evaluators.judges.llm_client.judge_event_loop import get_loop_singleton, run_on_judge_loop
from spanwise.evaluators.models.model_resolution import redirect_error
from spanwise.tracer.http_connections import suppress_instrumentation

if TYPE_CHECKING:
    from openai import APIError, APIStatusError, AsyncAPIResponse, AsyncOpenAI


# Classification of endpoint errors: transient or permanent, possibly billed, and their messages.

_CONNECTION_ERRORS = ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror")


class ReplyTimeout(TimeoutError):
    """Error for an attempt that got no reply in time."""


def is_rate_limited(error: BaseException) -> bool:
    """Return whether the server reports overload: status 429, or a transient 503 or 529."""
    return get_http_status(error) in (429, 503, 529) and is_transient(error)


def is_possibly_billed(error: BaseException) -> bool:
    """Return whether the server may have processed and billed a failed call.

    A call without a connection was not billed, nor one that the server refused with an error status. Some servers bill
    a timeout (408), a question that their content filter stops, and one that is too long.
    """
    if isinstance(error, Unbilled) or is_connection_failure(error):
        return False
    return isinstance(error, Unjudged) or get_http_status(error) in (None, 408)


def is_connection_failure(error: BaseException) -> bool:
    """Return whether there was no connection, so that no server received the question."""
    return any(type(cause).__name__ in _CONNECTION_ERRORS for cause in iterate_causes(error, 5))


def describe_call_error(error: BaseException, key: str | None) -> str:
    """Return an error as one line: its status and the server's message, else its type and cause. The key is masked."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    message = message if isinstance(message, str) and message else _describe_cause(error)
    status = get_http_status(error)
    message = message.replace(key, "…") if key and len(key) >= 4 else message
    return first_line(f"{status} {message}" if status is not None and str(status) not in message else message, 300)


def _describe_cause(error: BaseException) -> str:
    if isinstance(error, ReplyTimeout):
        return str(error)
    if is_connection_failure(error):
        for cause in iterate_causes(error):
            if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
                return os.strerror(cause.errno).lower()
    cause = error.__cause__ if str(error) in ("", "Connection error.") and error.__cause__ is not None else error
    message = str(cause)
    return f"{type(cause).__name__}: {message}" if message else type(cause).__name__


MAX_ERROR_LENGTH = 300  # maximum characters of a server's message
_CONTEXT_LENGTH_CODES = (
    "context_length",
    "context length",
    "context size",
    "exceed_context",
    "too long",
    "maximum context",
)
_CONTENT_FILTER_CODES = ("content_filter", "content_policy", "responsibleai")
_INVALID_REQUEST_CLASSES = ("LocalProtocolError", "UnsupportedProtocol", "InvalidURL")  # class names of httpx
_QUOTA_CODE = "insufficient_quota"


class EndpointInfo(Protocol):
    """Interface with the properties of an endpoint that error messages need."""

    @property
    def model(self) -> str:
        """Return the model's name."""

    @property
    def base_url(self) -> str:
        """Return the endpoint's address."""

    @property
    def api_key(self) -> str | None:
        """Return the key, which messages must mask."""


def classify_error(error: APIError, endpoint: EndpointInfo) -> Unjudged | None:
    """Return a permanent error as `Unjudged`, or None for a transient one."""
    lasting = _explain_connection_error(error, endpoint) or redirect_error(
        endpoint.base_url, get_http_status(error), get_response_headers(error)
    )
    if lasting:
        return Unbilled(lasting)
    if is_transient(error):
        return None
    codes = f"{error.code} {error.type} {error.message} {error.body}".lower()
    message = _shorten(_get_body_message(error.body) or error.message, endpoint)
    kind: type[Unjudged] = Unbilled
    if any(word in codes for word in _CONTENT_FILTER_CODES):
        kind = Declined
    elif any(word in codes for word in _CONTEXT_LENGTH_CODES):
        kind = Unjudged
    return kind(_explain_status(getattr(error, "status_code", None), message, codes, endpoint))


def make_invalid_response_error(response: Any, content: bytes, body: Any, endpoint: EndpointInfo) -> Exception:
    """Return the error for a response that is not a chat completion. `body` is its content as JSON, or None if it is not
    JSON.
    """
    kind = str(response.headers.get("content-type") or "no content type").partition(";")[0]
    error = body.get("error") if isinstance(body, Mapping) else None
    if error:  # some gateways send errors with status 200
        code = error.get("code") if isinstance(error, Mapping) else None
        message = f"{endpoint.base_url} answered {response.status_code} with an error: {_shorten(_get_body_message(error), endpoint)}"
        is_passing = isinstance(code, int) and (code == 429 or code >= 500)
        return ConnectionError(message) if is_passing else Unjudged(message)
    excerpt = _shorten(content[: 4 * MAX_ERROR_LENGTH].decode(errors="replace"), endpoint)
    if body is None and "json" in kind:
        return ConnectionError(f"{endpoint.base_url} answered with broken JSON: {excerpt!r}")
    return Unjudged(
        f"{endpoint.base_url} answered with {kind} instead of a chat completion: {excerpt!r}; check its "
        "base_url, most end with /v1"
    )


def _explain_connection_error(error: BaseException, endpoint: EndpointInfo) -> str | None:
    for cause in iterate_causes(error):
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return f"the host name of {endpoint.base_url} cannot be resolved; check the judge's base_url"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate of {endpoint.base_url} is not trusted: {cause.verify_message}"
        if type(cause).__name__ in _INVALID_REQUEST_CLASSES:
            return f"{endpoint.base_url} cannot be called: {_shorten(f'{type(cause).__name__}: {cause}', endpoint)}"
    return None


def _explain_status(status: int | None, message: str, codes: str, endpoint: EndpointInfo) -> str:
    where, detail = endpoint.base_url, f" ({status}): {message}"
    if any(word in codes for word in _CONTENT_FILTER_CODES):
        return f"the content filter of {where} refused the question{detail}"
    if _QUOTA_CODE in codes:
        return f"{where} reports that no credit is left{detail}"
    if any(word in codes for word in _CONTEXT_LENGTH_CODES):
        return f"the question is too long for {endpoint.model!r} at {where}{detail}"
    explanation = {
        401: f"{where} refused the key{detail}",
        403: f"{where} denied access with this key{detail}",
        404: f"{where} has no model {endpoint.model!r}, or no chat completions endpoint{detail}",
    }
    return explanation.get(status or 0, f"{where} refused the question{detail}")


def iterate_causes(error: BaseException | None, most: int = 10) -> Iterator[BaseException]:
    """Yield the error and its chain of explicit or implicit causes."""
    for _ in range(most):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _get_body_message(body: Any) -> str:
    """Return the message in an error's body, in any of the forms that servers use."""
    if isinstance(body, Mapping):
        for name in ("message", "error", "detail", "msg"):
            if body.get(name):
                return _get_body_message(body[name])
    return body if isinstance(body, str) else str(body or "")


def _shorten(text: str, endpoint: EndpointInfo) -> str:
    """Return the text on one line, truncated. The key is masked, because some servers repeat it in their messages."""
    shortened = " ".join(text.replace(endpoint.api_key, "…").split() if endpoint.api_key else text.split())
    return shortened if len(shortened) <= MAX_ERROR_LENGTH else shortened[:MAX_ERROR_LENGTH] + "…"


# Backend for OpenAI-compatible endpoints, with detection of unsupported parameters.

MAX_RESPONSE_BYTES = 32 << 20  # maximum bytes of a response after decompression
MAX_CLIENTS = 32  # maximum number of endpoints and keys with open connections
_PLACEHOLDER_KEY = "none"  # the client requires a key; local servers ignore it


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEndpoint:
    """Endpoint, model and parameters of the calls. `timeout` is in seconds, for one request.

    Parameters that the endpoint or the model refuses are left out, recorded in notes, and not sent again by this
    process.
    """

    model: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int = 2048
    timeout: float = 60.0
    bounded: bool = False  # True if the judge has a limit in dollars: then every request needs a token limit

    @property
    def where(self) -> str:
        """Return model and address."""
        return f"{self.model} at {self.base_url}"

    @property
    def most_tokens(self) -> int:
        """Return the maximum tokens of a reply, including its reasoning."""
        return self.max_tokens * self._capabilities.token_factor

    async def complete(self, ask: Ask) -> Completion:
        """Return the reply. Raises transient errors of the client, `CutOff`, and `Unjudged` for all other errors."""
        return await run_on_judge_loop(lambda: self._complete(ask))

    @property
    def _capabilities(self) -> EndpointCapabilities:
        return get_capabilities(self.base_url, self.model)

    async def _complete(self, ask: Ask) -> Completion:
        """Call the endpoint. If it refuses a parameter, call it again without that parameter. A refused call costs
        nothing.
        """
        import openai

        form, first = self._capabilities.form(ask.schema), None
        while True:
            if self.bounded and form.limit is None:
                raise Unbilled(
                    f"{self.where} accepts no token limit, so max_usd cannot be enforced; pass max_calls instead"
                )
            try:
                completion = await self._send(ask, form)
            except openai.APIStatusError as error:
                first = first or error
                refused = form.refused_by(error, self._parameters(ask, form))
                if refused is None:
                    self._capabilities.lower_token_factor(form, first)
                    raise classify_error(first, self) or first from None
                form = refused
            except openai.APIConnectionError as error:
                lasting = classify_error(error, self)
                if lasting is None:
                    raise
                raise lasting from None
            else:
                self._capabilities.record_success(form, ask.schema)
                return self._check_complete(completion, form, ask)

    async def _send(self, ask: Ask, form: RequestForm) -> Completion:
        parameters = self._parameters(ask, form)
        async with get_loop_singleton(_ClientPool, _ClientPool).client(self.base_url, self.api_key) as client:
            with suppress_instrumentation():
                request = client.chat.completions.with_streaming_response.create(**parameters, timeout=self.timeout)
                async with request as raw:
                    content = await self._content(raw)
        try:
            body = orjson.loads(content)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, Mapping) or "choices" not in body:
            raise make_invalid_response_error(raw.http_response, content, body, self)
        completion = parse_completion(body)
        return replace(completion, notes=form.notes(ask, completion))

    async def _content(self, raw: AsyncAPIResponse[Any]) -> bytes:
        """Return the decompressed response. Raises `Unjudged` if it is too large, and `openai.APIConnectionError` if the
        connection breaks off.
        """
        import openai

        content = bytearray()
        try:
            async for piece in raw.iter_bytes():
                content += piece
                if len(content) > MAX_RESPONSE_BYTES:
                    break
        except Exception as error:
            raise openai.APIConnectionError(request=raw.http_request) from error
        if len(content) > MAX_RESPONSE_BYTES:
            raise Unjudged(f"{self.base_url} answered with more than {MAX_RESPONSE_BYTES >> 20} MiB")
        return bytes(content)

    def _parameters(self, ask: Ask, form: RequestForm) -> dict[str, Any]:
        """Return all request parameters by name."""
        messages: Sequence[Mapping[str, str]] = ask.messages
        if ask.schema is not None and form.level != "json_schema":
            messages = add_schema_instruction(ask.messages, ask.schema)
        parameters = {
            "temperature": self.temperature,
            "seed": self.seed,
            "logprobs": True if ask.logprobs else None,
            "top_logprobs": min(ask.logprobs, form.top) or None,
            "response_format": make_response_format(ask.name, ask.schema, form.level),
        }
        supported = {
            name: value for name, value in parameters.items() if value is not None and name not in form.without
        }
        if form.limit is not None:
            supported[form.limit] = self.max_tokens * form.token_factor
        return {"model": self.model, "messages": [dict(message) for message in messages], **supported}

    def _check_complete(self, completion: Completion, form: RequestForm, ask: Ask) -> Completion:
        """Return the completion. Raises `CutOff` if a reasoning model used up its tokens before it replied.

        Such a reply has a usage that counts reasoning tokens, contains unfinished reasoning, or is empty.
        """
        counted = completion.usage is not None and completion.usage.details.get(REASONING_TOKENS, 0) > 0
        text = completion.text.lstrip()
        has_reasoning = counted or not text or (text.startswith("<think>") and "</think>" not in text)
        if completion.finish != "length" or not has_reasoning:
            return completion
        may_retry = self._capabilities.raise_token_factor(form)
        raise CutOff(
            f"{self.where} reached the limit of {self.max_tokens * form.token_factor} tokens while reasoning"
            f"{'' if may_retry else '; increase max_tokens'}",
            completion.text,
            usage=completion.usage,
            again=may_retry,
        )


async def load_client() -> None:
    """Import openai's client on a thread before any deadline starts, as the import takes 1 to 2 seconds."""
    await asyncio.shield(
        get_loop_singleton(
            load_client, lambda: asyncio.ensure_future(run_in_thread(lambda: import_module("openai.resources.chat")))
        )
    )


@dataclass(slots=True)
class _PooledClient:
    """Client, and the number of its calls in progress."""

    client: AsyncOpenAI
    calls: int = 0


class _ClientPool:
    """Pool of one client per endpoint and key. Beyond `MAX_CLIENTS`, the least recently used idle ones are closed."""

    def __init__(self) -> None:
        self._clients: OrderedDict[tuple[str, str | None], _PooledClient] = OrderedDict()

    @asynccontextmanager
    async def client(self, base_url: str, key: str | None) -> AsyncIterator[AsyncOpenAI]:
        pooled = self._get_pooled(base_url, key)
        pooled.calls += 1
        try:
            yield pooled.client
        finally:
            pooled.calls -= 1
            if len(self._clients) > MAX_CLIENTS:
                await asyncio.shield(self._close_idle())

    def _get_pooled(self, base_url: str, key: str | None) -> _PooledClient:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if (base_url, key) not in self._clients:
            http = DefaultAsyncHttpxClient(follow_redirects=False)
            client = AsyncOpenAI(base_url=base_url, api_key=key or _PLACEHOLDER_KEY, max_retries=0, http_client=http)
            self._clients[base_url, key] = _PooledClient(client)
        self._clients.move_to_end((base_url, key))
        return self._clients[base_url, key]

    async def _close_idle(self) -> None:
        idle = [name for name, pooled in self._clients.items() if not pooled.calls]
        for pooled in [self._clients.pop(name) for name in idle[: max(0, len(self._clients) - MAX_CLIENTS)]]:
            await pooled.client.close()

    async def aclose(self) -> None:
        for pooled in self._clients.values():
            await pooled.client.close()


MAX_ENDPOINTS = 256  # maximum pairs of an endpoint and a model
MAX_REFUSED_SCHEMAS = 64  # maximum number per endpoint and model
MAX_TOKEN_FACTOR = 16  # maximum factor of `max_tokens` for reasoning models
TOKEN_FACTOR_STEP = 4  # factor of each increase
TOP_LOGPROBS_LEVELS = (20, 5)  # alternatives per token: OpenAI supports 20, other endpoints 5
SCHEMA_LEVELS = ("json_schema", "json_object", "words")
TOKEN_LIMIT_PARAMETERS = ("max_completion_tokens", "max_tokens")

_REFUSAL_STATUSES = frozenset({400, 403, 404, 422, 500, 501})  # statuses with which servers refuse a parameter
_PARAMETER_NAMES = {  # terms in error messages, and the parameters that they mean
    **{
        name: name
        for name in (*TOKEN_LIMIT_PARAMETERS, "temperature", "seed", "logprobs", "top_logprobs", "response_format")
    },
    "json_schema": "response_format",
    "json_object": "response_format",
    "structured output": "response_format",
    "structured outputs": "response_format",
    "grammar": "response_format",
}
_PARAMETER_PATTERN = re.compile(
    rf"(?<!\w)(?:{'|'.join(sorted(_PARAMETER_NAMES, key=len, reverse=True))})(?!\w)", re.IGNORECASE
)
_SUGGESTION_PATTERN = re.compile(r"\buse\b[^.;]*\binstead\b|\binstead of\b", re.IGNORECASE)
_TOO_MANY_TOKENS = re.compile(
    r"too (?:large|many|long|high|big)|at most|maximum|exceed|context (?:length|size)", re.IGNORECASE
)
_INVALID_SCHEMA = re.compile(r"invalid[ _](?:json[ _])?schema|grammar|unsupported (?:keyword|schema)", re.IGNORECASE)
_OMISSION_NOTES = {"temperature": "a temperature", "seed": "a seed", "logprobs": "log-probabilities"}


@dataclass(frozen=True, slots=True)
class RequestForm:
    """Form of a request: omitted parameters, level of schema support, and name of the token limit."""

    limit: str | None = "max_tokens"
    without: frozenset[str] = frozenset()
    level: str = "json_schema"
    top: int = TOP_LOGPROBS_LEVELS[0]
    token_factor: int = 1  # factor of `max_tokens`, for reasoning models
    is_schema_refused: bool = False  # True if the endpoint refuses the schema of this question, but not all schemas

    def refused_by(self, error: APIStatusError, sent: Mapping[str, Any]) -> RequestForm | None:
        """Return the form of the next request, which omits or replaces the parameter that an error names. Return None if
        the error names no such parameter.
        """
        name = _find_named_parameter(error, sent) if error.status_code in _REFUSAL_STATUSES else None
        if name is None:
            return None
        if name in TOKEN_LIMIT_PARAMETERS:
            if _TOO_MANY_TOKENS.search(_get_error_text(error)):
                return None
            excluded = {self.limit, *self.without}
            other = next((parameter for parameter in TOKEN_LIMIT_PARAMETERS if parameter not in excluded), None)
            return replace(self, limit=other, without=self.without | {self.limit or ""})
        if name == "response_format":
            is_invalid = self.level == SCHEMA_LEVELS[0] and bool(_INVALID_SCHEMA.search(_get_error_text(error)))
            lower = SCHEMA_LEVELS[min(SCHEMA_LEVELS.index(self.level) + 1, len(SCHEMA_LEVELS) - 1)]
            return replace(self, level=lower, is_schema_refused=self.is_schema_refused or is_invalid)
        if name == "top_logprobs" and self.top > TOP_LOGPROBS_LEVELS[-1]:
            return replace(self, top=TOP_LOGPROBS_LEVELS[-1])
        if name in ("logprobs", "top_logprobs"):
            return replace(self, without=self.without | {"logprobs", "top_logprobs"})
        return replace(self, without=self.without | {name})

    def notes(self, ask: Ask, completion: Completion) -> tuple[str, ...]:
        """Return notes about everything that the request omitted."""
        left_out = [f"asked without {note}" for name, note in _OMISSION_NOTES.items() if self._lacks(name, ask)]
        if ask.logprobs and not self._lacks("logprobs", ask) and not completion.logprobs:
            left_out.append("no log-probabilities came")
        if ask.logprobs > self.top and completion.logprobs:
            left_out.append(f"asked for {self.top} alternatives per token instead of {ask.logprobs}")
        if ask.schema is not None and self.level != SCHEMA_LEVELS[0]:
            form = "as json_object" if self.level == "json_object" else "in words alone"
            left_out.append(f"asked for JSON {form}: the schema was refused")
        if self.limit is None:
            left_out.append("asked without a token limit")
        return tuple(left_out)

    def _lacks(self, name: str, ask: Ask) -> bool:
        return name in self.without and (name != "logprobs" or ask.logprobs > 0)


class EndpointCapabilities:
    """Detected capabilities of one endpoint and model."""

    def __init__(self, base_url: str) -> None:
        host = urlsplit(base_url).hostname or ""
        is_openai = host == "api.openai.com" or host.endswith((".openai.azure.com", ".azure.com"))
        self._form = RequestForm(
            limit=TOKEN_LIMIT_PARAMETERS[0] if is_openai else TOKEN_LIMIT_PARAMETERS[1]
        )  # other servers may ignore the newer name, `max_completion_tokens`
        self._max_token_factor = MAX_TOKEN_FACTOR
        self._refused_schemas: dict[bytes, None] = {}  # refused although the endpoint supports other schemas

    @property
    def token_factor(self) -> int:
        """Return the factor by which `max_tokens` is multiplied."""
        return self._form.token_factor

    def form(self, schema: Mapping[str, JSON] | None) -> RequestForm:
        """Return the form of a request with that schema."""
        if schema is None or orjson.dumps(schema) not in self._refused_schemas:
            return self._form
        level = SCHEMA_LEVELS[1] if self._form.level == SCHEMA_LEVELS[0] else self._form.level
        return replace(self._form, level=level, is_schema_refused=True)

    def record_success(self, form: RequestForm, schema: Mapping[str, JSON] | None) -> None:
        """Record that a call in that form succeeded."""
        level = form.level
        if form.is_schema_refused and schema is not None:
            self._refused_schemas[orjson.dumps(schema)] = None
            if len(self._refused_schemas) > MAX_REFUSED_SCHEMAS:
                del self._refused_schemas[next(iter(self._refused_schemas))]
            if level == SCHEMA_LEVELS[1]:
                level = self._form.level
        self._form = replace(
            form,
            level=max(level, self._form.level, key=SCHEMA_LEVELS.index),
            without=self._form.without | form.without,
            top=min(form.top, self._form.top),
            token_factor=max(form.token_factor, self._form.token_factor),
            is_schema_refused=False,
        )

    def raise_token_factor(self, form: RequestForm) -> bool:
        """Raise the token factor. Return whether the next call gets more tokens than a call in that form."""
        factor = min(max(self._form.token_factor, form.token_factor * TOKEN_FACTOR_STEP), self._max_token_factor)
        self._form = replace(self._form, token_factor=factor)
        return factor > form.token_factor and form.limit is not None

    def lower_token_factor(self, form: RequestForm, error: APIStatusError) -> None:
        """Lower the token factor if the endpoint refused the number of tokens."""
        if form.token_factor > 1 and _TOO_MANY_TOKENS.search(_get_error_text(error)):
            self._max_token_factor = form.token_factor // TOKEN_FACTOR_STEP
            self._form = replace(self._form, token_factor=min(self._form.token_factor, self._max_token_factor))


_capabilities: OrderedDict[tuple[str, str], EndpointCapabilities] = OrderedDict()


def get_capabilities(base_url: str, model: str) -> EndpointCapabilities:
    """Return the detected capabilities of a model at an endpoint."""
    known = _capabilities.setdefault((base_url, model), EndpointCapabilities(base_url))
    try:
        _capabilities.move_to_end((base_url, model))
        if len(_capabilities) > MAX_ENDPOINTS:
            _capabilities.popitem(last=False)
    except KeyError:  # another thread removed the entry
        pass
    return known


def clear_capabilities() -> None:
    """Delete all detected capabilities."""
    _capabilities.clear()


def _find_named_parameter(error: APIStatusError, sent: Mapping[str, Any]) -> str | None:
    """Return the sent parameter that an error names: in its field `param`, else the first one in its message."""
    field = str(error.param or "").partition(".")[0]
    if field in sent and field in _PARAMETER_NAMES:
        return field
    model = rf"(?<!\w){re.escape(str(sent.get('model')))}(?!\w)"
    text = _SUGGESTION_PATTERN.sub(" ", re.sub(model, " ", _get_error_text(error)))
    named = (_PARAMETER_NAMES[match.group().lower()] for match in _PARAMETER_PATTERN.finditer(text))
    return next((name for name in named if name in sent), None)


def _get_error_text(error: APIStatusError) -> str:
    return f"{error.message} {error.body}"


_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def make_response_format(name: str, schema: Mapping[str, JSON] | None, level: str) -> dict[str, Any] | None:
    """Return the parameter `response_format`, or None if only the messages describe the reply."""
    if schema is None or level == "words":
        return None
    if level == "json_object":
        return {"type": "json_object"}
    typed_schema = add_enum_types(schema)
    named = _INVALID_NAME_CHARACTERS.sub("_", name)[:64] or "reply"
    return {
        "type": "json_schema",
        "json_schema": {"name": named, "schema": typed_schema, "strict": is_strict(typed_schema)},
    }


def add_enum_types(schema: Any) -> Any:
    """Return the schema with a type for each enum, as OpenAI requires."""
    if isinstance(schema, list | tuple):
        return [add_enum_types(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    typed = {name: value if name == "enum" else add_enum_types(value) for name, value in schema.items()}
    labels = typed["enum"] if isinstance(typed.get("enum"), list | tuple) else ()
    kinds = sorted({_JSON_TYPES.get(type(label), "object") for label in labels})
    if "type" not in typed and kinds:
        typed = {"type": kinds[0] if len(kinds) == 1 else kinds, **typed}
    return typed


def is_strict(schema: Any) -> bool:
    """Return whether every object has exactly its required properties, a condition of strict decoding."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    closed = schema.get("additionalProperties") is False
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        names = set(properties) if isinstance(properties, Mapping) else set()
        if not closed or names != set(schema.get("required") or ()):
            return False
    return all(is_strict(value) for name, value in schema.items() if name != "enum")
