"""OTLP in: request → `Decoded` (each span a `RawSpan`, then a `Draft`, then a `Run`) → the store, then the answer."""

from assay.collector.intake._decoded import check_ids
from assay.collector.intake._http import Receiver
from assay.collector.intake._limits import Limits

__all__ = ["Limits", "Receiver", "check_ids"]
