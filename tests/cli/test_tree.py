"""A trace as a tree in the terminal."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from collector.making import SECOND, START, child, run
from looped_cases import loop_over
from spanwise.cli.commands.traces import render_trace
from spanwise.collector.records import Document, Feedback, OpenRun, Target, Trace, Usage

ROOT = run("answer", trace_id="a" * 32, inputs="why?", outputs={"text": "because"}, start_ns=START, project="p")


def printed(trace: Trace, **settings) -> str:
    out = io.StringIO()
    Console(file=out, width=400).print(render_trace(trace, **settings))
    return out.getvalue()


def feedback(**fields) -> Feedback:
    return Feedback(target=Target(trace_id="a" * 32), key="k", **fields)


@loop_over(
    ("fields", "value"),
    [
        ({"score": 0.25}, "0.25"),
        ({"score": True}, "yes"),
        ({"score": 1.0}, "1"),
        ({"score": 0.5, "label": "middling"}, "0.5"),
        ({"label": "kind"}, "kind"),
        ({"outcome": "error", "error": "boom"}, "boom"),
        ({"outcome": "skip"}, "skipped"),
    ],
)
def test_what_was_said_of_the_trace(fields, value):
    assert f"★ k = {value}  code" in printed(Trace(ROOT, (ROOT,), (feedback(**fields),)))


def test_who_said_it_and_why():
    by_ann = feedback(score=1, source="human", author="ann", comment="I checked")
    assert "★ k = 1  ann  I checked" in printed(Trace(ROOT, (ROOT,), (by_ann,)))
    assert "★ k = 1  regex" in printed(Trace(ROOT, (ROOT,), (feedback(score=1, evaluator="regex"),)))


@pytest.mark.parametrize(
    ("length", "text"), [(1_500, "2 µs"), (2 * 10**6, "2.0 ms"), (1_403 * 10**6, "1.40 s"), (90 * SECOND, "1 m 30 s")]
)
def test_how_long_each_run_took(length, text):
    root = run("answer", trace_id="a" * 32, start_ns=START, end_ns=START + length)
    assert f"answer  chain  {text}\n" in printed(Trace(root, (root,)))


def test_a_call_of_a_model_says_what_it_cost():
    root = run("chat", kind="llm", model="m-1", usage=Usage(10, 2), cost=0.001)
    assert "m-1  10 → 2 tokens  $0.001000" in printed(Trace(root, (root,)))


def test_children_stand_below_their_parents():
    first, second = child(ROOT, "first"), child(ROOT, "second", start_ns=START + 2)
    inner = child(first, "inner")
    text = printed(Trace(ROOT, (ROOT, inner, first, second)))
    places = [text.index(name) for name in ("answer", "first", "inner", "second")]
    assert places == sorted(places)


@pytest.mark.parametrize(("whole", "shown"), [(False, 400), (True, 500)])
def test_long_texts_are_cut_unless_they_are_wanted_whole(whole, shown):
    root = run(inputs="x" * 500)
    text = printed(Trace(root, (root,)), whole=whole)
    assert text.count("x") == shown
    assert ("… (500 characters)" in text) is not whole


@pytest.mark.parametrize(("whole", "shown"), [(False, 120), (True, 150)])
def test_documents_are_cut_sooner(whole, shown):
    root = run("search", documents=(Document("y" * 150, "doc-1", 0.5), Document("z")))
    text = printed(Trace(root, (root,)), whole=whole)
    assert text.count("y") == shown
    assert ("[0] doc-1 0.500  y" in text, "[1]   z" in text) == (True, True)


def test_a_trace_that_is_not_complete_says_so():
    assert "(not complete)" in printed(Trace(ROOT, (ROOT,), complete=False))
    assert "(not complete)" not in printed(Trace(ROOT, (ROOT,), complete=True))


def test_what_is_missing_is_said() -> None:
    begun = [OpenRun(trace_id="a" * 32, span_id=f"{n:016x}", name=f"slow{n}", start_ns=START + n) for n in range(7)]
    answer = child(ROOT, "remote")
    answer = replace(answer, attributes={"spanwise.local_root": answer.span_id})
    shown = printed(Trace(ROOT, (ROOT, answer), dropped=3, calls_sent=2, running=tuple(begun)))
    for words in ("3 spans were dropped by the sender", "slow0 is running since", "unless its process has died"):
        assert words in shown
    assert "2 more are running" in shown
    assert "2 calls were sent to other services, 1 of them answered by a traced process" in shown
    assert "Some spans are still open" in printed(Trace(ROOT, (ROOT,)))


def test_nothing_missing_is_not_mentioned() -> None:
    assert len(printed(Trace(ROOT, (ROOT,), complete=True)).splitlines()) == 4


def test_what_a_trace_holds_steers_no_terminal():
    evil = "\x1b[2J\u202e\x9b"
    root = replace(
        ROOT, name=evil, error=evil, model=evil, outputs=evil, project=evil, documents=(Document(evil, evil),)
    )
    shown = printed(Trace(root, (root,), (feedback(score=1.0, comment=evil, author=evil),)), whole=True)
    assert [letter for letter in shown if not letter.isprintable() and letter != "\n"] == []
    assert shown.count(r"\x1b[2J\u202e\x9b") == 9


def test_derived_values_are_marked():
    root = replace(ROOT, attributes={"spanwise.derived": ["outputs"]})
    out = printed(Trace(root=root, runs=(root,)))
    assert "in: why?" in out
    assert 'out (derived): {"text": "because"}' in out
