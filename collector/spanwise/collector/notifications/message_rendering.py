"""Rendering of a notification as plain text, HTML, a Slack message and JSON.

Names of alerts and groups, and the values of facts, come from traffic and may contain anything. The forms for people
bound their length and render them as text: they add no header, no markup, no link and no mention. JSON has them
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape as escape_html
from itertools import islice
from urllib.parse import quote

from spanwise.collector.record_encoding import encode
from spanwise.collector.records import JSON, Notification
from spanwise.collector.terminal_escaping import escape_line

MAX_HEADLINE, MAX_NAME, MAX_VALUE = 1_000, 200, 500  # characters
MAX_ROWS = 50  # rows of the table, and links
_PATH_CHARACTERS = "/?=&%:,+-._~;@!$()[]#"  # stay as they are in the path of a link


def render_title(notification: Notification) -> str:
    """Return one line: status, alert, group, project."""
    group = f", group {_line(notification.group)}" if notification.group is not None else ""
    status = _line(notification.status).upper()
    return f"[{status}] {_line(notification.alert)}{group} (project {_line(notification.project)})"


def render_text(notification: Notification, base_url: str) -> str:
    """Return the notification as plain text: title, headline, facts and links, one per line."""
    rows = get_rows(notification)
    width = max(map(len, rows), default=0)
    return "\n".join(
        [
            render_title(notification),
            "",
            get_headline(notification),
            "",
            *(f"{name:<{width}}  {value}" for name, value in rows.items()),
            "",
            *(f"{title}: {url}" for title, url in get_links(notification, base_url).items()),
            "",
        ]
    )


def render_html(notification: Notification, base_url: str) -> str:
    """Return the notification as an HTML document without scripts, styles or remote content."""
    rows = "".join(
        f'<tr><th align="left">{escape_html(name)}</th><td>{escape_html(value)}</td></tr>'
        for name, value in get_rows(notification).items()
    )
    links = "".join(
        f'<li><a href="{escape_html(url)}">{escape_html(title)}</a></li>'
        for title, url in get_links(notification, base_url).items()
    )
    return (
        '<!DOCTYPE html><html><head><meta charset="utf-8"></head><body>'
        f"<p><strong>{escape_html(render_title(notification))}</strong></p>"
        f"<p>{escape_html(get_headline(notification))}</p>"
        f"<table>{rows}</table><ul>{links}</ul></body></html>"
    )


def render_slack(notification: Notification, base_url: str) -> bytes:
    """Return the JSON body of a Slack message, which Mattermost, Rocket.Chat and Discord (`/slack`) accept, too."""
    lines = [
        f"*{_escape_slack(render_title(notification))}*",
        _escape_slack(get_headline(notification)),
        *(f"• {_escape_slack(name)}: {_escape_slack(value)}" for name, value in get_rows(notification).items()),
        *(
            f"<{url.translate(_SLACK_ENTITIES)}|{_escape_slack(title)}>"
            for title, url in get_links(notification, base_url).items()
        ),
    ]
    return encode({"text": "\n".join(lines)})


def render_json(notification: Notification, base_url: str) -> bytes:
    """Return the JSON body for webhooks. Its texts are unescaped: the receiver escapes them for where it shows them."""
    created = datetime.fromtimestamp(notification.created_ns / 1e9, UTC)
    return encode(
        {
            "id": notification.id,
            "project": notification.project,
            "alert": notification.alert,
            "group": notification.group,
            "status": notification.status,
            "headline": notification.headline,
            "facts": notification.facts,
            "links": get_links(notification, base_url),
            "created_at": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
    )


def get_headline(notification: Notification) -> str:
    """Return the headline as one line."""
    return escape_line(notification.headline, MAX_HEADLINE)


def get_rows(notification: Notification) -> dict[str, str]:
    """Return the facts as lines of text, in order."""
    rows = {_line(name): _format_value(value) for name, value in islice(notification.facts.items(), MAX_ROWS)}
    if (more := len(notification.facts) - MAX_ROWS) > 0:
        rows["…"] = f"{more} more"
    return rows


def get_links(notification: Notification, base_url: str) -> dict[str, str]:
    """Return the links with absolute URLs, in order."""
    links = islice(notification.links.items(), MAX_ROWS)
    return {_line(title): base_url.rstrip("/") + quote(path, safe=_PATH_CHARACTERS) for title, path in links}


def _line(text: str) -> str:
    return escape_line(text, MAX_NAME)


def _format_value(value: JSON) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return escape_line(value, MAX_VALUE)
    if isinstance(value, list | tuple):
        return escape_line(", ".join(map(_format_value, islice(value, MAX_ROWS))), MAX_VALUE)
    if isinstance(value, Mapping):
        return escape_line(encode(value).decode(), MAX_VALUE)
    return str(value)


# The three characters with a meaning in Slack: docs.slack.dev/messaging/formatting-message-text, "Escaping text"
_SLACK_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ZERO_WIDTH = "\u200b"


def _escape_slack(text: str) -> str:
    """Return a text that Slack and compatible products show as it is, without mentions, links and code.

    Products that read Markdown know mentions without markup (`@channel`) and links as `[title](address)`.
    """
    text = text.translate(_SLACK_ENTITIES).replace("`", "'")
    return re.sub(r"@(?=\w)|\](?=\()|:(?=//)|(?<!\w)[*_~](?=\S)", rf"\g<0>{_ZERO_WIDTH}", text)
