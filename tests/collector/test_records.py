"""Records: what makes two feedbacks the same one, and the quick way to make one."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace

import orjson
import pytest

from assay.collector import _wire
from assay.collector.records import Feedback, Retention, Target, scored

TARGET = Target(trace_id="1" * 32)


def quick() -> Feedback:
    return scored(TARGET, "k", 0.5, source="code", evaluator="e", version="1")


def test_ids_are_those_of_stored_files() -> None:
    said = Feedback(target=TARGET, key="k", score=0.5, evaluator="e", version="1")
    of_ann = Feedback(
        target=replace(TARGET, span_id="a" * 16, document=2), key="k", label="x", source="human", author="ann"
    )
    assert said.id == "921226d97768c096e68a77375fea864c"
    assert of_ann.id == "0194cd7f19186585d0a2c299466fc3f7"
    assert replace(said, score=0.25, id="").id == said.id


def test_the_quick_way_makes_the_same() -> None:
    made = quick()
    slow = Feedback(target=TARGET, key="k", score=0.5, evaluator="e", version="1", created_ns=made.created_ns)
    assert type(made) is Feedback
    assert made == slow
    assert repr(made) == repr(slow)
    with pytest.raises(AttributeError):
        quick().key = "other"  # type: ignore[misc]


def test_an_id_that_nobody_has_asked_for_yet_is_written_all_the_same() -> None:
    known = "921226d97768c096e68a77375fea864c"
    assert pickle.loads(pickle.dumps(quick())).id == known
    assert asdict(quick())["id"] == known
    assert orjson.loads(orjson.dumps(quick()))["id"] == known
    assert _wire.decode(Feedback, _wire.encode(quick())).id == known


def test_another_attribute_is_none() -> None:
    with pytest.raises(AttributeError, match="a feedback has no 'scroe'"):
        quick().scroe  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", ["max_age_ns", "max_bytes"])
def test_a_retention_below_zero_would_give_up_what_is_yet_to_come(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} of a retention is -1"):
        Retention(**{name: -1})
