"""Outputs as the objects that the task returned, for evaluators that ask for them by annotation."""

import sys
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict

from spanwise.evaluators import Experiment, evaluate, evaluator, make_case, score
from spanwise.evaluators.interface import compute_version
from spanwise.tracer import trace

ROWS = [{"inputs": {"q": f"q{n}"}} for n in range(3)]
SEEN: list[Any] = []


class Answer(BaseModel):
    text: str
    on: date = date(2024, 1, 2)

    def shout(self) -> str:
        return self.text.upper()


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    on: date


@dataclass
class Reply:
    text: str
    pages: tuple[int, ...] = ()
    inner: Answer | None = None


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


@dataclass
class Opaque:
    handle: Any = field(default_factory=object)
    worker: "sys.flags" = None  # no type that pydantic knows


def note(outputs) -> bool:
    SEEN.append(outputs)
    return True


@pytest.fixture(autouse=True)
def seen():
    SEEN.clear()
    return SEEN


def run(task, judge, store, **options):
    return evaluate(ROWS, task, [judge], store=store, name="x", progress=False, **options)


def make_judge(hint, **options):
    def judge(outputs) -> bool:
        return note(outputs)

    judge.__annotations__["outputs"] = hint
    return evaluator(judge, **options)


VALUES = [
    (Answer, Answer(text="a")),
    (Reply, Reply("a", (1, 2), Answer(text="b"))),
    (Answer | None, Answer(text="a")),
    (Answer | str, Answer(text="a")),
    (Annotated[Reply, "note"], Reply("a")),
    (list[Answer], [Answer(text="a")]),
    (dict[str, Reply], {"x": Reply("a")}),
    (Box[int], Box[int](content=3)),
    (Strict, Strict(on=date(2024, 1, 2))),
]


