"""Dialects: spans of any convention become `Run`s here, and nowhere else."""

from assay.collector.dialects._feedback import RawFeedback, read_feedback
from assay.collector.dialects._raw import RawSpan
from assay.collector.dialects._read import DIALECTS, Dialect, read
from assay.collector.dialects._readable import from_readable
from assay.collector.dialects._values import documents as as_documents

__all__ = ["DIALECTS", "Dialect", "RawFeedback", "RawSpan", "as_documents", "from_readable", "read", "read_feedback"]
