"""Markdown and code as HTML: without HTML of the author, remote images, scripts, or addresses other than web links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from spanwise.collector.pages.components.escaping import mark_invisible

MAX_NESTING = 20  # levels of lists and quotations; deeper ones are shown as text
# Parsers take quadratic time for some texts. A text with more of these characters than any author writes is not parsed,
# and code with longer lines is not highlighted.
MAX_MARKS: Mapping[str, int] = {
    "[": 300,
    "*": 1_500,
    "_": 1_500,
    "~": 500,
    "`": 1_000,
    "|": 2_000,
    "<": 1_000,
    "&": 1_000,
}
MAX_HIGHLIGHTED = 4_000  # characters of code that is highlighted
MAX_HIGHLIGHTED_LINE = 200
MAX_HIGHLIGHTED_LINES = 300
# Pygments knows 500 languages. These cover what models write; Java, C# and Scala are left out because their lexers take
# seconds for hostile code of this size.
_LANGUAGES: Mapping[str, str] = {
    **{
        name: name
        for name in ("python", "javascript", "typescript", "json", "sql", "bash", "html", "xml", "css", "yaml")
    },
    **{name: name for name in ("toml", "go", "rust", "c", "cpp", "ruby", "php", "kotlin", "swift")},
    **{name: name for name in ("r", "diff", "ini", "jsx", "tsx", "lua", "perl", "graphql", "http", "pytb")},
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "ts": "typescript",
    "sh": "bash",
    "shell": "bash",
    "zsh": "bash",
    "yml": "yaml",
    "c++": "cpp",
    "rs": "rust",
    "rb": "ruby",
    "golang": "go",
}


def render_markdown(text: str) -> Markup:
    """Render Markdown. Images become links, and headings become bold lines outside the outline of the page."""
    shown = str(mark_invisible(text))
    if any(shown.count(mark) > most for mark, most in MAX_MARKS.items()):
        return Markup(f'<div class="text">{escape(shown)}</div>')
    return Markup(get_parser().render(shown))


def render_code(text: str, language: str = "") -> Markup:
    """Render code with CSS classes for its tokens; code of an unknown language is escaped only."""
    shown = str(mark_invisible(text))
    name = _LANGUAGES.get(language.lower())
    lines = shown.split("\n") if len(shown) <= MAX_HIGHLIGHTED else []
    is_short = 0 < len(lines) <= MAX_HIGHLIGHTED_LINES and max(map(len, lines)) <= MAX_HIGHLIGHTED_LINE
    html = highlight_code(shown, name) if name and is_short else str(escape(shown))
    label = f"code, {name}" if name else "code"
    return Markup(f'<pre class="code" tabindex="0" role="group" aria-label="{label}"><code>{html}</code></pre>')


def highlight_code(text: str, language: str) -> str:
    """Return the code with classes for its tokens."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return str(escape(text))
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="hl-")))


def is_web_link(address: str) -> bool:
    """Return whether an address in untrusted text may become a link."""
    return address.lower().startswith(("http://", "https://", "mailto:"))


class _Renderer(RendererHTML):
    """Renderer with the elements that pages style and secure."""

    def heading_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return f'<p class="heading h{tokens[index].tag[1:]}">'

    def heading_close(self, *_: Any) -> str:
        return "</p>\n"

    def link_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return _open_link(str(tokens[index].attrGet("href") or ""))

    def image(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        token = tokens[index]
        address, label = str(token.attrGet("src") or ""), escape(token.content or "image")
        return f"{_open_link(address)}image: {label}</a>" if is_web_link(address) else f"[image: {label}]"

    def fence(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        token = tokens[index]
        return str(render_code(token.content.rstrip("\n"), (token.info.split() or [""])[0]))

    def code_block(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return str(render_code(tokens[index].content.rstrip("\n")))

    def table_open(self, *_: Any) -> str:
        return '<div class="table" tabindex="0" role="group" aria-label="table"><table>\n'

    def table_close(self, *_: Any) -> str:
        return "</table></div>\n"

    def th_open(self, *_: Any) -> str:  # without the inline style of aligned columns
        return "<th>"

    def td_open(self, *_: Any) -> str:
        return "<td>"


def _open_link(address: str) -> str:
    shown = escape(address)
    return f'<a class="outside" href="{shown}" title="{shown}" rel="noopener noreferrer nofollow" target="_blank">'


@cache
def get_parser() -> MarkdownIt:
    """Return the Markdown parser."""
    options = {"html": False, "linkify": False, "breaks": True, "maxNesting": MAX_NESTING}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(["strikethrough", "table"])
    parser.validateLink = is_web_link  # type: ignore[method-assign,assignment]
    return parser
