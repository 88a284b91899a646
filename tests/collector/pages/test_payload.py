import time

import pytest
from markupsafe import Markup

from spanwise.collector.pages.components import content_view, rendering
from spanwise.collector.pages.components.content_view import allow_line_breaks, mark_invisible


@pytest.mark.parametrize("text", ['"' + '\\"' * 50_000, "[" * 100_000, '"' * 100_000, "1" * 100_000, "\\" * 100_000])
def test_colouring_takes_linear_time(text):
    before = time.process_time()
    content_view.highlight_json(text)
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    ("beginning", "text"),
    [
        ("x" * 241, "x" * 239 + "…"),
        ("plain  text\n", "plain text"),
        ("", ""),
    ],
)
def test_a_preview_is_one_line(beginning, text):
    assert rendering.shorten_preview(beginning) == text


def test_invisible_characters_are_shown():
    assert mark_invisible("a\x00b\u202ec\ud800\x1b") == "a␀b⟨U+202E⟩c\ufffd␛"


def test_a_name_may_break_after_its_underscores():
    assert allow_line_breaks("<a>_b") == "&lt;a&gt;_<wbr>b"


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
    assert str(content_view.highlight_json(text)) == html


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (5, 5), ("a\tb\n", "a\tb\n"), ("\x7f", "⟨U+007F⟩")])
def test_what_templates_print(value, shown):
    assert mark_invisible(value) == shown


def test_trusted_markup_stays_as_it_is():
    assert mark_invisible(Markup("<b>\x00")) == Markup("<b>\x00")
