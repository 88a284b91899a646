"""Records: what makes two feedbacks the same one, and the quick way to make one; what was retrieved."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace

import orjson
import pytest

from spanwise.collector import record_encoding
from spanwise.collector.records import Document, Feedback, Retention, Run, Target, Trace, make_score

TARGET = Target(trace_id="1" * 32)


def quick() -> Feedback:
    return make_score(TARGET, "k", 0.5, source="code", evaluator="e", version="1")


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
    assert record_encoding.decode(Feedback, record_encoding.encode(quick())).id == known


def test_another_attribute_is_none() -> None:
    with pytest.raises(AttributeError, match="a feedback has no 'scroe'"):
        quick().scroe  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", ["max_age_ns", "max_bytes"])
def test_a_retention_below_zero_would_give_up_what_is_yet_to_come(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} of a retention rule must be >= 0, got -1"):
        Retention(**{name: -1})


def retrieving(*above: tuple[str, str | None, str]) -> list[str]:
    """What was retrieved in a trace of (id and document, parent, kind), "-" for a step without documents."""
    runs = [
        Run(
            trace_id="1" * 32,
            span_id=name,
            name=name,
            parent_id=parent,
            kind=kind,
            documents=() if name.startswith("-") else (Document(name),),
        )
        for name, parent, kind in above
    ]
    return [document.content for document in Trace(runs[0], tuple(runs)).documents]


def test_a_retriever_that_asks_others_gives_what_it_has_made_of_theirs() -> None:
    """As LangChain's and LlamaIndex's retrievers over retrievers do."""
    below = [("-", "all", "chain"), ("a", "all", "retriever"), ("b", "-", "retriever"), ("c", "-root", "retriever")]
    assert retrieving(("-root", None, "chain"), ("all", "-root", "retriever"), *below) == ["all", "c"]
    assert retrieving(("-root", None, "retriever"), ("a", "-root", "retriever"), ("b", "-root", "retriever")) == [
        "a",
        "b",
    ]


def test_steps_that_hand_documents_on_do_not_double_them() -> None:
    """Of senders that have no word for a retriever; two searches that have found the same are two."""

    found = (Document("three days", "d1", 0.9), Document("by ship", "d2", 0.4))
    root = Run(trace_id="1" * 32, span_id="-", name="answer")

    def heard(kind: str) -> list[str]:
        search = replace(root, span_id="a", parent_id="-", kind=kind, documents=found)
        sift = replace(search, span_id="b", documents=found[:1])
        return [document.content for document in Trace(root, (root, search, sift)).documents]

    assert heard("chain") == ["three days", "by ship"]
    assert heard("retriever") == ["three days", "by ship", "three days"]


def test_retrievers_in_a_circle_are_all_heard() -> None:
    circle = [("-root", None, "chain"), ("a", "b", "retriever"), ("b", "a", "retriever")]
    assert retrieving(*circle) == ["a", "b"]
    around = [("-root", None, "chain"), ("-x", "-y", "chain"), ("-y", "-x", "chain"), ("a", "-x", "retriever")]
    assert retrieving(*around) == ["a"]
