"""HTTP client store: transport, requests in batches and pages, errors as store errors."""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload
from urllib.parse import quote

import httpx

from spanwise.collector import record_encoding
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooLarge, TooSlow, Unavailable
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.operations import (
    MAX_BATCH_ITEMS,
    PATH_PLACEHOLDER,
    Argument,
    ControlOperations,
    Operation,
    TraceOperations,
)
from spanwise.collector.records import Feedback, Page, Run, Target, TraceSummary
from spanwise.collector.stores.flat_tables import build_frame
from spanwise.collector.stores.store_interfaces import iterate_traces, make_human_feedback
from spanwise.tracer.http_connections import (
    CERTIFICATE_VARIABLES,
    find_trusted_authorities,
    find_url_problem,
    suppress_instrumentation,
)

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")
Params = Sequence[tuple[str, Any]]
# other statuses below 500 become `Refused`
STATUS_ERRORS = {403: Forbidden, 404: NotFound, 413: TooLarge, 422: TooSlow}
_CERTIFICATE_HINT = f"correct or unset the variable that names them ({', '.join(CERTIFICATE_VARIABLES)})"
MAX_BODY_BYTES = 32 * 1024 * 1024  # limit of servers for one body
REQUEST_TIMEOUT, UNLIMITED_TIMEOUT = httpx.Timeout(60.0, connect=5.0), httpx.Timeout(None, connect=5.0)


