"""What is sent as records, as it can be kept: ids as OpenTelemetry has them, numbers that add up."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from spanwise.collector.errors import Refused
from spanwise.collector.intake import MOST_MONEY, MOST_TOKENS, check_ids, check_names
from spanwise.collector.records import Amendment, Booking, Feedback, OpenRun, Run, checked_feedback

R = TypeVar("R", Run, OpenRun)
_HEX = re.compile(r"[0-9a-f]*")


def sane_run(run: Run) -> Run:
    """A run with ids in lower case. Raises `ItemRefused` or `Refused` for ids or numbers that cannot be."""
    one = _lowered(run)
    if run.usage is not None:
        for name, tokens in _tokens(run):
            if not 0 <= tokens <= MOST_TOKENS:
                raise Refused(f"{name} of run {run.span_id!r} is {tokens!r}: tokens are within 0 and 2^53")
    if run.cost is not None:
        sane_money(f"the cost of run {run.span_id!r}", run.cost)
    return one


def sane_open(run: OpenRun) -> OpenRun:
    """A run that has started, with ids in lower case. Raises `ItemRefused` for ids that cannot be."""
    return _lowered(run)


def sane_amendment(amendment: Amendment) -> Amendment:
    """An amendment with ids in lower case. Raises `ItemRefused` for ids that cannot be."""
    if amendment.response_id:
        return amendment
    trace_id, span_id, _ = _ids(amendment.trace_id, amendment.span_id)
    return replace(amendment, trace_id=trace_id, span_id=span_id)


def _lowered(run: R) -> R:
    ids = (run.trace_id, run.span_id, run.parent_id or "")
    lower = _ids(*ids)
    if lower == ids:
        return run
    return replace(run, trace_id=lower[0], span_id=lower[1], parent_id=lower[2] or None)


def _ids(trace_id: str, span_id: str, parent_id: str = "") -> tuple[str, str, str]:
    ids = (trace_id, span_id, parent_id)
    lower = (trace_id.lower(), span_id.lower(), parent_id.lower())
    check_ids(*lower)
    if not all(map(_HEX.fullmatch, lower)):
        raise Refused(f"ids are hexadecimal, not {next(one for one in ids if not _HEX.fullmatch(one.lower()))!r}")
    return lower


def _tokens(run: Run) -> Iterable[tuple[str, int]]:
    usage = run.usage
    assert usage is not None
    yield "input_tokens", usage.input_tokens
    yield "output_tokens", usage.output_tokens
    yield from usage.details.items()


def sane_feedback(feedback: Feedback) -> Feedback:
    """Feedback whose target has ids that can exist. Raises `ItemRefused` for names that are too long, `Refused`."""
    check_names(feedback)
    return checked_feedback(feedback)


def sane_booking(booking: Booking) -> Booking:
    """The same booking. Raises `Refused` for an amount that is none."""
    sane_money(f"the amount of booking {booking.id!r}", booking.amount)
    return booking


def sane_money(what: str, amount: float) -> None:
    """Raises `Refused` for an amount that nobody spends."""
    if not (math.isfinite(amount) and 0 <= amount <= MOST_MONEY):
        raise Refused(f"{what} is {amount!r}: amounts are within 0 and {MOST_MONEY:,.0f}")
