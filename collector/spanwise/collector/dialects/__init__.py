"""Dialects: spans and log records of any convention become `Run`s and `Feedback` here, and nowhere else."""

from typing import TYPE_CHECKING

from spanwise.collector.records import Amendment
from spanwise.tracer.lazy import lazy

if TYPE_CHECKING:
    from spanwise.collector.dialects._also import Also, Said, said
    from spanwise.collector.dialects._draft import Dialect, Draft, Fields
    from spanwise.collector.dialects._faults import Fault, log_fault, log_once
    from spanwise.collector.dialects._feedback import read_feedback, via_of, written
    from spanwise.collector.dialects._langfuse_scores import langfuse_score
    from spanwise.collector.dialects._log import LogDialect, LogItem, read_log
    from spanwise.collector.dialects._prices import cost, known_prices, learn_prices, price_applies, provider_at
    from spanwise.collector.dialects._raw import RawLog, RawSpan
    from spanwise.collector.dialects._read import Whole, read, read_whole
    from spanwise.collector.dialects._readable import from_readable
else:
    __getattr__, __dir__ = lazy(
        __name__,
        _also="Also Said said",
        _draft="Dialect Draft Fields",
        _faults="Fault log_fault log_once",
        _feedback="read_feedback via_of written",
        _langfuse_scores="langfuse_score",
        _log="LogDialect LogItem read_log",
        _prices="cost known_prices learn_prices price_applies provider_at",
        _raw="RawLog RawSpan",
        _read="Whole read read_whole",
        _readable="from_readable",
    )

__all__ = [
    "Also",
    "Amendment",
    "Dialect",
    "Draft",
    "Fault",
    "Fields",
    "LogDialect",
    "LogItem",
    "RawLog",
    "RawSpan",
    "Said",
    "Whole",
    "cost",
    "from_readable",
    "known_prices",
    "langfuse_score",
    "learn_prices",
    "log_fault",
    "log_once",
    "price_applies",
    "provider_at",
    "read",
    "read_feedback",
    "read_log",
    "read_whole",
    "said",
    "via_of",
    "written",
]
