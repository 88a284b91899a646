"""`spanwise feedback`: add, list and delete feedback; where it is forwarded."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    WhereOption,
    build_filter,
    emit,
    error_console,
    open_store,
    print_line,
    print_note,
    print_table,
    shorten,
)
from spanwise.collector import formatting
from spanwise.collector.records import Feedback, Target

app = typer.Typer(
    help="Feedback on traces: add, list, delete; state of the destinations it is forwarded to.",
    no_args_is_help=True,
    epilog="Example: `spanwise feedback list --key thumbs_up`",
)

TraceId = Annotated[str, typer.Argument(help="Id of a trace.")]
OnTrace = Annotated[str | None, typer.Argument(help="Only feedback on this trace.")]
Ids = Annotated[list[str], typer.Argument(help="Feedback ids, as `list` shows them.")]
Key = Annotated[str, typer.Argument(help="Feedback key: correctness, thumbs_up, …")]
OnlyKey = Annotated[str | None, typer.Option(help="Only feedback with this key.")]
Value = Annotated[str, typer.Argument(help="A number, true or false, or any other text as a label.")]
Comment = Annotated[str | None, typer.Option(help="Reason for the value.")]
Author = Annotated[
    str | None, typer.Option(help="Name of the author; labels of different authors are kept separately.")
]
Span = Annotated[str | None, typer.Option(help="Target this span of the trace.")]
Limit = Annotated[int, typer.Option(help="Maximum number, newest first.")]
BOOLEAN_WORDS = {"true": True, "yes": True, "false": False, "no": False}


@app.command()
def add(
    trace: TraceId,
    key: Key,
    value: Value,
    comment: Comment = None,
    author: Author = None,
    span: Span = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add feedback to a trace. It replaces earlier feedback of the same author under the same key.

    Example: `spanwise feedback add 4bf92f3577b34da6a3ce929d0e0e4736 thumbs_up 1 --author ann --comment "just right"`
    """
    score, label = _parse_value(value)
    with open_store(at) as store:
        stored = store.feedback(trace, key, score, label=label, comment=comment, author=author, span_id=span)
        if not store.traces(trace_ids=(stored.target.trace_id or trace,), limit=1):
            print_note(f"trace {trace!r} has not arrived yet; the feedback is stored for it")
    if as_json:
        emit([asdict(stored)])
    else:
        text = f"{stored.key} = {value} on {trace} (feedback {stored.id})"
        print_line(text)


@app.command("list")
def list_(
    trace: OnTrace = None,
    key: OnlyKey = None,
    where: WhereOption = None,
    limit: Limit = 50,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List feedback of people and evaluators, newest first; with `--where`, only on matching traces.

    Example: `spanwise feedback list --key thumbs_up --where user=u-42`
    """
    target = None if trace is None else Target(trace_id=trace)
    with open_store(at) as store:
        feedbacks = list(store.feedbacks(build_filter(where), key=key, limit=limit, target=target))
    if as_json:
        emit(map(asdict, feedbacks))
    else:
        rows = []
        for feedback in feedbacks:
            target, author = feedback.target, feedback.author or feedback.evaluator or feedback.source
            id = target.trace_id or target.session_id or target.experiment_id or ""
            value = feedback.outcome if feedback.outcome != "score" else format_value(feedback)
            comment = shorten(feedback.error or feedback.comment or "")
            rows.append((id, feedback.key, value, author, comment, feedback.id))
        print_table(("trace", "key", "value", "by", "comment", "id"), rows)


@app.command()
def delete(ids: Ids, at: StoreOption = None) -> None:
    """Delete feedback by id.

    Example: `spanwise feedback delete 0c4e…`
    """
    with open_store(at) as store:
        removed = store.delete_feedback(ids)
    print_line(f"removed {removed} feedbacks")


def _parse_value(value: str) -> tuple[float | bool | None, str | None]:
    """Parse a value that the user typed into (score, label)."""
    if value.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[value.lower()], None
    try:
        return float(value), None
    except ValueError:
        return None, value


@app.command()
def outlets(at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show where feedback is forwarded (`spanwise serve --feedback-to`), how much waits, and the error of the last
    attempt.

    Example: `spanwise feedback outlets --store spanwise.db`
    """
    with open_store(at) as store:
        destinations = store.outlets()
    if as_json:
        emit(map(asdict, destinations))
        return
    if not destinations:
        error_console.print("no destination for feedback is configured; set one with spanwise serve --feedback-to URL")
        return
    rows = [
        (outlet.name, outlet.url, str(outlet.sent), str(outlet.waiting), str(outlet.dropped), outlet.error or "")
        for outlet in destinations
    ]
    print_table(["name", "url", "sent", "waiting", "refused", "last error"], rows)


def format_value(feedback: Feedback) -> str:
    """Format the score, or the label if there is no score."""
    return (feedback.label or "") if feedback.score is None else formatting.number(feedback.score)
