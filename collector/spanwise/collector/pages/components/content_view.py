"""Rendering of untrusted values as HTML: escaping, Markdown and code, chat messages, fields and blocks.

A view renders the values of one page in the order in which they are shown. Each takes its share of the page's limit
of characters, so that a page stays small whatever a trace contains. A cut value links to the whole one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from spanwise.collector import content, formatting
from spanwise.collector.content import Block, Message
from spanwise.collector.records import JSON

# Escaping of untrusted text for HTML: visible marks for invisible characters, JSON with highlighted tokens.

# Control characters, lone surrogates, and characters that reorder or hide text (bidirectional controls, zero-width).
_INVISIBLE_PATTERN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def make_visible_mark(match: re.Match[str]) -> str:
    """Return the visible mark of an invisible character."""
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


def mark_invisible(value: object) -> object:
    """Return a value for printing: "" for None, visible marks for invisible characters, trusted markup unchanged.

    Jinja calls this on every expression of a template before it escapes the result.
    """
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _INVISIBLE_PATTERN.sub(make_visible_mark, value)
    return value


def allow_line_breaks(text: str) -> Markup:
    """Return a name with optional line breaks after underscores, dots and dashes."""
    return Markup(re.sub(r"([_.-]+)", r"\1<wbr>", str(escape(mark_invisible(text)))))


_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null|NaN|-?Infinity)\b')


def format_json(value: JSON) -> str:
    """Return indented JSON; unsupported values are shown as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def highlight_token(match: re.Match[str]) -> str:
    """Return a token of JSON in an element with the class of its kind."""
    string, colon, figure, word = match.groups()
    if string is not None:
        return f'<span class="{"k" if colon else "s"}">{escape(mark_invisible(string))}</span>{colon or ""}'
    return f'<span class="n">{escape(figure or word)}</span>'


def highlight_json(text: str) -> Markup:
    """Return JSON text with keys, strings and numbers in `<span>` elements. All text is escaped."""
    parts, position = [], 0
    for match in _TOKEN.finditer(text):
        parts += [str(escape(mark_invisible(text[position : match.start()]))), highlight_token(match)]
        position = match.end()
    return Markup("".join([*parts, str(escape(mark_invisible(text[position:])))]))


# Markdown and code as HTML: without HTML of the author, remote images, scripts, or addresses other than web links.

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


# Rendering of values within a limit per page: chat messages, fields, and blocks as HTML.

MAX_PAGE_CHARACTERS = 30_000  # characters of values on one page
MAX_BLOCK_CHARACTERS = 10_000  # of one block
MIN_BLOCK_CHARACTERS = 200  # shown of a block even if the page's limit is used up
MAX_EARLIER_MESSAGES = 30  # messages of a chat before those of this turn
MAX_MESSAGES = 100
MAX_NODES = 250  # keys and items of one JSON value
MAX_DEPTH = 12  # levels of a JSON value; deeper ones are shown as one line
_MAX_STRING = 1_000  # characters of a text inside a JSON value
_MAX_NUMBERS = 4  # numbers of a list that are shown, such as of an embedding
_OPEN_ITEMS = 12  # a value inside a JSON value is open if it has at most this many items


