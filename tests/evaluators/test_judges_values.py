"""What a judge reads of a case: texts, documents, conversations, run trees; all bounded."""

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case, Document, Run, Trace
from spanwise.evaluators import make_case
from spanwise.evaluators.interface import Skip
from spanwise.evaluators.judges.prompt_templates import (
    bound_values,
    format_messages,
    read_full_conversation,
    render_trajectory,
    render_value,
    render_values,
)

TALK = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "And France?"},
]


def run(id, parent=None, *, start=0, kind="tool", **fields):
    ids = {"trace_id": "1" * 32, "span_id": id * 16, "parent_id": parent and parent * 16}
    return Run(**ids, name=f"run {id}", kind=kind, start_ns=start, **fields)


def test_documents_are_numbered_with_their_ids_and_addresses():
    documents = (Document("One."), Document("Two.", "d2"), Document("Three.", "d3", None, {"doc_uri": "https://x/3"}))
    assert render_value(documents) == "[1] One.\n\n[2] (d2) Two.\n\n[3] (d3, https://x/3) Three."


def test_a_retrieval_that_found_nothing_is_said():
    assert render_value(()) == "(no documents)"
    assert render_value([]) == "[]"


@loop_over(
    ("value", "text"),
    [
        ("as it is {x}", "as it is {x}"),
        ({"a": 1}, '{\n  "a": 1\n}'),
        (["x", None, True], '[\n  "x",\n  null,\n  true\n]'),
        (3, "3"),
        (2**70, "1180591620717411303424"),
        ({1: "\ud800"}, '{\n  "1": "\ud800"\n}'),
        ({"b", "a"}, '[\n  "a",\n  "b"\n]'),
        (TALK[:1], "user: Hello"),
    ],
)
def test_values_as_texts(value, text):
    assert render_value(value) == text


def test_a_value_that_holds_itself_is_a_text():
    circle = {"a": 1}
    circle["self"] = circle
    assert "'a': 1" in render_value(circle)


@pytest.mark.process
def test_a_value_that_nobody_can_write_down_is_named():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert render_value({"deep": deep}) == "(a dict that cannot be written down)"


def test_parts_of_messages_that_are_no_text_are_named():
    parts = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    spoken = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "search"}]},
    ]
    assert format_messages(spoken).startswith(
        'user: Look:\n(image_url left out)\nassistant: (calls {\n  "name": "search"'
    )


def shortened(value, bound):
    """What a question of that length shows of a value, and how many characters it leaves out."""
    fits = bound_values({"x": render_value(value)}, bound)
    return fits.values["x"], fits.left_out.get("x", 0)


def test_long_values_say_how_much_is_left_out():
    shown = "a" * 10 + "\n[… 100 characters left out …]\n" + "b" * 10
    assert shortened("a" * 60 + "b" * 60, 20) == (shown, 100)
    assert shortened("a" * 20, 20) == ("a" * 20, 0)


def test_a_long_document_leaves_room_for_the_others():
    shown, left_out = shortened((Document("a" * 1_000), Document("short")), 113)
    assert "[1] " + "a" * 48 + "\n[… 900 characters left out …]\n" + "a" * 52 in shown
    assert shown.endswith("[2] short")
    assert left_out == 900


@pytest.mark.process
def test_a_million_empty_documents_are_bounded():
    shown, left_out = shortened(tuple([Document("")] * 100_000), 1_000)
    assert len(shown) < 2_100
    assert left_out > 500_000


@pytest.mark.parametrize("inputs", [TALK, {"messages": TALK}, {"question": TALK}])
def test_of_a_conversation_the_last_turn_is_asked_and_the_rest_is_shown(inputs):
    case = Case(inputs=inputs, outputs="Paris")
    asked = "Earlier in the conversation:\nuser: Hello\nassistant: Hi.\n\nThe last turn:\nAnd France?"
    assert render_values(case, ("inputs", "outputs")) == {"inputs": asked, "outputs": "Paris"}
    assert render_values(case, ("inputs", "history")) == {
        "inputs": "And France?",
        "history": "user: Hello\nassistant: Hi.",
    }


def test_a_dict_that_is_no_message_is_json():
    assert render_values(Case(inputs={"type": "refund", "content": "x"}), ("inputs",))["inputs"].startswith(
        '{\n  "type"'
    )


def test_history_of_an_example_is_shown_above_what_is_asked():
    texts = render_values(Case(inputs="And France?", history=TALK[:2]), ("inputs",))
    assert texts["inputs"].endswith("assistant: Hi.\n\nThe last turn:\nAnd France?")