class HTTPTransport:
    """Pool of connections to one server, kept open. Thread-safe.

    Trusts the certificate authorities that `spanwise.tracer.http_connections` finds. Raises `Refused` for a malformed
    URL or an unusable file of authorities.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        if problem := find_url_problem(url):
            raise Refused(f"invalid URL of the store {url!r}: {problem}; expected a URL such as http://127.0.0.1:4318")
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=self.url, headers=headers, trust_env=False, verify=_tls_verification(self.url)
        )
        weakref.finalize(self, self._client.close)  # closes the sockets even if nobody closes the client

    @overload
    def ask(
        self, kind: type[T], method: str, path: str, params: Params = (), body: Any = None, *, limit_time: bool = True
    ) -> T: ...
    @overload
    def ask(
        self, kind: Any, method: str, path: str, params: Params = (), body: Any = None, *, limit_time: bool = True
    ) -> Any: ...
    def ask(
        self, kind: Any, method: str, path: str, params: Params = (), body: Any = None, *, limit_time: bool = True
    ) -> Any:
        """Send a request and decode the response as `kind`. Parameters that are None are left out.

        Without `limit_time`, the request has no time limit. Raises `StoreError`.
        """
        timeout = REQUEST_TIMEOUT if limit_time else UNLIMITED_TIMEOUT
        return record_encoding.decode(kind, self._request(method, path, params, body, timeout).content)

    def text(self, path: str) -> str:
        """Return a plain text response. Raises `StoreError`."""
        return self._request("GET", path).text

    def _request(
        self, method: str, path: str, params: Params = (), body: Any = None, timeout: httpx.Timeout = REQUEST_TIMEOUT
    ) -> httpx.Response:
        content = None if body is None else record_encoding.encode(body)
        if content is not None and len(content) > MAX_BODY_BYTES:
            raise TooLarge(
                f"the request body has {len(content):,} bytes; the maximum is {MAX_BODY_BYTES:,}; send fewer records at once"
            )
        query = [
            (name, (str(value).lower() if isinstance(value, bool) else value))
            for name, value in params
            if value is not None
        ]
        try:
            with suppress_instrumentation():
                response = self._client.request(method, path, params=query, content=content, timeout=timeout)
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} does not answer: {error or type(error).__name__}") from error
        except RuntimeError as error:  # httpx raises `RuntimeError` if the client is closed
            raise Closed(f"the client of {self.url} is closed") from error
        if not response.is_success:
            raise _response_error(self.url, response)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _tls_verification(url: str) -> ssl.SSLContext | bool:
    authorities = find_trusted_authorities()
    if authorities is None or not url.startswith("https://"):
        return True
    folder = os.path.isdir(authorities)
    try:
        return ssl.create_default_context(
            cafile=None if folder else authorities, capath=authorities if folder else None
        )
    except OSError as error:
        raise Refused(
            f"the certificate authorities in {authorities!r} cannot be read: {error}; {_CERTIFICATE_HINT}"
        ) from error


def quote_path_segment(name: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(name, safe="")


def _response_error(url: str, response: httpx.Response) -> StoreError:
    try:
        content = response.json()
    except ValueError:
        content = None
    message = content.get("message") if isinstance(content, dict) else None
    message = message or f"{url} answered {response.status_code}: {response.text[:200]!r}"
    if response.status_code in (429, 502, 503, 504):
        value = response.headers.get("retry-after", "")
        return Unavailable(message, float(value) if value.isdigit() else 1.0)
    if response.status_code >= 500:
        return StoreError(message)
    return STATUS_ERRORS.get(response.status_code, Refused)(message)


TraceBatch: TypeAlias = tuple[Sequence[Run], Sequence[Feedback]]


def split_by_trace(runs: Sequence[Run], feedback: Sequence[Feedback], size: int) -> Iterator[TraceBatch]:
    """Yield batches of about `size` runs and feedback rows, each of complete traces. Empty input yields no batch.

    A trace that is larger than a batch is split. Its root comes last, together with the feedback, because a trace is
    visible only once its root is stored.
    """
    if len(runs) + len(feedback) <= size:
        if runs or feedback:
            yield runs, feedback
        return
    batch_runs: list[Run] = []
    batch_feedback: list[Feedback] = []
    for trace_runs, trace_feedback in _group_by_trace(runs, feedback):
        size_so_far = len(batch_runs) + len(batch_feedback)
        if size_so_far and size_so_far + len(trace_runs) + len(trace_feedback) > size:
            yield batch_runs, batch_feedback
            batch_runs, batch_feedback = [], []
        while len(trace_runs) > size:
            yield trace_runs[:size], ()
            trace_runs = trace_runs[size:]
        batch_runs += trace_runs
        batch_feedback += trace_feedback
    yield batch_runs, batch_feedback


def split_in_half(runs: Sequence[Run], feedback: Sequence[Feedback]) -> Iterator[TraceBatch]:
    """Split a batch in two, each with complete traces. A batch that cannot be split is yielded unchanged.

    A batch of one trace is split between its runs; the root comes last, with the feedback.
    """
    traces = list(_group_by_trace(runs, feedback))
    if len(traces) > 1:
        for half in (traces[: len(traces) // 2], traces[len(traces) // 2 :]):
            yield (
                [run for trace_rows, _ in half for run in trace_rows],
                [row for _, trace_rows in half for row in trace_rows],
            )
        return
    (ordered, rows), middle = traces[0], len(runs) // 2
    if middle:
        yield ordered[:middle], ()
        yield ordered[middle:], rows
    elif ordered and rows:  # the store accepts feedback before its run
        yield (), rows
        yield ordered, ()
    elif len(rows) > 1:
        yield (), rows[: len(rows) // 2]
        yield (), rows[len(rows) // 2 :]
    else:
        yield ordered, rows


def _group_by_trace(runs: Sequence[Run], feedback: Sequence[Feedback]) -> Iterator[tuple[list[Run], list[Feedback]]]:
    """Group runs and feedback by trace id (None for feedback on no trace), in order of arrival, each root last."""
    by_trace: dict[str | None, tuple[list[Run], list[Feedback]]] = {}
    for run in sorted(runs, key=lambda run: run.parent_id is None):
        by_trace.setdefault(run.trace_id, ([], []))[0].append(run)
    for outcome in feedback:
        by_trace.setdefault(outcome.target.trace_id, ([], []))[1].append(outcome)
    return iter(by_trace.values())


def send_operation(
    transport: HTTPTransport, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Send an operation's request. If a list is the only argument, a long list is split into several requests.

    Raises `StoreError`.
    """
    try:
        bound = operation.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{operation.name}() {error}") from None  # same message as for a call of a Python function
    bound.apply_defaults()
    values = bound.arguments
    if operation.is_paged and (values.get("limit") or 0) > operation.max_limit:
        return _read_pages(transport, operation, values)
    if operation.list_argument is None:
        return _send_once(transport, operation, values)
    name = operation.list_argument.name
    responses = [
        response
        for batch in split_batches(values[name], operation.batch)
        for response in _send_halves(transport, operation, name, batch)
    ]
    if operation.count:
        return sum(responses)
    return None if operation.returns is None else list(chain.from_iterable(responses))


def _read_pages(transport: HTTPTransport, operation: Operation, values: Mapping[str, Any]) -> Page[Any]:
    """Read a page that is larger than the server's maximum by sending several requests."""
    items: list[Any] = []
    cursor, left = values.get("cursor"), values["limit"]
    while True:
        page = _send_once(transport, operation, {**values, "cursor": cursor, "limit": min(left, operation.max_limit)})
        items += page.items
        cursor, left = page.next, left - len(page.items)
        if cursor is None or left <= 0:
            return replace(page, items=tuple(items))


