"""The HTTP API: OTLP in, queries out, feedback and control records both ways."""

from spanwise.collector.api._app import create_app, past_framework
from spanwise.collector.api._cors import Cors
from spanwise.collector.api._door import Door
from spanwise.collector.api._guard import ASGI, Guard
from spanwise.collector.api._keys import Keys, KeyStore
from spanwise.collector.api._scopes import Scopes

__all__ = ["ASGI", "Cors", "Door", "Guard", "KeyStore", "Keys", "Scopes", "create_app", "past_framework"]
