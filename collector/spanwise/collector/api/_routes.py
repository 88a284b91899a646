"""The table of routes: which request is answered by what, and what a key must allow that sends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args

from fastapi import FastAPI

from spanwise.collector._verbs import Call, Control, Needs, Traces, call_of, calls
from spanwise.collector.api import _extra, _health, _langfuse
from spanwise.collector.api._endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Row:
    """One route. `takes` and `answers` are the types of its bodies for OpenAPI, None where there is no JSON."""

    method: str
    path: str
    needs: Needs
    handler: Callable[..., Any]  # as FastAPI calls it
    name: str
    tag: str
    says: str
    takes: Any = None
    answers: Any = None
    media: str = ""  # the type of an answer that is no JSON


def row(call: Call, run: Callable[..., Any] | None = None) -> Row:
    """The route of a verb of the store; or of `run`, a function whose first argument is the store."""
    handler, takes = Endpoint(call, run), call.takes
    if call.listed and call.listed is call.whole:
        [item] = get_args(takes)
        takes = takes | item if is_dataclass(item) else takes  # one record may be sent as it is
    return Row(call.method, call.path, call.needs, handler, call.name, call.tag, call.says, takes, call.answers)


def verbs(table: type) -> Iterator[Row]:
    """The routes of a table's verbs. Where the API does more than the store, the `INSTEAD` of the verb answers."""
    for verb in calls(table):
        if run := INSTEAD.get(verb.name):
            more = call_of(
                run, f"{verb.method} {verb.path}", tag=verb.tag, needs=verb.needs, count=verb.count, batch=verb.batch
            )
            yield row(more, run)
        else:
            yield row(verb)


def beside(run: Callable[..., Any], request: str, tag: str) -> Row:
    """The route of what is no verb of the store."""
    return row(call_of(run, request, tag=tag), run)


def health(path: str, needs: Needs, handler: Callable[..., Any], answers: Any = None, media: str = "") -> Row:
    """The route of what needs no record."""
    says = handler.__doc__ or ""
    return Row("GET", path, needs, handler, handler.__name__, "health", says, answers=answers, media=media)


def langfuse(path: str, handler: Callable[..., Any], takes: Any) -> Row:
    """The route of what Langfuse's SDKs send, by the keys that send spans."""
    name, says = f"langfuse_{handler.__name__}", handler.__doc__ or ""
    return Row("POST", path, "ingest", handler, name, "feedback", says, takes)


INSTEAD: dict[str, Callable[..., Any]] = {
    "amend": _extra.amend,
    "append": _extra.append,
    "add_amendments": _extra.add_amendments,
    "add_feedback": _extra.add_feedback,
    "add_running": _extra.add_running,
    "book": _extra.book,
    "delete_experiment": _extra.delete_experiment,
    "settle": _extra.settle,
}
ROUTES = (
    health("/healthz", "open", _health.healthz, dict[str, str | int | None]),
    health("/readyz", "open", _health.readyz, dict[str, bool]),
    health("/metrics", "read", _health.metrics, media=_health.TEXT),
    *verbs(Traces),
    beside(_extra.append_runs, "POST /api/runs", "traces"),
    beside(_extra.delete_trace, "DELETE /api/traces/{trace_id}", "traces"),
    langfuse("/api/public/scores", _langfuse.scores, list[_langfuse.Score] | _langfuse.Score),
    langfuse("/api/public/ingestion", _langfuse.ingestion, _langfuse.Batch),
    *verbs(Control),
    beside(_extra.describe_dataset, "PATCH /api/datasets/{name:path}", "datasets"),
)


def install(app: FastAPI, routes: Iterable[Row]) -> None:
    """Have an application answer these requests."""
    for row in routes:
        app.add_api_route(
            row.path, row.handler, methods=[row.method], name=row.name, tags=[row.tag], description=row.says
        )
        if row.tag == "health":  # probes ask so
            app.add_api_route(row.path, row.handler, methods=["HEAD"], include_in_schema=False)
