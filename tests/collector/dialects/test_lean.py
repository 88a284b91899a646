"""What makes reading cheap changes nothing of what is read, whoever writes names: memory stays bounded, too."""

from __future__ import annotations

import gzip
import pickle
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.dialects.sent import FIXTURES
from fixtures.dialects.capture import load
from spanwise.collector.dialects import Draft, RawSpan, read_run, read_span
from spanwise.collector.dialects import draft as keys
from spanwise.collector.dialects.draft import applies_to
from spanwise.collector.dialects.translation import DIALECTS
from spanwise.collector.ingest.otlp_signals import TRACES, read_span_item
from spanwise.collector.ingest.request_decoder import Codec, Limits, decode
from spanwise.collector.records import Document, Run, Usage, make_fast_constructor

MEMOS: list[Any] = [
    one.__self__ for one in (keys.get_namespace, keys.get_indexed_name, keys.get_namespaces, keys.get_indexed_lists)
]  # type: ignore[attr-defined]
NAMES = st.sampled_from(
    (
        "openinference.span.kind",
        "input.value",
        "output.value",
        "llm.model_name",
        "llm.token_count.prompt",
        "llm.prompts",
        "llm.prompts.0.prompt.text",
        "llm.input_messages.0.message.content",
        "llm.input_messages.1.message.role",
        "retrieval.documents.0.document.content",
        "retrieval.documents.00.document.content",
        "retrieval.documents.1.document.score",
        "retrieval.documents.1.document.metadata",
        "gen_ai.operation.name",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.details.reasoning_tokens",
        "gen_ai.prompt.0.content",
        "mlflow.spanType",
        "lmnr.span.type",
        "session.annotations.0.annotation.name",
        "session.id",
        "user.id",
        "metadata",
        "tag.tags",
        "input.mime_type",
        "output.mime_type",
        "input.documents.0.document.content",
        "output.documents.1.document.id",
        "spanwise.documents",
        "spanwise.cost",
        "spanwise.experiment.id",
        "spanwise.local_root",
    )
)
VALUES = st.sampled_from(
    (
        "application/json",
        "RETRIEVER",
        "tool",
        "LLM",
        "chat",
        "CHAIN",
        "",
        "{}",
        '{"a": 1}',
        "7",
        0,
        7,
        0.5,
        True,
        None,
        [],
        ["a"],
    )
)
SCOPES = st.sampled_from(("", "mlflow.x", "pydantic-ai", "logfire", "openinference.x"))

LARGEST = keys.MAX_NAMES * (keys.MAX_NAME_CHARS + keys.NAME_OVERHEAD)  # of what is remembered at once


def strict(dialect: str, error: Exception) -> None:
    raise error


def span(attributes: dict[str, Any], scope: str = "") -> RawSpan:
    return RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=attributes, scope=scope)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for memo in MEMOS:
        memo.clear()


@given(st.dictionaries(NAMES, VALUES, max_size=7), SCOPES, st.sampled_from(("s", "haystack.pipeline.run")))
def test_the_short_way_leads_to_the_same(attributes, scope, name):
    one = replace(span(attributes, scope), name=name)
    assert repr(read_span(one, strict)) == repr(read_span(one, strict, [*DIALECTS]))


@pytest.mark.process
@given(st.dictionaries(NAMES | st.text(max_size=9), VALUES, max_size=12), SCOPES)
def test_what_is_remembered_of_names_changes_nothing(attributes, scope):
    remembered = [read_span(span(attributes, scope), strict) for _ in range(2)]
    for memo in MEMOS:
        memo.clear()
    anew = read_span(span(attributes, scope), strict, [*DIALECTS])
    assert repr(remembered) == repr([anew, anew])


@given(st.dictionaries(NAMES, VALUES, max_size=12))
def test_the_order_of_names_is_read_as_it_is(attributes):
    backwards = dict(reversed(attributes.items()))
    read_run(span(attributes), strict)
    left = read_run(span(backwards), strict).attributes
    assert list(left) == [name for name in backwards if name in left]


