"""OTLP in: request → `Decoded` (each span a `RawSpan`, then a `Draft`, then a `Run`) → the store, then the answer."""

from assay.collector.intake import _answer as answers
from assay.collector.intake._answer import PROTOBUF, otlp_error
from assay.collector.intake._body import Body, Disconnected
from assay.collector.intake._cost import check_json
from assay.collector.intake._decoded import check_ids
from assay.collector.intake._decoders import MOST_DECODERS, automatic_decoders
from assay.collector.intake._errors import ItemRefused, Permanent, RequestRefused, Retryable
from assay.collector.intake._held import weighed
from assay.collector.intake._http import PATHS, ROOTS, SIGNALS, Receiver
from assay.collector.intake._keep import Keeper
from assay.collector.intake._limits import MOST_MONEY, MOST_TOKENS, Limits
from assay.collector.intake._signal import HOPS, Request, hops
from assay.collector.intake._texts import bounded_texts, check_amended, check_names

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Body",
    "Disconnected",
    "HOPS",
    "ItemRefused",
    "Keeper",
    "Limits",
    "MOST_DECODERS",
    "MOST_MONEY",
    "MOST_TOKENS",
    "PATHS",
    "PROTOBUF",
    "Permanent",
    "ROOTS",
    "Receiver",
    "Request",
    "RequestRefused",
    "Retryable",
    "SIGNALS",
    "answers",
    "automatic_decoders",
    "bounded_texts",
    "check_amended",
    "check_ids",
    "check_json",
    "check_names",
    "hops",
    "otlp_error",
    "weighed",
]
