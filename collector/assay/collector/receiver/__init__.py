"""OTLP in: bytes → OTLP messages → dialects → the store; answered only when the store has kept it."""

from assay.collector.receiver._decoded import check_ids
from assay.collector.receiver._endpoint import Receiver
from assay.collector.receiver._limits import Limits

__all__ = ["Limits", "Receiver", "check_ids"]
