"""Capturing any value: it never raises, is always valid JSON, and is bounded."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import threading
import time
import uuid
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.tracer import internal_errors, span, trace
from spanwise.tracer.content.documents import convert_documents, flatten_documents, parse_document, read_document_list
from spanwise.tracer.content.serialization import to_json, truncate_text
from spanwise.tracer.testing import Spans, capture_spans

MIB = 1 << 20


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


class Model(pydantic.BaseModel):
    name: str
    secret: str = pydantic.Field(default="s", exclude=True)
    when: datetime.date = datetime.date(2026, 1, 2)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes")


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, {"a": [1, 2.5, None, True, "ü"]}),
        (Point(1, {2}), {"x": 1, "y": [2]}),
        (Model(name="n"), {"name": "n", "when": "2026-01-02"}),
        (Colour.RED, "red"),
        (Pair(1, 2), {"a": 1, "b": 2}),
        (np.arange(3), [0, 1, 2]),
        (np.float32(0.5), 0.5),
        (np.zeros((2, 2)), [[0.0, 0.0], [0.0, 0.0]]),
        (datetime.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
        (datetime.timedelta(seconds=5), "0:00:05"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a"), "/a"),
        (b"bytes", "bytes"),
        (b"\xff\x00", "base64:/wA="),
        ((1, frozenset([2]), collections.deque([3])), [1, [2], [3]]),
        (ValueError("bad"), "ValueError: bad"),
        ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "None": "b", "(1, 2)": "c"}),
        (float("nan"), None),
        ([Point, 2**70], [f"{Point!r}", str(2**70)]),
        ("\ud800", "?"),
    ],
)
def test_values_become_what_one_expects(value: Any, expected: Any) -> None:
    assert orjson.loads(to_json(value, MIB)) == expected


def test_keys_with_the_same_text_keep_their_values() -> None:
    value = {1: "int", "1": "str", "1~2": "taken", (1,): "tuple", "…": "dots"}
    assert orjson.loads(to_json(value, 1000)) == {
        "1": "int",
        "1~2": "str",
        "1~2~2": "taken",
        "(1,)": "tuple",
        "…": "dots",
    }
    cut = orjson.loads(to_json(value, 1000, nodes=4))
    assert cut == {"1": "int", "1~2": "str", "1~2~2": "taken", "…": "[cut: 2 more keys]"}


def test_cycles_depth_and_hostile_objects() -> None:
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    rewritten = orjson.loads(to_json([cycle, Hostile(), deep], MIB))
    assert rewritten[0] == {"me": "…[cycle]"}
    assert rewritten[1].startswith("[Hostile")
    assert "nested too deeply" in to_json(deep, MIB)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.uuids()
    | st.decimals()
    | st.complex_numbers()
    | st.none().map(lambda _: Hostile())
    | st.sampled_from([Colour.RED, object(), len, Point, np.nan])
    | st.characters(categories=["Cs"]),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.builds(Point, inner, inner)
        | st.builds(ValueError, inner)
    ),
    max_leaves=30,
)


class Ending:
    def __repr__(self):
        raise SystemExit


def test_no_way_to_say_what_a_value_is_ends_a_program():
    assert orjson.loads(to_json([Ending()], MIB)) == ["[Ending whose repr raised SystemExit]"]


def test_what_is_not_there_is_null_however_it_is_written():
    given = {1: float("nan"), 2: np.array([np.nan, 1.0]), 3: pd.NA, 4: pd.DataFrame({"a": [pd.NaT]})}
    assert orjson.loads(to_json(given, MIB)) == {"1": None, "2": [None, 1.0], "3": None, "4": [{"a": None}]}


def test_a_large_table_gives_its_first_rows():
    rows = orjson.loads(to_json(pd.DataFrame({"a": range(30_000)}), MIB))
    assert (rows[0], rows[-1]) == ({"a": 0}, f"…[cut: {30_001 - len(rows):,} more rows]")


@pytest.mark.process
@given(values, st.integers(0, 300))
@settings(max_examples=300, deadline=None)
def test_anything_becomes_bounded_valid_json(value: Any, limit: int) -> None:
    text = to_json(value, limit)
    orjson.loads(text)
    assert len(text.encode()) <= limit + 300


@pytest.mark.process
@given(values)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_value_ever_raises_into_the_caller(value: Any) -> None:
    with capture_spans(redact=["password"]) as traced:

        @trace(kind="retriever", metadata={"v": value})
        def work(x: Any, *rest: Any) -> Any:
            with span("inner", inputs=x) as run:
                run.set_documents([x])
                run.set_metadata({"v": x})
                run.set_attribute("v", x)
                run.feedback("k", 1.0, comment=x, metadata={"v": x})
            return [x]

        result = work(value, value)
        assert result == [value] or result[0] is value
        assert traced.names() == ["work", "inner"]


def test_long_texts_are_cut_and_say_so() -> None:
    with capture_spans(max_value_bytes=1000) as traced:
        with span("s", inputs="word " * 1000) as run:
            run.set_outputs({"rows": ["x" * 10] * 500, "more": 1})
        assert traced.inputs("s").endswith(" of 5,000 characters]")
        assert len(traced.inputs("s")) < 1100
        rows = traced.outputs("s")["rows"]
        assert rows[-1] == f"…[cut: {501 - len(rows):,} more items]"


def test_a_cut_takes_the_last_word_along() -> None:
    assert truncate_text("my key is sk-123456789", 15) == "my key is…[cut 13 of 22 characters]"


def test_a_megabyte_is_kept_whole(traced: Spans) -> None:
    prompt = "word " * 200_000
    with span("s", inputs=prompt):
        pass
    assert traced.inputs("s") == prompt


def test_third_party_attributes_are_bounded_and_stay_json(traced: Spans) -> None:
    with capture_spans(max_value_bytes=2000) as spans:
        with span("s") as run:
            run.span.set_attribute("input.value", orjson.dumps({"a": ["x" * 50] * 500}).decode())
            run.span.set_attribute("odd", {1, 2})  # type: ignore[arg-type]
        attributes = dict(spans.one("s").attributes or {})
        assert len(str(attributes["input.value"])) < 2500
        assert "more items" in orjson.loads(str(attributes["input.value"]))["a"][-1]
        assert attributes["odd"] == "[1,2]"


class PageContent:
    def __init__(self, page_content: str | None, metadata: dict[str, Any], id: str | None = None) -> None:
        self.page_content, self.metadata, self.id = page_content, metadata, id


class TextNode:
    def __init__(self, text: str, node_id: str) -> None:
        self.text, self.node_id, self.metadata = text, node_id, {"m": 1}


class NodeWithScore:
    def __init__(self, node: TextNode, score: float) -> None:
        self.node, self.score = node, score


@dataclasses.dataclass
class Haystack:
    id: str
    content: str | None
    meta: dict[str, Any]
    score: float
    embedding: list[float]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", ("text", None, None, {})),
        ({"content": "c", "doc_uri": "u", "score": 1}, ("c", "u", 1.0, {})),
        ({"page_content": "c", "metadata": {"id": "i"}}, ("c", "i", None, {"id": "i"})),
        ({"text": "c", "id": 7}, ("c", "7", None, {})),
        (PageContent("c", {"doc_uri": "u"}), ("c", "u", None, {"doc_uri": "u"})),
        (NodeWithScore(TextNode("c", "n"), 0.5), ("c", "n", 0.5, {"m": 1})),
        (Haystack("h", "c", {"a": 1}, 0.25, [0.0] * 9), ("c", "h", 0.25, {"a": 1})),
        ((PageContent("c", {}), 0.75), ("c", None, 0.75, {})),
        (Haystack("h", None, {}, 0.25, []), ("", "h", 0.25, {})),
        (PageContent(None, {}), ("", None, None, {})),
        ({"content": None}, ("", None, None, {})),
        ({"id": 7}, ("", "7", None, {})),
    ],
)
def test_documents_by_duck_typing(traced: Spans, given: Any, expected: tuple[Any, ...]) -> None:
    flat = flatten_documents(read_document_list(to_json(convert_documents([given]), MIB)))
    fields = {k.removeprefix("retrieval.documents.0.document."): v for k, v in flat.items()}
    metadata = orjson.loads(fields.get("metadata", "{}"))
    assert (fields["content"], fields.get("id"), fields.get("score"), metadata) == expected


def test_haystack_and_dict_results_hold_documents() -> None:
    text = to_json(convert_documents({"documents": [Haystack("h", "c", {}, 0.5, [])]}), MIB)
    fields = flatten_documents(read_document_list(text))
    assert fields["retrieval.documents.0.document.id"] == "h"


def test_what_is_no_document_is_left_alone() -> None:
    from unittest.mock import MagicMock

    assert parse_document(5) is None
    assert convert_documents([5, None]) == [5, None]
    assert read_document_list(to_json(convert_documents([MagicMock()]), MIB)) is not None
    assert read_document_list("not json") == []


class Unanswering:
    """Answers every question, `__class__` too, with an exception."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class HostileKind(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class HostileText(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __str__(self) -> str:
        raise RuntimeError("str")


