"""`spanwise doctor`: missing fields per sender and other problems of the collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    WhereOption,
    build_filter,
    console,
    emit,
    error_console,
    open_store,
    print_table,
)
from spanwise.collector.diagnostics.doctor_report import (
    DEFAULT_SPANS,
    EXPECTED_FIELDS,
    FieldCoverage,
    Sender,
    SenderReport,
    advised,
    count_stored_spans,
    find_problems,
    look,
)
from spanwise.collector.errors import StoreError
from spanwise.collector.filters import Filter
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import MAX_MESSAGE_LENGTH, escape_line

Since = Annotated[str | None, typer.Option(help="Only traces since then: 2h, 7d, or a date.")]
Spans = Annotated[int, typer.Option("--spans", min=1, max=1_000_000, help="Number of spans to examine, newest first.")]
MAX_SHOWN_ATTRIBUTES = 3  # unused attributes shown in the table


def doctor(
    where: WhereOption = None,
    since: Since = None,
    spans: Spans = DEFAULT_SPANS,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show per sender how many spans have inputs, outputs, documents, model, tokens and session, to find why evaluators
    skip.

    The report also lists unused attributes, suggestions for the sender, and other problems: dropped spans, clock
    skew, rules that no worker executes, refused data. It examines the latest spans of each project.

    Example: `spanwise doctor --where name=answer --since 1d`
    """
    wanted = build_filter(where, since=since)
    with open_store(at) as store:
        found = diagnose(store, wanted, spans)
    if as_json:
        emit([diagnosis_to_dict(found)])
    else:
        _print_diagnosis(found)


class Diagnosis:
    """Diagnosis of the senders: their report, the number of stored spans, and the problems found."""

    def __init__(self, seen: SenderReport, total: int | None, wrong: list[str]) -> None:
        self.seen, self.total, self.wrong = seen, total, wrong

    @property
    def looked_at(self) -> str:
        """Describe how much was read: "looked at the latest 5,000 spans of 1,204,331 in 812 traces"."""
        seen = self.seen
        if not seen.spans:
            return f"looked at all 0 spans: {self._none}"
        of = "" if self.total is None or seen.whole else f" of {self.total:,} stored"
        latest = "all" if seen.whole else "the latest"
        return (
            f"looked at {latest} {seen.spans:,} spans{of}, in {seen.traces:,} traces of {len(seen.senders):,} senders"
        )

    @property
    def _none(self) -> str:
        if self.total != 0:
            stored = "that may be seen" if self.total is None else f"of the {self.total:,} stored"
            return f"none {stored} passes the conditions"
        return "no spans have been received; send them to the address of `spanwise serve`, by default http://127.0.0.1:4318"


def diagnose(store: Store, filter: Filter, spans: int = DEFAULT_SPANS) -> Diagnosis:
    """Read the latest spans, add hints for each sender, and find other problems."""
    seen = look(store, filter, spans)
    seen = replace(seen, senders=advised(seen.senders))
    return Diagnosis(seen, count_stored_spans(store), find_problems(store, seen, _collector_metrics(store)))


def _collector_metrics(store: Store) -> Mapping[str, float]:
    """Return the collector's metrics. The result is empty for a file, which has no server, and for a key that is limited
    to one project.
    """
    from spanwise.collector.client import HTTPStore

    try:
        return store.numbers() if isinstance(store, HTTPStore) else {}
    except StoreError:
        return {}


def diagnosis_to_dict(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain values."""
    seen = asdict(found.seen)
    for sender, one in zip(seen["senders"], found.seen.senders, strict=True):
        sender["who"] = one.who._asdict()
        sender["shares"] = {name: share._asdict() for name, share in one.shares.items()}
        del sender["names"]
    return {**seen, "spans_stored": found.total, "sampled": not found.seen.whole, "troubles": found.wrong}


def _print_diagnosis(found: Diagnosis) -> None:
    senders = found.seen.senders
    if senders:
        print_table(
            ("service", "instrumentation", "spans", *EXPECTED_FIELDS, "unused attributes"), map(_sender_cells, senders)
        )
    for line in [*_list_hints(senders), *found.wrong]:
        console.print(f"- {escape_line(line, MAX_MESSAGE_LENGTH)}", markup=False, highlight=False, soft_wrap=True)
    error_console.print(found.looked_at, markup=False, highlight=False, soft_wrap=True)


def _list_hints(senders: tuple[Sender, ...]) -> Iterator[str]:
    for one in senders:
        for hint in one.hints:
            yield f"{one.who.service or 'a service without a name'}, {one.who.scope or 'no scope'}: {hint}"


def _sender_cells(one: Sender) -> tuple[str, ...]:
    unread = ", ".join(f"{name} {count:,}" for name, count in list(one.unread.items())[:MAX_SHOWN_ATTRIBUTES])
    more = len(one.unread) - MAX_SHOWN_ATTRIBUTES
    shares = (_format_share(one.shares[name]) for name in EXPECTED_FIELDS)
    told = unread + (f", … {more} more" if more > 0 else "")
    return one.who.service or "?", one.who.scope or "?", f"{one.spans:,}", *shares, told


def _format_share(share: FieldCoverage) -> str:
    """Format the coverage of a field as "12 of 40" or "all 40", or as "–" if no span is expected to have the field."""
    if not share.of:
        return "–"
    return f"all {share.of:,}" if share.have == share.of else f"{share.have:,} of {share.of:,}"
