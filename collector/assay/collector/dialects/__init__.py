"""Dialects: spans of any convention become `Run`s here, and nowhere else."""

from assay.collector.dialects._feedback import RawFeedback, read_feedback
from assay.collector.dialects._raw import RawSpan
from assay.collector.dialects._read import DIALECTS, Dialect, read
from assay.collector.dialects._readable import from_readable

__all__ = ["DIALECTS", "Dialect", "RawFeedback", "RawSpan", "from_readable", "read", "read_feedback"]
