"""OpenTelemetry's own variables: whoever has them set already need not say it again."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.tracer import configure, flush, stats, trace
from spanwise.tracer.configuration import DEFAULT_URL, resolve_settings

from .conftest import Sink

OTLP = "OTEL_EXPORTER_OTLP_"


@trace
def work(text: str = "") -> str:
    return text


def setting(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    monkeypatch.delenv("SPANWISE_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name if name.startswith(("SPANWISE", "OTEL")) else OTLP + name, value)


@pytest.mark.usefixtures("only_when_asked")
def test_spans_go_where_otlp_goes_and_that_is_said(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setting(monkeypatch, ENDPOINT=sink.url + "/", HEADERS="x-team=a%20b,Authorization=Basic%20abc")
    work()
    assert flush(60).delivered == 1
    (path, headers, _) = sink.requests[0]
    assert (path, headers["x-team"], headers["Authorization"]) == ("/v1/traces", "a b", "Basic abc")
    assert f"spans are sent to {sink.url}, as set by OTEL_EXPORTER_OTLP_*" in caplog.text


@pytest.mark.parametrize(
    ("variables", "url", "traces_url"),
    [
        ({}, DEFAULT_URL, None),
        ({"ENDPOINT": "http://a"}, "http://a", None),
        ({"TRACES_ENDPOINT": "http://b/api/otel/v1/traces", "ENDPOINT": "http://a"}, "http://b/api/otel", None),
        ({"TRACES_ENDPOINT": "http://b/spans", "ENDPOINT": "http://a"}, "http://a", "http://b/spans"),
        ({"ENDPOINT": "http://a", "SPANWISE_URL": "http://c"}, "http://c", None),
    ],
)
def test_which_address_counts(
    variables: dict[str, str], url: str, traces_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting(monkeypatch, **variables)
    settings = resolve_settings()
    assert (settings.url, settings.traces_url) == (url, traces_url)


def test_headers_of_another_address_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, ENDPOINT="http://a", HEADERS="authorization=secret")
    assert resolve_settings(url="http://mine").headers == {}
    monkeypatch.setenv("SPANWISE_URL", "http://mine")
    assert resolve_settings().headers == {}


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("2500", 2.5), ("0.5", 0.5)])
def test_a_timeout_is_in_seconds_or_milliseconds(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, ENDPOINT="http://a", TIMEOUT=text)
    assert resolve_settings().timeout == seconds


@pytest.mark.parametrize(
    ("variables", "message", "url"),
    [
        ({"ENDPOINT": "http://a", "TIMEOUT": "soon"}, "TIMEOUT='soon' is ignored: it is not a number", "http://a"),
        ({"ENDPOINT": "a:4318"}, "ENDPOINT='a:4318' is ignored: it is not a usable address", DEFAULT_URL),
        ({"ENDPOINT": "http://a", "COMPRESSION": "zip"}, "only gzip and none are supported", "http://a"),
    ],
)
def test_what_is_for_others_is_said_and_left(
    variables: dict[str, str],
    message: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setting(monkeypatch, **variables)
    settings = resolve_settings()
    assert (settings.url, settings.timeout, settings.compression) == (url, 10.0, None)
    assert message in caplog.text


def test_a_header_that_cannot_be_costs_no_other_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, ENDPOINT="http://a", HEADERS="x=“y”", SPANWISE_PROJECT="p")
    assert (resolve_settings().project, resolve_settings().headers) == ("p", {})
    with pytest.raises(ValueError, match="invalid HTTP header 'x'"):
        resolve_settings(headers={"x": "“y”"})


@pytest.mark.usefixtures("only_when_asked")
def test_what_is_sent_afar_is_packed(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, ENDPOINT=sink.url, COMPRESSION="gzip")
    work("x" * 10_000)
    assert flush(60).delivered == 1
    (_, headers, body) = sink.requests[0]
    assert (headers["Content-Encoding"], len(body) < 2_000) == ("gzip", True)
    assert ExportTraceServiceRequest.FromString(gzip.decompress(body)).resource_spans


@pytest.mark.usefixtures("only_when_asked")
def test_opentelemetry_switched_off_switches_us_off(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, ENDPOINT=sink.url, OTEL_SDK_DISABLED="true")
    work()
    assert (flush(60).delivered, stats().queued) == (0, 0)


@pytest.mark.parametrize("name", ["deployment.environment.name", "deployment.environment"])
def test_the_environment_is_that_of_the_resource(name: str, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, ENDPOINT=sink.url, OTEL_RESOURCE_ATTRIBUTES=f"team=a,{name}=prod")
    work()
    flush(60)
    resource = ExportTraceServiceRequest.FromString(sink.requests[0][2]).resource_spans[0].resource
    attributes: dict[str, Any] = {it.key: it.value.string_value for it in resource.attributes}
    assert (attributes["deployment.environment.name"], attributes["team"]) == ("prod", "a")


@pytest.mark.usefixtures("only_when_asked")
def test_headers_can_be_given(sink: Sink) -> None:
    configure(url=sink.url, headers={"x-honeycomb-team": "abc"})
    work()
    assert flush(60).delivered == 1
    assert sink.requests[0][1]["x-honeycomb-team"] == "abc"


def test_headers_of_others_that_can_be_none_are_left_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:pass-word@collector")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-odd=s€cret,a b=1,x-team=me")
    settings = resolve_settings(api_key="sk-1")
    assert settings.headers == {"x-team": "me"}
    assert "'x-odd, a b'" in caplog.text
    assert not {"s€cret", "sk-1"} & set(caplog.text.split() + repr(settings).split("'"))
    assert settings.shown_url == "https://collector"


def test_the_authorities_of_the_environment_are_trusted_for_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://theirs")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/their/ca.pem")
    assert resolve_settings().certificate == "/their/ca.pem"
    assert resolve_settings(url="https://ours").certificate == "/their/ca.pem"
    monkeypatch.setenv("SPANWISE_URL", "https://ours")
    assert resolve_settings().certificate == "/their/ca.pem"
