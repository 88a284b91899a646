"""What Spanwise's collectors hear beside spans: which runs go on for long, and what has become of all spans of a
process.

Both are OTLP log events, for collectors that call themselves Spanwise's in their answers. Neither is worth keeping:
what cannot be sent now is said anew later, or never.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from spanwise.tracer import attributes as names
from spanwise.tracer._account import Account
from spanwise.tracer._encode import LOGS, TRACES, FeedbackEvent, feedback_body
from spanwise.tracer._finish import Finisher
from spanwise.tracer._post import Answer, Post
from spanwise.tracer._span import Clock, LiveSpan, Local

PERIOD = 10.0  # seconds between two reports, at least
Send = Callable[[str, bytes], Answer]


class Presence:
    """Says it, from the delivery thread."""

    def __init__(self, account: Account, finisher: Finisher, post: Post) -> None:
        self._account, self._finisher, self._post = account, finisher, post
        self._reported: dict[str, Any] = {}
        self._next_report = 0.0

    def tell(self, send: Send, pending: int, dropped: Counter[str], urgent: bool) -> None:
        """Say what is new. `pending` spans are in memory, `dropped` ones have never left the queue; an urgent round may
        be the last one.
        """
        due = self._account.due()
        if due and self._post.is_spanwise is None:
            self._ask(send)
        if self._post.is_spanwise:
            self._tell_started(send, due)
            self._report(send, pending, dropped, urgent)
        elif self._post.is_spanwise is False:
            self._account.told(due)

    def _ask(self, send: Send) -> None:
        """Nothing was sent yet: an empty request, which every collector takes, shows whose it is."""
        if send(TRACES, b"").verdict != "later" and self._post.is_spanwise is None:
            self._post.is_spanwise = False

    def _tell_started(self, send: Send, due: Sequence[Any]) -> None:
        resources = {id(resource): resource for resource in (_local(span).resource for span in due)}
        for key, resource in resources.items():
            spans = [span for span in due if id(_local(span).resource) == key]
            attributes = self._finisher.resource(resource).attributes
            body = feedback_body([self._started(span, attributes) for span in spans])
            if send(LOGS, body).verdict != "later":
                self._account.told(spans)

    def _started(self, span: Any, resource: Any) -> FeedbackEvent:
        context, parent = span.get_span_context(), span.parent
        attributes = {
            names.STARTED_NAME: self._finisher.name(span.name),
            names.KIND: (span.attributes or {}).get(names.KIND),
            names.STARTED_PARENT: f"{parent.span_id:016x}" if parent else None,
            names.LOCAL_ROOT: f"{_local(span).root_id:016x}",
        }
        start = span.start_time or 0
        return FeedbackEvent(context.trace_id, context.span_id, start, attributes, resource, names.STARTED_EVENT)

    def _report(self, send: Send, pending: int, dropped: Counter[str], urgent: bool) -> None:
        if not urgent and time.monotonic() < self._next_report:
            return
        report, resource = self._account.report(pending, dropped), self._account.resource
        if not report["started"] or report == self._reported or resource is None:
            return
        event = FeedbackEvent(0, 0, Clock.now(), _attributes(report), resource.attributes, names.REPORT_EVENT)
        self._next_report = time.monotonic() + PERIOD
        if send(LOGS, feedback_body([event])).verdict == "ok":
            self._reported = report


def _local(span: Any) -> Local:
    local: Local = span.local if isinstance(span, LiveSpan) else span._spanwise_local
    return local


def _attributes(report: dict[str, Any]) -> dict[str, Any]:
    return {
        names.REPORT_STARTED: report["started"],
        names.REPORT_OPEN: report["open"],
        names.REPORT_DELIVERED: report["delivered"],
        names.REPORT_SPILLED: report["spilled"],
        names.REPORT_PENDING: report["pending"],
        names.REPORT_DROPPED: orjson.dumps(report["dropped"]).decode(),
        names.REPORT_PID: os.getpid(),
    }
