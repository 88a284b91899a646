"""The verbs of the stores as requests: one table, from which the server's routes and the client's methods are made."""

from spanwise.collector._verbs._call import LONGEST, PAGE, Call, Needs, Sent, call_of, kinds
from spanwise.collector._verbs._forms import Change, given
from spanwise.collector._verbs._table import Control, Traces
from spanwise.collector._verbs._verb import Asks, calls, verb

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Asks",
    "Call",
    "Change",
    "Control",
    "LONGEST",
    "Needs",
    "PAGE",
    "Sent",
    "Traces",
    "call_of",
    "calls",
    "given",
    "kinds",
    "verb",
]
