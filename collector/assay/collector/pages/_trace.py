"""One trace: the waterfall of its runs, one run in full, all feedback, and a form for a person's own."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from assay.collector.errors import NotFound, Refused
from assay.collector.pages import _feedback, _payload, _render, _tree
from assay.collector.pages._experiments import known_examples
from assay.collector.records import JSON, Example, Experiment, Feedback, Run, Target, Trace, TraceSummary
from assay.collector.stores import Store

_LARGEST_FORM = 64 * 1024
_PARTS = ("inputs", "outputs", "documents", "attributes", "metadata", "resource", "events")


def trace(store: Store, request: Request) -> Response:
    """`GET /traces/{trace_id}?run={span_id}`; the root run is shown if none is named."""
    found = store.trace(request.path_params["trace_id"])
    run = chosen(found, request.query_params.get("run"))
    rows = _tree.rows(found)
    start, end = _tree.span_of(found.runs)
    experiment = experiment_of(store, found)
    return _render.html(
        request,
        "trace.html",
        trace=found,
        run=run,
        rows=rows[: _tree.SHOWN],
        hidden=max(0, len(rows) - _tree.SHOWN),
        summary=summary(store, found),
        duration_ns=end - start,
        own=_feedback.voices(item for item in found.feedback if item.target.span_id is None),
        of_run=_feedback.voices(item for item in found.feedback if item.target.span_id == run.span_id),
        experiment=experiment,
        example=example_of(store, found, experiment),
        decisions=store.decisions(trace_id=found.trace_id).items,
        links=[link for link in run.links if link.trace_id != found.trace_id],
    )


def experiment_of(store: Store, trace: Trace) -> Experiment | None:
    """The experiment that the trace belongs to; None for live traffic, and when it is no longer there."""
    try:
        return store.experiment(trace.root.experiment_id) if trace.root.experiment_id else None
    except NotFound:
        return None


def example_of(store: Store, trace: Trace, experiment: Experiment | None) -> Example | None:
    """The example that the trace answers, as the experiment saw it."""
    examples = known_examples(store, experiment) if experiment else {}
    return examples.get(trace.root.example_id or "", (None, 0))[0]


def chosen(trace: Trace, span_id: str | None) -> Run:
    """The run named, else the root. Raises `NotFound`."""
    if span_id is None:
        return trace.root
    found = next((run for run in trace.runs if run.span_id == span_id), None)
    if found is None:
        raise NotFound(f"trace {trace.trace_id!r} has no run {span_id!r}")
    return found


def summary(store: Store, trace: Trace) -> TraceSummary | None:
    """The same sums as in the list of traces; None while the trace is being deleted."""
    return next(iter(store.traces(trace_ids=(trace.trace_id,), limit=1)), None)


def payload(store: Store, request: Request) -> Response:
    """`GET /traces/{trace_id}/runs/{span_id}/{part}`: one whole value, as plain text."""
    part = request.path_params["part"]
    if part not in _PARTS:
        raise NotFound(f"a run has no part {part!r}; there are {', '.join(_PARTS)}")
    run = chosen(store.trace(request.path_params["trace_id"]), request.path_params["span_id"])
    value = _plain(getattr(run, part))
    text = value if isinstance(value, str) else _payload.as_json(value)
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=_render.HEADERS)


def _plain(value: object) -> JSON:
    if isinstance(value, tuple):
        return [{name: getattr(item, name) for name in item.__dataclass_fields__} for item in value]
    return value


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a small form sent by one of our own pages. Raises `Refused` for any other."""
    if not from_here(request):
        raise Refused("this form can be sent from Assay's own pages only")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM:
            raise Refused(f"the form holds more than {_LARGEST_FORM:,} bytes")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20))


def from_here(request: Request) -> bool:
    """Whether the browser says that one of our pages sent this; programs that say nothing about it may pass."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def add_feedback(store: Store, request: Request, form: Mapping[str, str]) -> Response:
    """`POST /traces/{trace_id}/feedback`, then back to the trace."""
    trace_id = request.path_params["trace_id"]
    store.add_feedback([human(trace_id, form)])
    run = f"?run={_render.path(form['run'])}" if form.get("run") else ""
    return RedirectResponse(f"/traces/{_render.path(trace_id)}{run}#feedback", 303, headers=_render.HEADERS)


def human(trace_id: str, form: Mapping[str, str]) -> Feedback:
    """What a person filled in: a key, and a score or a label. Raises `Refused` naming the field that is wrong."""
    key, value = form.get("key", "").strip(), form.get("value", "").strip()
    if not key or not value:
        raise Refused("feedback needs a key and a value: a number, true or false, or a label such as good")
    score, label = read_value(value)
    try:
        return Feedback(
            target=Target(trace_id=trace_id, span_id=form.get("span") or None),
            key=key,
            score=score,
            label=label,
            comment=form.get("comment", "").strip() or None,
            source="human",
            author=form.get("author", "").strip() or None,
        )
    except ValueError as error:
        raise Refused(str(error)) from None


def read_value(text: str) -> tuple[float | bool | None, str | None]:
    """A form's value as (score, label): a number or a truth value is a score, everything else a label."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true", None
    try:
        return float(text), None
    except ValueError:
        return None, text