class ToolRun(NamedTuple):
    """Run of the tool that a model has called."""

    address: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block with the HTML of its text or value."""

    block: Block
    html: Markup
    result: BlockView | None = None
    source: str = ""  # address on this server of an image or a recording
    link: str = ""  # address on another server
    run: ToolRun | None = None
    note: str = ""  # why a medium is not shown


@dataclass(frozen=True, slots=True)
class MessageView:
    """One chat message."""

    role: str
    name: str
    blocks: tuple[BlockView, ...]


@dataclass(frozen=True, slots=True)
class ValueView:
    """One value. `earlier` holds the last of the `count_earlier` messages of earlier turns."""

    messages: tuple[MessageView, ...] = ()
    earlier: tuple[MessageView, ...] = ()
    count_earlier: int = 0
    fields: tuple[tuple[str, BlockView], ...] = ()
    empty_fields: tuple[str, ...] = ()
    blocks: tuple[BlockView, ...] = ()
    raw: Markup | None = None
    note: str = ""  # how much of the value is shown, if it is cut
    whole: str = ""  # address of the complete value


class ContentView:
    """Renderer of the values of a page.

    `address` is the start of the addresses of the run's values, and `tool_runs` has the run of each tool call by
    its id. With `raw`, values are shown as they were sent.
    """

    def __init__(
        self,
        address: str = "",
        *,
        limit: int = MAX_PAGE_CHARACTERS,
        raw: bool = False,
        tool_runs: Mapping[str, ToolRun] | None = None,
    ) -> None:
        self.address, self.raw, self.tool_runs = address, raw, tool_runs or {}
        self._left = limit
        self._cut = False

    def value(self, value: JSON, part: str = "", *, turn: bool = False) -> ValueView:
        """Render a value. `part` is its name in addresses. With `turn`, chat messages of earlier turns are folded."""
        self._cut = False
        view = self.render_raw(value) if self.raw else self._render_content(value, part, turn)
        if not self._cut:
            return view
        size = formatting.characters(len(value)) if isinstance(value, str) else "the value"
        whole = f"{self.address}{part}" if self.address and part else ""
        return replace(view, note=f"Showing a part of {size}.", whole=whole)

    def text(self, text: str) -> BlockView:
        """Render a text as the block that it looks like."""
        return self._block(content.read_text(text))

    def render_raw(self, value: JSON) -> ValueView:
        """Render a value as it was sent."""
        if value is None:
            return ValueView()
        if isinstance(value, str):
            return ValueView(raw=escape(mark_invisible(self._take(value))))
        return ValueView(raw=highlight_json(self._take(_dump_start(value, MAX_BLOCK_CHARACTERS + 1))))

    def _render_content(self, value: JSON, part: str, turn: bool) -> ValueView:
        read = content.read_content(value)
        field_blocks = [(name, content.read_field(item)) for name, item in read.fields]
        start = content.find_turn(read.messages) if turn else 0
        first, end = max(0, start - MAX_EARLIER_MESSAGES), start + MAX_MESSAGES
        sources: dict[int, str] = {}
        if part:
            found = {
                f"{at}.{n}": b
                for at in range(first, min(end, len(read.messages)))
                for n, b in enumerate(read.messages[at].blocks)
            }
            found |= {f"f{n}": block for n, (_, block) in enumerate(field_blocks) if block}
            found |= {f"b{n}": block for n, block in enumerate(read.blocks)}
            base = f"{self.address}media/{part}?at="
            sources = {id(block): base + place for place, block in found.items() if block.kind in content.MEDIA_KINDS}
        self._cut |= len(read.messages) > end
        current = self._messages(content.join_tool_results(read.messages[start:end]), sources)
        fields = tuple((name, self._block(block, sources)) for name, block in field_blocks if block)
        return ValueView(
            messages=current,
            earlier=self._messages(content.join_tool_results(read.messages[first:start]), sources),
            count_earlier=start,
            fields=fields,
            empty_fields=tuple(name for name, block in field_blocks if block is None),
            blocks=tuple(self._block(block, sources) for block in read.blocks[:MAX_MESSAGES]),
            whole=f"{self.address}{part}" if first and self.address and part else "",
        )

    def _messages(self, messages: Iterable[Message], sources: Mapping[int, str]) -> tuple[MessageView, ...]:
        return tuple(
            MessageView(message.role, message.name, tuple(self._block(block, sources) for block in message.blocks))
            for message in messages
        )

    def _block(self, block: Block, sources: Mapping[int, str] | None = None) -> BlockView:
        if block.kind == "markdown":
            return BlockView(
                block, Markup(f'<div class="markdown" dir="auto">{render_markdown(self._take(block.text))}</div>')
            )
        if block.kind == "code":
            return BlockView(block, render_code(self._take(block.text), block.language))
        if block.kind in ("text", "reasoning"):
            return BlockView(block, render_text(self._take(block.text)))
        if block.kind in ("image", "audio", "file"):
            return self._medium(block, (sources or {}).get(id(block), ""))
        html = self.render_any_value(block.value)
        result = self._block(block.result) if block.result else None
        return BlockView(block, html, result, run=self.tool_runs.get(block.call_id or ""))

    def render_any_value(self, value: JSON) -> Markup:
        """Render the arguments or the result of a tool, or a JSON value."""
        if isinstance(value, str):
            return self._block(content.read_text(value)).html
        return JsonTree(self).render(value)

    def _medium(self, block: Block, source: str) -> BlockView:
        text = render_text(self._take(block.text)) if block.text else Markup()
        if content.find_media_type(block) and source:
            return BlockView(block, text, source=source)
        if block.url:
            return BlockView(block, text, link=block.url if is_web_link(block.url) else "", note=block.url[:200])
        size = len(block.data) * 3 // 4
        reasons = [block.media_type or "unknown type", f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size:,} bytes"]
        return BlockView(block, text, note=", ".join(reasons))

    def take(self, text: str, most: int) -> str:
        """Return the part of a text that the page may still show, at most `most` characters."""
        room = min(most, max(self._left, MIN_BLOCK_CHARACTERS))
        shown = text if len(text) <= room else text[:room] + "…"
        self._left -= len(shown)
        self._cut |= len(text) > room
        return shown

    def _take(self, text: str) -> str:
        return self.take(text, MAX_BLOCK_CHARACTERS)

    @property
    def is_full(self) -> bool:
        """Return whether the page's limit is used up."""
        return self._left <= 0

    def mark_cut(self) -> None:
        """Record that the page does not show the whole value."""
        self._cut = True


