"""Passing on what comes in: request → `Letter` on disk, one spool for each `Target` → its OTLP endpoint."""

from spanwise.collector.forward._feedback import FeedbackOut
from spanwise.collector.forward._forwarder import Forwarder
from spanwise.collector.forward._target import Target, targets

__all__ = ["FeedbackOut", "Forwarder", "Target", "targets"]
