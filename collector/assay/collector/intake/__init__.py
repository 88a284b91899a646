"""OTLP in: bytes → OTLP messages → dialects → the store; answered only when the store has kept it."""

from assay.collector.intake._decoded import check_ids
from assay.collector.intake._endpoint import Receiver
from assay.collector.intake._limits import Limits

__all__ = ["Limits", "Receiver", "check_ids"]
