"""Values on pages: untrusted text stays text, and a page stays small."""

import html.parser
import time

import pytest
from markupsafe import Markup

from looped_cases import loop_over
from spanwise.collector.pages.components.content_view import ContentView, render_code, render_markdown
from spanwise.collector.pages.components.rendering import get_environment


def shown(value, **options):
    """The HTML of a value."""
    macros = get_environment().get_template("_content.html").make_module({})
    return str(macros.value(ContentView("/traces/t/runs/s/", **options).value(value, "inputs")))


class Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


EVIL = '<img src=x hx-get="/x" hx-trigger="load" id="detail" onerror=alert(1)><template><script>alert(2)</script></template>'


def message(*parts, role="assistant", **fields):
    return [{"role": role, "content": list(parts), **fields}]


@loop_over(
    "value",
    [
        EVIL,
        f"# Title\n\n{EVIL}\n\n- {EVIL}\n\n`{EVIL}`\n\n|{EVIL}|\n|---|\n|{EVIL}|\n",
        f"```{EVIL}\n{EVIL}\n```",
        f"<!doctype html>{EVIL}",
        {EVIL: EVIL, "deep": {EVIL: [EVIL, {EVIL: EVIL}]}},
        [{EVIL: EVIL}] * 3,
        [{"role": EVIL, "name": EVIL, "content": EVIL}],
        message({"type": "tool_use", "id": EVIL, "name": EVIL, "input": {EVIL: EVIL}}),
        message({"type": "tool_use", "id": EVIL, "name": EVIL, "input": EVIL}),
        message({"type": "tool_result", "tool_use_id": EVIL, "content": EVIL}, role="user"),
        message({"type": "thinking", "thinking": EVIL}),
        message({"type": "image_url", "image_url": {"url": EVIL}}),
        message({"type": "image_url", "image_url": {"url": f"javascript:{EVIL}"}}),
        message({"type": "image_url", "image_url": {"url": f"data:{EVIL};base64,{EVIL}"}}),
        message({"type": "file", "file": {"filename": EVIL, "file_data": EVIL}}),
        message({"type": "input_audio", "input_audio": {"data": EVIL, "format": EVIL}}),
        message({"type": EVIL, EVIL: EVIL}),
        [f"ChatMessage(role='user', content={EVIL!r})"],
    ],
)
def test_no_block_type_lets_markup_through(value):
    for raw in (False, True):
        for tag, attributes in Elements(shown(value, raw=raw)).found:
            assert tag not in ("script", "template", "img", "iframe", "style", "form")
            assert not {name for name in attributes if name.startswith("on") or name in ("id", "style")}
            assert [name for name in attributes if name.startswith("hx-")] in ([], ["hx-ignore"])


@loop_over(
    "text",
    [
        "[x](javascript:alert(1))",
        "[x](data:text/html,<script>alert(1)</script>)",
        "[x](vbscript:x)",
        "[x](JaVaScRiPt:alert(1))",
        "[x](&#106;avascript:alert(1))",
        "[x](//evil.example)",
        "[x](/rules)",
        "<javascript:alert(1)>",
        "![x](data:image/svg+xml;base64,PHN2Zz4=)",
        "[x]\n\n[x]: javascript:alert(1)",
    ],
)
def test_only_web_addresses_become_links(text):
    assert [attributes for tag, attributes in Elements(render_markdown(text)).found if tag in ("a", "img")] == []


def test_remote_images_become_links_that_leak_nothing():
    found = Elements(render_markdown("![a chart](https://evil.example/x.png) [b](https://e.com)")).found
    assert [tag for tag, _ in found] == ["p", "a", "a"]
    assert all(attributes["rel"] == "noopener noreferrer nofollow" for tag, attributes in found if tag == "a")
    assert "image: a chart" in render_markdown("![a chart](https://evil.example/x.png)")


def test_markdown_has_no_headings_inline_styles_or_ids():
    found = Elements(render_markdown("# A\n\n## B\n\n|a|b|\n|:-|-:|\n|1|2|\n\n~~c~~")).found
    assert not {"h1", "h2"} & {tag for tag, _ in found}
    assert not [attributes for _, attributes in found if {"style", "id"} & attributes.keys()]


