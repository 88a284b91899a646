"""Options in the words of other products are answered in ours, in one line, where the mistake is made."""

from __future__ import annotations

import inspect

import pytest

from spanwise.tracer import attribute_names, span, trace
from spanwise.tracer.run_recording import _SPAN_OPTIONS
from spanwise.tracer.suggestions import OPTION_EQUIVALENTS, make_unknown_option_error


@pytest.mark.parametrize("name", ["run_type", "as_type", "span_type"])
def test_a_kind_by_another_name_is_met_when_decorating(name: str) -> None:
    said = rf"^@trace has no option '{name}' \(here it is kind=…, such as kind='retriever'\); it takes name, kind"
    with pytest.raises(TypeError, match=said) as raised:
        trace(**{name: "retriever"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["run_type", "as_type", "span_type"])
def test_a_kind_by_another_name_is_met_by_a_block(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^span\(\) has no option '{name}' \(here it is kind="):
        span("rerank", **{name: "tool"})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "ours"), [("capture_input", "capture_inputs"), ("reduce_fn", "reduce")])
def test_other_options_are_met_too(name: str, ours: str) -> None:
    with pytest.raises(TypeError, match=rf"'{name}' \(here it is {ours}=…\)"):
        trace(lambda: None, **{name: True})  # type: ignore[call-overload]


def test_a_kind_in_the_place_of_the_function_is_told_its_name() -> None:
    with pytest.raises(TypeError, match=r"got 'retriever'; to set the kind, write @trace\(kind='retriever'\)$"):
        trace("retriever")  # type: ignore[call-overload]


@pytest.mark.parametrize(("kind", "ours"), [("generation", "llm"), ("RETRIEVER", "retriever"), ("span", "chain")])
def test_kinds_of_others_are_told_as_ours(kind: str, ours: str) -> None:
    with pytest.raises(ValueError, match=rf"got '{kind}'; here it is '{ours}'$"):
        trace(kind=kind)(test_kinds_of_others_are_told_as_ours)
    with pytest.raises(ValueError, match=r"got .banana.$"):
        span("x", kind="banana")


def test_what_is_said_to_be_ours_exists() -> None:
    ours = {*inspect.signature(span).parameters, *_SPAN_OPTIONS, "name", "capture_inputs", "capture_outputs", "reduce"}
    plain = {said.partition("=")[0] for said in OPTION_EQUIVALENTS.values() if "=" in said.partition("(")[0]}
    assert plain <= ours
    assert not set(OPTION_EQUIVALENTS) & (trace_options() | set(_SPAN_OPTIONS) - {"inputs"})


def trace_options() -> set[str]:
    from spanwise.tracer.decorator import _decorate

    return set(_decorate.__kwdefaults__ or {})


def test_the_options_of_a_block_are_those_of_its_signature() -> None:
    named = [one.name for one in inspect.signature(span).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert tuple(named) == _SPAN_OPTIONS
    assert "retriever" in attribute_names.KINDS


def test_a_name_that_nobody_has_is_compared_by_its_letters() -> None:
    assert (
        str(make_unknown_option_error("f()", "nme", ["name"], OPTION_EQUIVALENTS))
        == "f() has no option 'nme' (did you mean 'name'?); it takes name"
    )