@pytest.mark.process
def test_endless_new_names_take_no_memory():
    for number in range(keys.MAX_ENTRIES + 500):
        read_run(span({f"a{number}.b": 1, f"llm.{number}": 2, f"x.{number % 9999}.y.{number}": 3}), strict)
    assert all(len(memo) <= keys.MAX_ENTRIES and memo.size <= keys.MAX_TOTAL_CHARS + LARGEST for memo in MEMOS)


def test_long_names_and_many_names_are_not_remembered():
    before = [len(memo) for memo in MEMOS[2:]]
    read_run(span({"llm." + "x" * keys.MAX_NAME_CHARS: 1}), strict)
    read_run(span({f"llm.{number}": 1 for number in range(keys.MAX_NAMES + 1)}), strict)
    assert [len(memo) for memo in MEMOS[2:]] == before


def test_after_a_flood_of_names_those_of_others_are_remembered_again():
    for number in range(2 * keys.MAX_ENTRIES):
        keys.get_namespaces((f"flood.{number}",))
    keys.get_namespaces(("input.value",))
    assert ("input.value",) in MEMOS[2]


def test_threads_read_alike_while_names_are_forgotten():
    attributes = {f"retrieval.documents.{at}.document.content": "c" for at in range(3)}
    expected, wrong = repr(read_run(span(attributes), strict)), []

    def reads(thread: int) -> None:
        for number in range(400):
            read_run(span({f"flood.{thread}.{number}": 1}), strict)
            if repr(read_run(span(attributes), strict)) != expected:
                wrong.append(number)

    threads = [threading.Thread(target=reads, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_a_dialect_that_says_where_it_finds_something_is_given_no_other_span():
    seen: list[str] = []

    @applies_to("vendor", scope="vendor.")
    def vendor(draft: Draft) -> None:
        seen.append(draft.span.scope)

    for attributes, scope in (({"vendor.a": 1}, ""), ({"other": 1}, "vendor.sdk"), ({"other": 1}, "other")):
        read_run(span(attributes, scope), strict, [vendor, *DIALECTS])
    assert seen == ["", "vendor.sdk"]


def test_one_that_says_nothing_is_given_all_even_if_it_has_no_hash():
    class Vendor:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, draft: Draft) -> None:
            draft.fields.setdefault("outputs", "hi")

    assert read_run(span({}), strict, [Vendor(), *DIALECTS]).outputs == "hi"


def test_one_that_fails_costs_what_it_would_have_read_and_no_more():
    @applies_to("llm")
    def broken(draft: Draft) -> None:
        draft.fields["inputs"] = object()
        raise RuntimeError

    told: list[str] = []
    run = read_run(span({"llm.model_name": "m"}), lambda name, _: told.append(name), [broken, *DIALECTS])
    assert (told, run.model, run.inputs) == (["broken"], "m", None)


@pytest.mark.parametrize("record", [Run, Document, Usage])
def test_a_record_made_quickly_is_the_record(record):
    given = {one.name: one.name for one in fields(record)}
    made = make_fast_constructor(record)(*given.values())
    assert type(made) is record
    assert made == record(**given) == pickle.loads(pickle.dumps(made))
    with pytest.raises(FrozenInstanceError):
        setattr(made, next(iter(given)), 1)


def test_what_a_record_is_not_told_is_as_its_class_says():
    assert make_fast_constructor(Document)("c") == Document("c")
    assert make_fast_constructor(Document)("c").metadata is not make_fast_constructor(Document)("d").metadata


def requests(file: Path) -> Iterator[tuple[Codec[Any], bytes]]:
    for one in load(file):
        if one.method == "POST" and one.path.partition("?")[0].endswith("/v1/traces"):
            body = gzip.decompress(one.body) if one.headers.get("content-encoding") == "gzip" else one.body
            yield TRACES.json if "json" in one.headers["content-type"] else TRACES.protobuf, body


@pytest.mark.parametrize(
    "file", sorted(FIXTURES.rglob("*.jsonl.gz")), ids=lambda file: f"{file.parent.name}-{file.name}"
)
def test_what_was_sent_is_read_alike_with_all_remembered_and_nothing(file):
    for codec, body in requests(file):
        kept = decode(codec, body, Limits()).items
        anew = replace(codec, read=lambda span, fault: read_span_item(span, fault, [*DIALECTS]))
        for memo in MEMOS:
            memo.clear()
        assert repr(kept) == repr(decode(anew, body, Limits()).items)