def render_text(text: str) -> Markup:
    """Render a text by a person or a model, with its line breaks."""
    return Markup(f'<div class="text" dir="auto">{escape(mark_invisible(text))}</div>')


class JsonTree:
    """Renderer of a JSON value: fields as a table, values inside it as trees that open level by level."""

    def __init__(self, view: ContentView) -> None:
        self._view = view
        self._left = MAX_NODES

    def render(self, value: JSON) -> Markup:
        """Render a value with at most `MAX_NODES` keys and items."""
        return Markup(f'<div class="tree-value" data-tree>{self._render(value, 0)}</div>')

    def _render(self, value: JSON, depth: int) -> str:
        if isinstance(value, Mapping | list) and value:
            if isinstance(value, list) and _is_flat(value):
                numbers = ", ".join(map(str, value[:_MAX_NUMBERS]))
                return f'<span class="n">{escape(numbers)}, …</span> <span class="muted small">{len(value):,} numbers</span>'
            if depth >= MAX_DEPTH:
                return f"<code>{escape(mark_invisible(self._view.take(_dump_start(value, _MAX_STRING), _MAX_STRING)))}</code>"
            return self._render_items(value, depth)
        if isinstance(value, str):
            text = escape(mark_invisible(self._view.take(value, _MAX_STRING)))
            return f'<span class="str" dir="auto">{text}</span>' if value else '<span class="muted">""</span>'
        return f'<span class="n">{escape(self._view.take(json.dumps(value, default=str), _MAX_STRING))}</span>'

    def _render_items(self, value: Mapping[str, JSON] | Sequence[JSON], depth: int) -> str:
        pairs: Iterable[tuple[object, JSON]] = value.items() if isinstance(value, Mapping) else enumerate(value)
        rows = []
        for shown, (key, item) in enumerate(pairs):
            if self._left <= 0 or self._view.is_full:
                self._view.mark_cut()
                rows.append(f'<div class="more"><dt></dt><dd class="muted">{len(value) - shown:,} more</dd></div>')
                break
            self._left -= 1
            name = escape(mark_invisible(self._view.take(str(key), 200)))
            if isinstance(item, Mapping | list) and item and depth + 1 < MAX_DEPTH and not _is_flat(item):
                inner = self._render(item, depth + 1)
                noun = "field" if isinstance(item, Mapping) else "item"
                is_open = " open" if depth == 0 and len(item) <= _OPEN_ITEMS else ""
                body = f"<details{is_open}><summary>{len(item):,} {noun}{'s' * (len(item) != 1)}</summary>{inner}</details>"
            else:
                body = self._render(item, depth + 1)
            rows.append(f"<div><dt>{name}</dt><dd>{body}</dd></div>")
        return f'<dl class="tree{" list" if isinstance(value, list) else ""}">{"".join(rows)}</dl>'


def _is_flat(value: JSON) -> bool:
    return isinstance(value, list) and len(value) > _MAX_NUMBERS and all(type(item) in (int, float) for item in value)


def _dump_start(value: JSON, most: int) -> str:
    """Return the beginning of indented JSON without encoding the rest."""
    parts, length = [], 0
    for chunk in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        parts.append(chunk)
        length += len(chunk)
        if length >= most:
            break
    return "".join(parts)
