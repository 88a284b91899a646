"""OTLP in: request → `Decoded` (each span a `RawSpan`, then a `Draft`, then a `Run`) → the store, then the answer."""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy import lazy

if TYPE_CHECKING:
    from spanwise.collector.intake._body import Body, Disconnected
    from spanwise.collector.intake._cost import check_json
    from spanwise.collector.intake._decoded import check_ids
    from spanwise.collector.intake._decoders import MOST_DECODERS, automatic_decoders
    from spanwise.collector.intake._errors import ItemRefused, Permanent, RequestRefused, Retryable
    from spanwise.collector.intake._held import weighed
    from spanwise.collector.intake._http import PATHS, ROOTS, SIGNALS, Receiver
    from spanwise.collector.intake._keep import Keeper
    from spanwise.collector.intake._limits import MOST_MONEY, MOST_TOKENS, Limits
    from spanwise.collector.intake._signal import HOPS, Request, hops
    from spanwise.collector.intake._texts import bounded_texts, check_amended, check_names
    from spanwise.collector.intake.answers import PROTOBUF, otlp_error
else:
    __getattr__, __dir__ = lazy(
        __name__,
        answers="PROTOBUF otlp_error",
        _body="Body Disconnected",
        _cost="check_json",
        _decoded="check_ids",
        _decoders="MOST_DECODERS automatic_decoders",
        _errors="ItemRefused Permanent RequestRefused Retryable",
        _held="weighed",
        _http="PATHS ROOTS SIGNALS Receiver",
        _keep="Keeper",
        _limits="MOST_MONEY MOST_TOKENS Limits",
        _signal="HOPS Request hops",
        _texts="bounded_texts check_amended check_names",
    )

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