def turn(number, asked, answered):
    ids = {"trace_id": f"{number:032x}", "span_id": f"{number:016x}", "session_id": "s"}
    root = Run(**ids, name="chat", inputs={"q": asked}, outputs=answered, start_ns=number)
    return Trace(root, (root,))


def test_of_a_session_history_is_all_turns_and_outputs_the_last_answer():
    case = make_case([turn(2, "And you?", "Fine."), turn(1, "Hello", "Hi.")])
    texts = render_values(case, ("history", "outputs"))
    assert texts == {"history": "user: Hello\nassistant: Hi.\nuser: And you?\nassistant: Fine.", "outputs": "Fine."}


def test_the_last_turn_of_a_session_is_not_shown_twice():
    case = make_case([turn(1, "Hello", "Hi."), turn(2, "And you?", "Fine.")])
    above = render_values(case, ("inputs",))["inputs"]
    assert (
        above == 'Earlier in the conversation:\nuser: Hello\nassistant: Hi.\n\nThe last turn:\n{\n  "q": "And you?"\n}'
    )
    assert [message["role"] for message in read_full_conversation(case)] == ["user", "assistant"] * 2


def test_an_answer_in_messages_is_its_text():
    case = Case(inputs="x", outputs={"messages": [*TALK, {"role": "assistant", "content": "Paris"}]})
    assert render_values(case, ("outputs",)) == {"outputs": "Paris"}


def test_what_is_missing_is_named_and_what_may_be_is_put_into_words():
    with pytest.raises(Skip, match="needs reference_outputs and trace"):
        render_values(Case(outputs="x"), ("outputs", "reference_outputs", "trajectory"))
    assert render_values(Case(outputs="x"), ("outputs", "inputs"), optional={"inputs": "(none)"})["inputs"] == "(none)"


def test_a_run_tree_as_text():
    root = run("a", kind="agent", inputs={"q": "cats"}, outputs="none", end_ns=9)
    search = run("b", "a", start=2, inputs={"query": "cats"}, error="ValueError: no", status="error")
    plan = run("c", "a", start=1, kind="llm", outputs="search")
    below = run("d", "b", start=3, kind="retriever")
    assert render_trajectory(Trace(root, (root, search, plan, below))) == (
        '1. agent \'run a\'\n   inputs: {"q":"cats"}\n   outputs: none\n'
        "  2. llm 'run c'\n     outputs: search\n"
        '  3. tool \'run b\' failed\n     inputs: {"query":"cats"}\n     error: ValueError: no\n'
        "    4. retriever 'run d'"
    )


def test_runs_below_nothing_or_below_each_other_are_shown_once():
    root = run("a")
    runs = (root, run("b", "f", start=1), run("c", "d", start=2), run("d", "c", start=3), run("e", "e", start=4))
    shown = render_trajectory(Trace(root, runs))
    assert [shown.count(f"'run {id}'") for id in "abcde"] == [1] * 5


def test_runs_of_evaluators_are_left_out_with_what_is_below_them():
    root = run("a")
    runs = (root, run("b", "a", kind="evaluator"), run("c", "b", kind="llm"), run("d", "c"), run("e", "a"))
    assert [id for id in "abcde" if f"'run {id}'" in render_trajectory(Trace(root, runs))] == ["a", "e"]


def test_a_run_tree_knows_how_much_of_it_is_left_out():
    ends = [run("b", "a", start=1, outputs="x" * 50), run("c", "a", start=2, outputs="y" * 2_600)]
    shown = render_trajectory(Trace(run("a"), (run("a"), *ends)))
    assert "[… 600 characters left out …]" in shown
    assert bound_values({"trajectory": render_value(shown)}, 100_000).left_out == {"trajectory": 600}
    assert render_trajectory(Trace(run("a"), (run("a"), ends[0]))).left_out == 0


@pytest.mark.parametrize("nested", [False, True])
def test_of_thousands_of_runs_the_first_and_the_last_are_shown(nested):
    ids = {"trace_id": "1" * 32, "inputs": "x" * 500}
    runs = [
        Run(
            **ids,
            span_id=f"{n:016x}",
            parent_id=f"{n - 1 if nested else 0:016x}" if n else None,
            name=f"n{n}",
            start_ns=n,
        )
        for n in range(5_000)
    ]
    shown = render_trajectory(Trace(runs[0], tuple(runs)), 10_000)
    assert len(shown) < 10_100
    assert shown.startswith("1. chain 'n0'")
    assert "runs left out …]" in shown
    assert "'n4999'" in shown


def test_a_run_with_a_huge_value_and_name_is_bounded():
    root = run("a", inputs="x" * 10**6, outputs={"a": "y" * 10**6}, error="z" * 10**6)
    assert len(render_trajectory(Trace(root, (root,)))) < 8_000
