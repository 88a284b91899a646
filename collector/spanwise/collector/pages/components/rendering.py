"""Template rendering: security headers, escaping of untrusted text, layout of JSON values."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from inspect import getmembers, isfunction
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from spanwise.collector import formatting
from spanwise.collector.diagnostics import trace_completeness
from spanwise.collector.filters import CJK_CHARACTERS, parse_search_terms
from spanwise.collector.pages.components import filter_form, preferences, sparkline
from spanwise.collector.records import JSON
from spanwise.collector.security.authorization import get_access, get_request_store
from spanwise.collector.security.browser_sessions import make_form_token
from spanwise.collector.stores import Store

# Control characters, lone surrogates, and characters that reorder or hide text (bidirectional controls, zero-width).
_INVISIBLE_PATTERN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def _visible_mark(match: re.Match[str]) -> str:
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
        return _INVISIBLE_PATTERN.sub(_visible_mark, value)
    return value


def allow_line_breaks(text: str) -> Markup:
    """Return a name with optional line breaks after underscores, dots and dashes."""
    return Markup(re.sub(r"([_.-]+)", r"\1<wbr>", str(escape(mark_invisible(text)))))


MAX_SHOWN_CHARACTERS = 100_000  # characters of one value on a page; the page links to the complete value
_LARGE_CHARACTERS, _LARGE_LINES = 2_400, 30
_MOST_FIELDS, _MOST_MESSAGES = 24, 200
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null|NaN|-?Infinity)\b')


@dataclass(frozen=True, slots=True)
class ValueBlock:
    """One value rendered for a page. `length` counts all characters; `html` shows at most `MAX_SHOWN_CHARACTERS`."""

    html: Markup
    language: Literal["text", "json"]
    length: int
    lines: int

    @property
    def large(self) -> bool:
        """Return whether the page shows it collapsed."""
        return self.length > _LARGE_CHARACTERS or self.lines > _LARGE_LINES

    @property
    def short(self) -> bool:
        """Return whether the page shows it inline."""
        return self.lines == 1 and self.length <= 90

    @property
    def cut(self) -> bool:
        """Return whether `html` is truncated."""
        return self.length > MAX_SHOWN_CHARACTERS


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat with a model."""

    role: str
    content: ValueBlock | None
    calls: ValueBlock | None


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """Layout of a value as a block, fields or chat messages; all are empty for an empty value."""

    block: ValueBlock | None = None
    fields: tuple[tuple[str, ValueBlock], ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    rest: tuple[tuple[str, ValueBlock], ...] = ()  # the fields besides `messages`, of a value that has chat messages


def format_json(value: JSON) -> str:
    """Return indented JSON; unsupported values are shown as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _highlight_token(match: re.Match[str]) -> str:
    string, colon, figure, word = match.groups()
    if string is not None:
        return f'<span class="{"k" if colon else "s"}">{escape(mark_invisible(string))}</span>{colon or ""}'
    return f'<span class="n">{escape(figure or word)}</span>'


def highlight_json(text: str) -> Markup:
    """Return JSON text with keys, strings and numbers in `<span>` elements. All text is escaped."""
    parts, position = [], 0
    for match in _TOKEN.finditer(text):
        parts += [str(escape(mark_invisible(text[position : match.start()]))), _highlight_token(match)]
        position = match.end()
    return Markup("".join([*parts, str(escape(mark_invisible(text[position:])))]))


def make_block(value: JSON) -> ValueBlock:
    """Render one value: a string unchanged, anything else as JSON."""
    plain = isinstance(value, str)
    text = value if plain else format_json(value)
    html = escape(mark_invisible(text[:MAX_SHOWN_CHARACTERS])) if plain else highlight_json(text[:MAX_SHOWN_CHARACTERS])
    return ValueBlock(html, "text" if plain else "json", len(text), text.count("\n") + 1)


def _message_content(message: Mapping[str, JSON]) -> JSON:
    """Return the content of a chat message. If all its parts are texts, they are joined."""
    content = message.get("content", message.get("parts"))
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text", part.get("content")) for part in content]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return content


def find_chat_messages(value: JSON) -> list[Mapping[str, JSON]] | None:
    """Return the chat messages of a value (a list of them, or in a field `messages`), None if it has none."""
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list) or not 0 < len(messages) <= _MOST_MESSAGES:
        return None
    have_roles = all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages)
    return messages if have_roles else None


def choose_layout(value: JSON) -> ValueLayout:
    """Choose the most readable layout of a value."""
    if value is None or value == {} or value == []:
        return ValueLayout()
    if chat := find_chat_messages(value):
        messages = []
        for message in chat:
            content, calls = _message_content(message), message.get("tool_calls")
            block = None if content in (None, "", []) else make_block(content)
            messages.append(ChatMessage(str(message["role"]), block, make_block(calls) if calls else None))
        others = {key: item for key, item in value.items() if key != "messages"} if isinstance(value, dict) else {}
        return ValueLayout(messages=tuple(messages), rest=_make_fields(others))
    if isinstance(value, dict) and len(value) <= _MOST_FIELDS:
        return ValueLayout(fields=_make_fields(value))
    return ValueLayout(block=make_block(value))


def _make_fields(value: Mapping[str, JSON]) -> tuple[tuple[str, ValueBlock], ...]:
    return tuple((str(key), make_block(item)) for key, item in value.items())


def summarize_value(value: JSON) -> str:
    """Return the main text of a value.

    It is the string itself, the last message's text, the value of a single field, or else compact JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if chat := find_chat_messages(value):
        return summarize_value(_message_content(chat[-1]))
    if isinstance(value, dict) and len(value) == 1:
        return summarize_value(next(iter(value.values())))
    return json.dumps(value, ensure_ascii=False, default=str)


def summarize_json_prefix(text: str, limit: int = 240) -> str:
    """Return the main text of a value from the beginning of its JSON, which may be truncated."""
    try:
        return _shorten(summarize_value(json.loads(text)), limit)
    except ValueError:
        return _shorten(text, limit)


def mark_matches(text: str, search: str | None) -> Markup:
    """Return text as HTML, with what a search finds in it in `<mark>` elements."""
    html, end = Markup(), 0
    for match in _compile_search(search).finditer("".join(map(_fold, text))) if search else ():
        before, found = text[end : match.start()], text[match.start() : match.end()]
        html += Markup("{}<mark>{}</mark>").format(mark_invisible(before), mark_invisible(found))
        end = match.end()
    return html + escape(mark_invisible(text[end:]))


@lru_cache(maxsize=16)
def _compile_search(search: str) -> re.Pattern[str]:
    """Return a pattern that finds the terms of a search in folded text."""
    terms = []
    for words, is_prefix in parse_search_terms(search):
        folded = [re.escape("".join(map(_fold, word))) for word in words]
        begin = "" if _IS_CJK.match(words[0]) else r"(?<![^\W_])"
        end = "" if is_prefix or _IS_CJK.match(words[-1][-1]) else r"(?![^\W_])"
        terms.append(begin + r"[\W_]+".join(folded) + end)
    return re.compile("|".join(terms) or "(?!)")


_IS_CJK = re.compile(f"[{CJK_CHARACTERS}]")


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    """Return one lower-case character without accents, as in the full-text index."""
    base = unicodedata.normalize("NFD", character)[0] if character < "\u1100" else character
    return base.lower()[:1]


def _shorten(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def read_asset(name: str) -> bytes:
    """Return a file of `static/`."""
    return (files("spanwise.collector.pages") / "static" / name).read_bytes()


@cache
def _versioned_url(name: str) -> str:
    return f"/static/{name}?{sha256(read_asset(name)).hexdigest()[:12]}"


@cache
def get_environment() -> Environment:
    """Return the Jinja environment with templates and helpers."""
    environment = Environment(
        loader=PackageLoader("spanwise.collector.pages"),
        autoescape=True,
        finalize=mark_invisible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "static": _versioned_url,
        "chart": sparkline,
        "operators": filter_form.OPERATOR_LABELS,
        "ranges": filter_form.RANGE_LABELS,
        "traffic": filter_form.TRAFFIC_LABELS,
        "choices_of": preferences.CHOICES,
        "all_columns": preferences.COLUMNS,
        "groups": filter_form.GROUP_LABELS,
        "layout": choose_layout,
        "block": make_block,
    }
    # every formatting function becomes a filter of the same name
    environment.filters |= dict(getmembers(formatting, isfunction))
    environment.filters |= {
        "when": lambda ns: formatting.when(ns, preferences.get_time_zone()),
        "iso": lambda ns: formatting.iso(ns, preferences.get_time_zone()),
        "machine_time": format_machine_time,
    }
    environment.filters |= {"summarize_json": summarize_json_prefix, "summarize": summarize_value}
    environment.filters |= {"dropped": trace_completeness.describe_dropped, "since": trace_completeness.describe_start}
    environment.filters["named"] = format_name
    environment.filters |= {"mark_matches": mark_matches}
    environment.filters |= {"path": quote_segment, "breakable": allow_line_breaks, "as_dict": dict}
    return environment


def format_machine_time(ns: int) -> str:
    """Return a time as the attribute `datetime` of HTML has it, in UTC; "" if the calendar has no such time."""
    text = formatting.iso(ns, UTC)
    return "" if text.endswith(" ns") else text.replace(" ", "T")


def format_name(name: str | None) -> str:
    """Return a name for a link: "(no name)" if it has no visible character, at most 200 characters."""
    text = (name or "")[:200]
    visible = "".join(text.split()).strip("\u2800\u3164\u00ad\u200b\u200c\u200d\ufeff")
    return text + ("…" if len(name or "") > 200 else "") if visible else "(no name)"


def quote_segment(text: object) -> str:
    """Quote a text as one segment of a URL path."""
    return quote(str(text), safe="", errors="replace")


def render_page(
    request: Request, template: str, /, *, status: int = 200, switcher: bool = True, **context: Any
) -> Response:
    """Render a page with the headers that prevent content of traces from running scripts.

    The project switcher of the side bar reads the projects from the store. Without `switcher` the store is not read.
    """
    access = get_access(request.scope)
    view = preferences.read_preferences(request)
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    frame = {
        "here": request.url.path,
        "address": address,
        "server_url": str(request.base_url).rstrip("/"),
        "project": request.query_params.get("project", ""),
        "projects": get_request_store(request).values("project") if switcher else [],
        "access": access,
        "display": view,
        "token": make_form_token(access.bond),
    }
    with preferences.use_time_zone(view.time_zone):
        body = get_environment().get_template(template).render(frame | context)
    return HTMLResponse(body.encode("utf-8", "replace"), status, SECURITY_HEADERS)


def serve_static(_store: Store, request: Request) -> Response:
    """Serve a style sheet, script or icon, cacheable for a year because its URL contains a hash."""
    name = request.path_params["name"]
    if name not in ("spanwise.css", "spanwise.js", "spanwise.svg"):
        return Response("not found", 404, SECURITY_HEADERS, media_type="text/plain")
    headers: Mapping[str, str] = {**SECURITY_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(read_asset(name), headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
