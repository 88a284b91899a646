"""Passing on what comes in: request → `Letter` on disk, one spool for each `Target` → its OTLP endpoint."""

from assay.collector.forward._feedback import FeedbackOut
from assay.collector.forward._forwarder import Forwarder
from assay.collector.forward._target import Target, targets

__all__ = ["FeedbackOut", "Forwarder", "Target", "targets"]