class FailingModel(pydantic.BaseModel):
    @pydantic.model_serializer
    def serialize(self) -> dict[str, Any]:
        raise ValueError("no")


HOSTILE: list[Any] = [
    Unanswering(),
    HostileKind("HostileClass", (), {})(),
    HostileText("x"),
    FailingModel(),
    [Unanswering()],
    {"a": FailingModel()},
    "\ud800",
    {"\ud800": 1},
    [10**5000],
    range(10**9),
    (i for i in "abc"),
    np.zeros((3000, 3000)),
    np.array([object()]),
]


@pytest.mark.parametrize("kind", ["chain", "retriever"])
def test_a_hostile_value_costs_itself_never_its_span(traced: Spans, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_errors, "strict", False)
    for value in HOSTILE:
        with span("root") as run:
            trace(kind=kind)(lambda v: None)(value)
            trace(kind=kind)(lambda: value)()  # noqa: B023
            run.set_attribute("k", value)
            run.set_outputs(value)
            run.set_documents([value])
            run.set_model(value)
            run.set_prompt(value, version=value, template=value, variables={"v": value})
            run.set_prompt("p", variables=value)
            run.set_tags(value)
            run.set_metadata(v=value)
            run.feedback("k", value, comment=value, metadata={"v": value})
    assert traced.names().count("root") == len(HOSTILE)
    assert traced.names().count("<lambda>") + traced.names().count("root") == len(traced.ended) == 3 * len(HOSTILE)


