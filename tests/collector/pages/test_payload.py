import time

import pytest
from markupsafe import Markup

from looped_cases import loop_over
from spanwise.collector.pages.components import rendering
from spanwise.collector.pages.components.rendering import allow_line_breaks, mark_invisible


def test_chat_messages_are_found():
    form = rendering.choose_layout(
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "temperature": 0}
    )
    assert [(message.role, str(message.content.html)) for message in form.messages] == [("user", "Hi")]
    assert [name for name, _ in form.rest] == ["temperature"]


def test_small_objects_become_named_fields():
    form = rendering.choose_layout({"question": "Why?", "k": 3})
    assert [(name, block.language) for name, block in form.fields] == [("question", "text"), ("k", "json")]


def test_lists_become_coloured_json():
    html = str(rendering.choose_layout([{"a": "<b>"}, 1.5, None]).block.html)
    assert '<span class="k">&#34;a&#34;</span>: <span class="s">&#34;&lt;b&gt;&#34;</span>' in html
    assert '<span class="n">1.5</span>' in html


@pytest.mark.parametrize("value", [None, {}, []])
def test_nothing_is_said_to_be_nothing(value):
    assert rendering.choose_layout(value) == rendering.ValueLayout()


def test_huge_values_are_folded_and_cut():
    block = rendering.make_block("x" * 1_000_000)
    assert (block.large, block.cut, block.length, len(block.html)) == (
        True,
        True,
        1_000_000,
        rendering.MAX_SHOWN_CHARACTERS,
    )


@pytest.mark.parametrize("text", ['"' + '\\"' * 50_000, "[" * 100_000, '"' * 100_000, "1" * 100_000, "\\" * 100_000])
def test_colouring_takes_linear_time(text):
    before = time.process_time()
    rendering.highlight_json(text)
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
    assert rendering.summarize_value(value) == text


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
    assert rendering.summarize_json_prefix(beginning) == text


def test_invisible_characters_are_shown():
    assert mark_invisible("a\x00b\u202ec\ud800\x1b") == "a␀b⟨U+202E⟩c\ufffd␛"


def test_a_name_may_break_after_its_underscores():
    assert allow_line_breaks("<a>_b") == "&lt;a&gt;_<wbr>b"


@loop_over(
    ("text", "large", "short", "cut"),
    [
        ("x" * 90, False, True, False),
        ("x" * 91, False, False, False),
        ("x\ny", False, False, False),
        ("x" * 2_400, False, False, False),
        ("x" * 2_401, True, False, False),
        ("x\n" * 29, False, False, False),
        ("x\n" * 30, True, False, False),
        ("x" * rendering.MAX_SHOWN_CHARACTERS, True, False, False),
        ("x" * (rendering.MAX_SHOWN_CHARACTERS + 1), True, False, True),
    ],
)
def test_what_is_folded_framed_and_cut(text, large, short, cut):
    block = rendering.make_block(text)
    assert (block.large, block.short, block.cut) == (large, short, cut)


@pytest.mark.parametrize(("count", "found"), [(0, False), (1, True), (200, True), (201, False)])
def test_a_conversation_is_not_too_long_to_be_one(count, found):
    assert bool(rendering.find_chat_messages([{"role": "user", "content": "Hi"}] * count)) is found


@loop_over("value", ["text", 5, {"messages": "none"}, [{"role": "user"}, "x"], [{"role": 1}], {"a": []}])
def test_what_is_no_conversation(value):
    assert rendering.find_chat_messages(value) is None


@pytest.mark.parametrize(("count", "named"), [(24, True), (25, False)])
def test_objects_of_many_fields_are_shown_as_json(count, named):
    form = rendering.choose_layout({str(n): n for n in range(count)})
    assert (len(form.fields) == count, form.block is None) == (named, named)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"content": "b"}], "a\nb"),
        ("plain", "plain"),
        ({"text": "a"}, '{\n  "text": "a"\n}'),
        ([{"text": "a"}, {"image": "b"}], '[\n  {\n    "text": "a"\n  },\n  {\n    "image": "b"\n  }\n]'),
        (["a"], '[\n  "a"\n]'),
    ],
)
def test_text_parts_of_a_message_are_joined_and_others_shown_whole(content, text):
    (message,) = rendering.choose_layout([{"role": "user", "content": content}]).messages
    assert Markup(message.content.html).striptags() == " ".join(text.split())


def test_a_message_may_be_of_tool_calls_alone():
    (message,) = rendering.choose_layout([{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]).messages
    assert (message.content, message.calls.language) == (None, "json")
    (message,) = rendering.choose_layout([{"role": "user", "parts": [{"content": "Hi"}], "tool_calls": []}]).messages
    assert (str(message.content.html), message.calls) == ("Hi", None)


def test_the_gist_of_a_conversation_is_what_was_said_last():
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "parts": [{"content": "Hello"}]}]
    assert rendering.summarize_value({"messages": talk, "temperature": 0}) == "Hello"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ('{"a": true}', '{<span class="k">&#34;a&#34;</span>: <span class="n">true</span>}'),
        ('"a', '<span class="s">&#34;a</span>'),
        ("-1.5e3, null", '<span class="n">-1.5e3</span>, <span class="n">null</span>'),
        ("<b>\x00", "&lt;b&gt;␀"),
    ],
)
def test_json_is_coloured_and_escaped(text, html):
    assert str(rendering.highlight_json(text)) == html


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (5, 5), ("a\tb\n", "a\tb\n"), ("\x7f", "⟨U+007F⟩")])
def test_what_templates_print(value, shown):
    assert mark_invisible(value) == shown


def test_trusted_markup_stays_as_it_is():
    assert mark_invisible(Markup("<b>\x00")) == Markup("<b>\x00")