@pytest.mark.parametrize(("hint", "value"), VALUES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_fresh_run_passes_the_object_and_a_stored_one_rebuilds_it(store, hint, value, asynchronous):
    async def later(q):
        return value

    judge = make_judge(hint)
    experiment = run(later if asynchronous else (lambda q: value), judge, store)
    assert experiment.summary()["judge"].n == 3
    assert value == SEEN[0]
    assert type(SEEN[0]) is type(value)
    assert SEEN[0] is not value
    Experiment.load(store, experiment.id).evaluate([make_judge(hint, key="again")])
    assert value == SEEN[-1]
    assert type(SEEN[-1]) is type(value)
    assert len(SEEN) == 6


def test_without_such_an_annotation_outputs_are_json(store):
    plain = {"text": "a", "on": "2024-01-02"}
    for hint in (None, dict, "dict[str, str]", Any, "Missing", str):
        run(lambda q: Answer(text="a"), make_judge(hint), store)
        assert SEEN[-1] == plain
        assert type(SEEN[-1]) is dict


def test_a_traced_task_passes_the_object_unless_it_recorded_other_outputs(store):
    from spanwise.tracer import current_run

    value = Answer(text="a")

    @trace
    def traced(q):
        return value

    @trace
    def other(q):
        current_run().set_outputs({"text": "b"})
        return value

    run(traced, make_judge(Answer), store)
    assert value == SEEN[-1]
    run(other, make_judge(Answer), store)
    assert SEEN[-1].text == "b"


def test_outputs_of_another_form_are_read_or_skipped_with_the_reason(store):
    run(lambda q: {"text": "a"}, make_judge(Answer), store)
    assert Answer(text="a") == SEEN[-1]
    experiment = run(lambda q: {"texts": "a"}, make_judge(Answer), store)
    (reason,) = experiment.summary().lacking.values()
    assert "outputs" in reason
    assert "Answer" in reason
    assert "text: Field required" in reason
    experiment = run(lambda q: "text", make_judge(Reply), store)
    assert experiment.summary()["judge"].skipped == 3
    assert experiment.summary()["judge"].failed == 0


def test_a_type_that_cannot_be_rebuilt_is_passed_fresh_and_skipped_when_stored(store):
    experiment = run(lambda q: Opaque(), make_judge(Opaque), store)
    assert experiment.summary()["judge"].n == 3
    assert isinstance(SEEN[-1], Opaque)
    again = experiment.evaluate([make_judge(Opaque, key="again")])
    assert again.summary()["again"].skipped == 3
    assert "Opaque" in again.summary().lacking["again"]


def test_none_is_an_answer_only_where_the_annotation_has_it(store):
    assert run(lambda q: None, make_judge(Answer | None), store).summary()["judge"].n == 3
    assert SEEN == [None] * 3
    assert run(lambda q: None, make_judge(Answer), store).summary()["judge"].skipped == 3


def test_failed_runs_are_skipped_as_before(store):
    def broken(q):
        raise ValueError

    assert run(broken, make_judge(Answer), store).summary()["judge"].skipped == 3


class Judge:
    def __call__(self, outputs: Answer, inputs: dict) -> bool:
        return note(outputs)


class Holder:
    def judge(self, outputs: Answer, /) -> bool:
        return note(outputs)

    async def later(self, outputs: Answer) -> bool:
        return note(outputs)


def with_option(outputs: Answer, option: int) -> bool:
    return note(outputs)


@pytest.mark.parametrize("function", [Judge(), Holder().judge, Holder().later, partial(with_option, option=1)])
def test_every_kind_of_function_gets_it(store, function):
    run(lambda q: Answer(text="a"), evaluator(function, key="k"), store)
    assert Answer(text="a") == SEEN[-1]


def test_a_mapped_argument_gets_the_whole_object_but_a_path_gets_json(store):
    def judge(answer: Answer, text: Answer | str) -> bool:
        SEEN.append((answer, text))
        return True

    run(lambda q: Answer(text="a"), evaluator(judge, map={"answer": "outputs", "text": "outputs.text"}), store)
    assert SEEN[-1] == (Answer(text="a"), "a")


def test_a_set_level_evaluator_gets_lists_of_json(store):
    @evaluator(summary=True)
    def whole(outputs: list[Answer]) -> float:
        SEEN.append(outputs)
        return 1.0

    run(lambda q: Answer(text="a"), whole, store)
    assert SEEN[-1] == [{"text": "a", "on": "2024-01-02"}] * 3


def test_evaluators_may_change_their_copy(store):
    def spoil(outputs: Reply) -> bool:
        outputs.text = "spoilt"
        return True

    def judge(outputs: Reply) -> bool:
        return note(outputs)

    evaluate(ROWS, lambda q: Reply("a"), [spoil, judge], store=store, progress=False)
    assert {each.text for each in SEEN} == {"a"}


def test_score_by_hand():
    value = Answer(text="a")
    assert score(make_judge(Answer), outputs=value).score is True
    assert value == SEEN[-1]
    assert type(SEEN[-1]) is Answer
    assert score(make_judge(Answer), outputs={"text": "b"}).score is True
    assert score(make_judge(Answer), make_case(None, outputs=value)).score is True
    assert score(make_judge(None), outputs=value).score is True
    assert [type(each) for each in SEEN] == [Answer, Answer, Answer, dict]


def test_versions_do_not_change():
    def judge(outputs: Answer) -> bool:
        return True

    assert evaluator(judge).version == compute_version("judge", function=judge)


@pytest.mark.parametrize("repetitions", [1, 2])
def test_resume_rebuilds_the_object(store, repetitions):
    run(lambda q: Answer(text="a"), make_judge(Answer, key="first"), store, limit=2)
    judge = make_judge(Answer, key="second")
    experiment = run(lambda q: Answer(text="a"), judge, store, resume=True, repetitions=repetitions)
    assert experiment.summary()["second"].n == 3 * repetitions
    assert all(type(each) is Answer for each in SEEN)
