"""Log records: a convention makes feedback of them, content of a span that came before, or what stands beside spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from spanwise.collector.dialects._faults import Fault, log_fault, name_of
from spanwise.collector.dialects._feedback import evaluation
from spanwise.collector.dialects._genai_logs import content
from spanwise.collector.dialects._process import report, started
from spanwise.collector.dialects._raw import RawLog
from spanwise.collector.former_names import ATTRIBUTES, present_names
from spanwise.collector.records import Amendment, Feedback, OpenRun, ProcessReport

LogItem: TypeAlias = Feedback | Amendment | OpenRun | ProcessReport
# Gives None for a record that is not its own; raises `ValueError`, which the sender is told, for one that is but makes
# no sense
LogDialect: TypeAlias = Callable[[RawLog], LogItem | None]

LOG_DIALECTS: tuple[LogDialect, ...] = (evaluation, started, report, content)


def read_log(log: RawLog, fault: Fault = log_fault, dialects: Sequence[LogDialect] | None = None) -> LogItem | None:
    """What the first dialect that knows this record makes of it, None if none does.

    Raises `ValueError` for a record that makes no sense; what else a dialect raises only if no other knows the record.
    """
    log.attributes = present_names(log.attributes)
    log.event_name = ATTRIBUTES.get(log.event_name, log.event_name)
    failed: Exception | None = None
    for dialect in LOG_DIALECTS if dialects is None else dialects:
        try:
            item = dialect(log)
            if item is not None:
                return item
        except ValueError:
            raise
        except Exception as error:
            fault(name_of(dialect), error)
            failed = error
    if failed is not None:
        raise failed
    return None
