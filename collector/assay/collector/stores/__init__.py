"""What every store promises, and the stores."""

from assay.collector.stores._protocols import ControlStore, Store, TraceStore

__all__ = ["ControlStore", "Store", "TraceStore"]