def test_a_name_that_is_no_text_does_not_lose_the_span(traced: Spans) -> None:
    with span("a") as run:
        run.set_name(5)  # type: ignore[arg-type]
    with span(HostileText("b")):
        pass
    assert traced.names() == ["5", "b"]


def test_of_many_documents_only_the_first_are_looked_at(traced: Spans) -> None:
    class Doc:
        looked = 0

        @property
        def page_content(self) -> str:
            Doc.looked += 1
            return "x"

    trace(name="search", kind="retriever")(lambda: [Doc()] * 100_000)()
    assert 0 < Doc.looked <= 1_000
    assert traced.outputs("search")[0]["content"] == "x"


class Tensor:
    """As torch has it: `size` is a method, the number of items is `numel()`."""

    shape = (2000, 2000)
    looked = 0

    def size(self) -> tuple[int, int]:
        return self.shape

    def numel(self) -> int:
        return 4_000_000

    def reshape(self, _: int) -> np.ndarray[Any, Any]:
        return np.zeros(4_000_000)

    def tolist(self) -> list[Any]:
        raise AssertionError("all of it was asked for")


def test_of_a_large_tensor_or_series_the_beginning_is_kept() -> None:
    for value in (Tensor(), pd.Series(range(100_000))):
        array = orjson.loads(to_json(value, 1 << 20))
        assert len(array["head"]) == 1000
        assert "more items" in array["…"]


@pytest.mark.process
def test_a_dict_that_another_thread_changes_is_still_recorded() -> None:
    shared: dict[str, Any] = {str(i): decimal.Decimal(i) for i in range(100)}
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            shared.pop("x", None)
            shared["x"] = decimal.Decimal(1)

    thread = threading.Thread(target=change)
    thread.start()
    texts = [to_json({"state": shared}, 1 << 20) for _ in range(300)]
    stop.set()
    thread.join()
    assert not [text for text in texts if "could not be captured" in text]


@pytest.mark.process
def test_a_repr_that_waits_costs_twice_and_not_for_each_value() -> None:
    asked = []

    class Sleeps:
        def __repr__(self) -> str:
            asked.append(self)
            time.sleep(0.3)
            return "awake"

    first, *_ = (orjson.loads(to_json([Sleeps() for _ in range(20)], 1000)) for _ in range(3))
    assert first == ["awake", "…[cut: 19 more items]"]
    assert to_json(Sleeps(), 1000) == '"[Sleeps whose repr takes too long]"'
    assert len(asked) == 2


class Quits:
    @property
    def tolist(self) -> Any:
        raise SystemExit

    __class__ = tolist  # type: ignore[assignment]


def test_an_attribute_that_ends_programs_ends_none() -> None:
    assert orjson.loads(to_json({"a": Quits()}, 1000)) == {"a": "[Quits that could not be captured: SystemExit]"}
