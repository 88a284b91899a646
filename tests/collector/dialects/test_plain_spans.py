"""Spans of programs that know nothing of models: FastAPI, requests, a step of one's own. From their own bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collector.dialects.sent import stored, traces
from spanwise.collector.records import Run, Trace


@pytest.fixture(scope="module")
def sent() -> Iterator[Trace]:
    with stored("plain/fastapi") as store:
        (trace,) = traces(store)
        yield trace


def named(trace: Trace, name: str) -> Run:
    (run,) = [run for run in trace.runs if run.name == name]
    return run


def test_nothing_is_made_up(sent):
    for run in sent.runs:
        assert (run.kind, run.inputs, run.outputs, run.documents) == ("unknown", None, None, ())
        assert (run.model, run.usage, run.cost, run.session_id, run.user_id) == (None, None, None, None, None)
        assert (run.tags, run.metadata) == ((), {})
        assert (run.project, run.environment) == ("shop", "prod")


def test_names_kinds_and_the_tree_are_kept(sent):
    route = named(sent, "GET /parcels/{number}")
    client = next(run for run in sent.runs if run.span_id == route.parent_id)
    assert (client.name, client.attributes["otel.span.kind"], client.parent_id) == ("GET", "client", sent.root.span_id)
    assert route.attributes["otel.span.kind"] == "server"
    assert route.attributes["otel.scope.name"] == "opentelemetry.instrumentation.fastapi"
    assert sent.children(route.span_id)[0].name == "POST"


def test_attributes_are_kept_as_they_came(sent):
    route = named(sent, "GET /parcels/{number}")
    assert (route.attributes["http.route"], route.attributes["http.status_code"]) == ("/parcels/{number}", 200)
    assert route.attributes["http.method"] == "GET"


def test_an_error_says_what_was_raised(sent):
    broken = named(sent, "GET /broken")
    assert (broken.status, broken.error) == ("error", "ValueError: no such parcel")
    assert broken.events[0].name == "exception"
    assert sent.root.status == "unset"
