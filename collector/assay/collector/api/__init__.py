"""The HTTP API: OTLP in, queries out, feedback and control records both ways."""

from assay.collector.api._app import create_app, past_framework
from assay.collector.api._cors import Cors
from assay.collector.api._door import Door
from assay.collector.api._guard import ASGI, Guard
from assay.collector.api._keys import Keys, KeyStore
from assay.collector.api._scopes import Scopes

__all__ = ["ASGI", "Cors", "Door", "Guard", "KeyStore", "Keys", "Scopes", "create_app", "past_framework"]