def test_invisible_characters_are_shown_in_every_format():
    for text in ("# a\u202eb", "```\na\u202eb\n```", "a\u202eb", '{"a": "a\u202eb", "b": 1}'):
        assert "\u202e" not in shown(text)
        assert "⟨U+202E⟩" in shown(text)


@loop_over(
    "text",
    [
        "".join("  " * level + "- x\n" for level in range(100)),
        "> " * 5_000,
        "|a|b|\n|-|-|\n" + "|x|y|\n" * 170_000,
        "*a_ " * 2_500,
        "**a *b " * 1_500,
        "[" * 10_000,
        "[a](" * 2_500,
        "![[" * 3_300,
        "`" * 10_000,
        "<a " * 3_300,
        "&" * 10_000,
        "~~a " * 2_500,
        "[a]: b\n" * 1_400,
        "a\n=\n" * 2_500,
    ],
)
def test_hostile_markdown_takes_little_time(text):
    before = time.process_time()
    view = shown(text)
    assert time.process_time() - before < 1
    assert len(view) < 100_000


@loop_over("language", ["python", "c", "cpp", "javascript", "typescript", "html", "sql", "yaml", "diff", "unknown", ""])
def test_hostile_code_takes_little_time(language):
    for unit in ("/", " \n", "a\n", "(", "{", "<!--", "a.b", "'", "@", "- "):
        before = time.process_time()
        render_code((unit * 10_000)[:10_000], language)
        assert time.process_time() - before < 1


def test_code_has_classes_and_no_styles():
    html = render_code("def f(): return 'x'", "py")
    assert '<span class="hl-k">def</span>' in html
    assert "style" not in html
    assert render_code("<b>", "brainfuck") == Markup(
        '<pre class="code" tabindex="0" role="group" aria-label="code"><code>&lt;b&gt;</code></pre>'
    )


@loop_over(
    "value",
    [
        "x" * 5_000_000,
        "word " * 1_000_000,
        "- **a**\n" * 600_000,
        {"text": "x" * 5_000_000},
        {f"k{n}": "v" * 200 for n in range(400)},
        [{"id": n, "text": "some text"} for n in range(70_000)],
        [{"role": "user", "content": f"message {n} " * 20} for n in range(5_000)],
        [{"role": "user", "content": "x" * 5_000_000}],
        message({"type": "tool_use", "id": "1", "name": "f" * 1_000_000, "input": {"a": "x" * 5_000_000}}),
        {"a": {"b": {"c": [[["x" * 1_000] * 100] * 100]}}},
    ],
)
def test_a_huge_value_is_shown_in_part_with_a_link_to_the_whole(value):
    for raw in (False, True):
        html = shown(value, raw=raw)
        assert len(html) < 80_000
        assert 'href="/traces/t/runs/s/inputs"' in html


def test_deep_json_needs_no_recursion_beyond_its_limit():
    deep: object = 1
    for _ in range(900):
        deep = {"a": deep}
    assert shown(deep).count("<details") < 20


def test_null_fields_are_named_in_one_line():
    html = shown({"query": "x", "filters": None, "top_k": None})
    assert "Empty: filters, top_k" in html
    assert "<dt>filters" not in html


def test_text_of_others_has_its_own_direction_and_fields_are_a_table():
    html = shown({"question": "هل البطارية مسموحة؟", "user": {"tier": "gold"}})
    assert '<div class="text" dir="auto">هل' in html
    assert "<dt>tier</dt>" in html


def test_long_lists_of_numbers_are_one_line():
    assert "1,536 numbers" in shown({"embedding": [0.5] * 1_536, "a": 1})


@pytest.mark.parametrize(("count", "first"), [(1, None), (60, "Showing the last of them")])
def test_earlier_messages_are_folded(count, first):
    chat = [{"role": ("user", "assistant")[n % 2], "content": f"m{n}"} for n in range(2 * count + 1)]
    macros = get_environment().get_template("_content.html").make_module({})
    html = str(macros.value(ContentView("/a/").value(chat, "inputs", turn=True)))
    assert f"{2 * count} earlier messages" in html
    assert (first or "earlier") in html
    assert html.index("earlier messages") < html.index(f"m{2 * count}")
