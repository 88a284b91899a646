import time

import pytest

from assay.collector.pages.kit import payload
from assay.collector.pages.kit.text import breakable, visible


def test_chat_messages_are_found():
    form = payload.layout(
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "temperature": 0}
    )
    assert [(message.role, str(message.content.html)) for message in form.messages] == [("user", "Hi")]
    assert [name for name, _ in form.rest] == ["temperature"]


def test_small_objects_become_named_fields():
    form = payload.layout({"question": "Why?", "k": 3})
    assert [(name, block.language) for name, block in form.fields] == [("question", "text"), ("k", "json")]


def test_lists_become_coloured_json():
    html = str(payload.layout([{"a": "<b>"}, 1.5, None]).block.html)
    assert '<span class="k">&#34;a&#34;</span>: <span class="s">&#34;&lt;b&gt;&#34;</span>' in html
    assert '<span class="n">1.5</span>' in html


@pytest.mark.parametrize("value", [None, {}, []])
def test_nothing_is_said_to_be_nothing(value):
    assert payload.layout(value) == payload.Layout()


def test_huge_values_are_folded_and_cut():
    block = payload.block("x" * 1_000_000)
    assert (block.large, block.cut, block.length, len(block.html)) == (True, True, 1_000_000, payload.SHOWN)


@pytest.mark.parametrize("text", ['"' + '\\"' * 50_000, "[" * 100_000, '"' * 100_000, "1" * 100_000, "\\" * 100_000])
def test_colouring_takes_linear_time(text):
    before = time.process_time()
    payload.highlight(text)
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ({"question": "Why?"}, "Why?"),
        ({"a": 1, "b": 2}, '{"a": 1, "b": 2}'),
        ([{"role": "user", "content": "Hi"}], "Hi"),
        (None, ""),
    ],
)
def test_the_gist_of_a_value(value, text):
    assert payload.gist(value) == text


@pytest.mark.parametrize(
    ("beginning", "text"),
    [
        ('{"q": "Why?", "k": 3}', '{"q": "Why?", "k": 3}'),
        ('["Wh', '["Wh'),
        ("x" * 241, "x" * 239 + "…"),
        ("plain  text\n", "plain text"),
        ("", ""),
    ],
)
def test_a_glimpse_of_the_beginning_of_a_value(beginning, text):
    assert payload.glimpse(beginning) == text


def test_invisible_characters_are_shown():
    assert visible("a\x00b\u202ec\ud800\x1b") == "a␀b⟨U+202E⟩c\ufffd␛"


def test_a_name_may_break_after_its_underscores():
    assert breakable("<a>_b") == "&lt;a&gt;_<wbr>b"
