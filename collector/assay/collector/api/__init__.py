"""The HTTP API: OTLP in, queries out, feedback and control records both ways."""

from assay.collector.api._app import create_app, past_framework
from assay.collector.api._door import Door
from assay.collector.api._guard import Guard
from assay.collector.api._keys import Keys

__all__ = ["Door", "Guard", "Keys", "create_app", "past_framework"]
