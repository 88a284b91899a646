"""`spanwise doctor`: missing fields per sender and other problems of the collector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

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
    print_table,
)
from spanwise.collector.diagnostics.doctor_report import (
    DEFAULT_SPANS,
    EXPECTED_FIELDS,
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
        diagnosis = diagnose(store, wanted, spans)
    if as_json:
        emit([diagnosis_to_dict(diagnosis)])
    else:
        _print_diagnosis(diagnosis)


class Diagnosis:
    """Diagnosis of the senders: their report, the number of stored spans (None if the key may not read it), and the
    problems found.
    """

    def __init__(self, report: SenderReport, total: int | None, problems: list[str]) -> None:
        self.report, self.total, self.problems = report, total, problems

    @property
    def examined(self) -> str:
        """Describe how much was read: "examined the latest 5,000 spans of 1,204,331 stored, in 812 traces of 2 senders"."""
        report = self.report
        if not report.spans:
            if self.total == 0:
                reason = "no spans have been received; send them to the address of `spanwise serve`, by default http://127.0.0.1:4318"
            else:
                stored = "that this key may read" if self.total is None else f"of the {self.total:,} stored"
                reason = f"none {stored} passes the conditions"
            return f"examined all 0 spans: {reason}"
        stored = "" if self.total is None or report.whole else f" of {self.total:,} stored"
        selection = "all" if report.whole else "the latest"
        senders = f"{report.traces:,} traces of {len(report.senders):,} senders"
        return f"examined {selection} {report.spans:,} spans{stored}, in {senders}"


def diagnose(store: Store, filter: Filter, spans: int = DEFAULT_SPANS) -> Diagnosis:
    """Read the latest spans, add hints for each sender, and find other problems."""
    report = look(store, filter, spans)
    report = replace(report, senders=advised(report.senders))
    return Diagnosis(report, count_stored_spans(store), find_problems(store, report, _collector_metrics(store)))


def _collector_metrics(store: Store) -> Mapping[str, float]:
    """Return the collector's metrics. The result is empty for a file, which has no server, and for a key that is limited
    to one project.
    """
    from spanwise.collector.client import HTTPStore

    try:
        return store.numbers() if isinstance(store, HTTPStore) else {}
    except StoreError:
        return {}


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain values."""
    report = asdict(diagnosis.report)
    for plain, sender in zip(report["senders"], diagnosis.report.senders, strict=True):
        plain["who"] = sender.who._asdict()
        plain["shares"] = {name: share._asdict() for name, share in sender.shares.items()}
        del plain["names"]
    return {
        **report,
        "spans_stored": diagnosis.total,
        "sampled": not diagnosis.report.whole,
        "troubles": diagnosis.problems,
    }


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    senders = diagnosis.report.senders
    if senders:
        head = ("service", "instrumentation", "spans", *EXPECTED_FIELDS, "unused attributes")
        print_table(head, map(_sender_cells, senders))
    hints = [
        f"{sender.who.service or 'a service without a name'}, {sender.who.scope or 'no scope'}: {hint}"
        for sender in senders
        for hint in sender.hints
    ]
    for line in [*hints, *diagnosis.problems]:
        print_line(f"- {escape_line(line, MAX_MESSAGE_LENGTH)}")
    error_console.print(diagnosis.examined, markup=False, highlight=False, soft_wrap=True)


def _sender_cells(sender: Sender) -> tuple[str, ...]:
    """Return the table cells of a sender. A field is "12 of 40", "all 40", or "–" if no span is expected to have it."""
    shares = []
    for name in EXPECTED_FIELDS:
        share = sender.shares[name]
        count = f"all {share.of:,}" if share.have == share.of else f"{share.have:,} of {share.of:,}"
        shares.append(count if share.of else "–")
    unused = ", ".join(f"{name} {count:,}" for name, count in list(sender.unread.items())[:MAX_SHOWN_ATTRIBUTES])
    if (more := len(sender.unread) - MAX_SHOWN_ATTRIBUTES) > 0:
        unused += f", … {more} more"
    return sender.who.service or "?", sender.who.scope or "?", f"{sender.spans:,}", *shares, unused