def _send_halves(transport: HTTPTransport, operation: Operation, name: str, batch: Sequence[Any]) -> list[Any]:
    """Send a batch; if it is too large for one request, send its halves. Return all responses."""
    try:
        return [_send_once(transport, operation, {name: batch})]
    except TooLarge:
        if len(batch) < 2:
            raise
        middle = len(batch) // 2
        halves = batch[:middle], batch[middle:]
        return [response for half in halves for response in _send_halves(transport, operation, name, half)]


def split_batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of a sequence, each of `size` items."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _send_once(transport: HTTPTransport, operation: Operation, values: Mapping[str, Any]) -> Any:
    query: list[tuple[str, Any]] = []
    for argument in operation.arguments:
        if argument.place == "filter":
            conditions = next(
                (values[other.name] for other in operation.arguments if other.place == "conditions"), None
            )
            query.append((argument.alias, _to_json_text(extend_filter(values[argument.name], conditions))))
        elif argument.place == "query":
            query += [(argument.alias, value) for value in _query_texts(argument, values[argument.name])]
    path = PATH_PLACEHOLDER.sub(lambda match: quote_path_segment(values[match[1]]), operation.path)
    body: Any = {field.name: values[field.name] for field in operation.body_fields} or None
    if operation.body_argument:
        body = values[operation.body_argument.name]
    kind = Any if operation.returns is None else operation.response_type
    try:
        response: Any = transport.ask(kind, operation.method, path, query, body, limit_time=operation.client_timeout)
    except NotFound:
        if operation.count and operation.returns is bool:  # 404 means that there was nothing to delete
            return False
        raise
    if operation.count:
        return operation.returns(response[operation.count])
    return None if operation.returns is None else response


def _query_texts(argument: Argument, value: Any) -> Sequence[Any]:
    """Return the values to send under an argument's name in a query string."""
    if argument.is_list:
        return list(value)
    if value is None:
        return [""] if argument.empty_is_none else []
    return [_to_json_text(value) if argument.record else value]


def _to_json_text(value: Any) -> str:
    return record_encoding.encode(value).decode()


class HTTPStore(TraceOperations, ControlOperations):
    """Store over the API of a collector at `url`; implements `spanwise.collector.stores.Store`.

    It connects on the first call. Raises `Unavailable` if the server cannot be reached, and `Refused` for calls that
    the server refuses.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._transport = HTTPTransport(url, api_key)

    def __repr__(self) -> str:
        return f"HTTPStore({self.url!r})"

    def __enter__(self) -> HTTPStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """Return the URL of the server."""
        return self.url

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        """Store runs and feedback as `TraceStore` does, a large batch in several requests.

        Runs of one trace go into one request, unless the trace itself is too large.
        """
        for together in split_by_trace(runs, feedback, MAX_BATCH_ITEMS):
            self._append(together)

    def _append(self, batch: TraceBatch) -> None:
        """Store a batch; if it is too large for one request, split it in halves, down to single runs."""
        try:
            super().append(*batch)
        except TooLarge:
            halves = list(split_in_half(*batch))
            if len(halves) < 2:
                raise
            for half in halves:
                self._append(half)

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """Yield all traces that pass a filter, page by page: see `TraceStore`."""
        return iterate_traces(self.traces, extend_filter(filter, conditions))

    def to_pandas(self, table: str, filter: Filter | None = None, **conditions: object) -> pandas.DataFrame:
        """Return all rows of a flat table as a DataFrame: see `TraceStore`."""
        return build_frame(self, table, extend_filter(filter, conditions))

    def feedback(
        self,
        target: str | Target,
        key: str,
        score: float | bool | None = None,
        *,
        label: str | None = None,
        comment: str | None = None,
        author: str | None = None,
        span_id: str | None = None,
    ) -> Feedback:
        """Attach human feedback to a trace (by its id) or any other target, and return the stored feedback."""
        fields = {"label": label, "comment": comment, "author": author, "span_id": span_id}
        stored = make_human_feedback(target, key, score, **fields)
        self.add_feedback([stored])
        return stored

    def numbers(self) -> dict[str, float]:
        """Return the collector's metrics from /metrics, by name with labels."""
        lines = (line.rpartition(" ") for line in self._transport.text("/metrics").splitlines() if line[:1] != "#")
        return {name: float(value) for name, _, value in lines if name}

    def close(self) -> None:
        """Close the connections. Writes that have returned are durable."""
        self._transport.close()

    def _send(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return send_operation(self._transport, operation, args, kwargs)
