"""Components of pages: rendering, content of values, filter form, feedback chips, sparklines.

Modules, in the order in which data flows:

- `filter_form`: Filter form: page URL to filter and back, typed conditions with suggestions, and saved views.
- `preferences`: Display preferences of a reader: theme, time zone, row height, side bar, columns. They are kept in cookies.
- `feedback_display`: Feedback display: chips, metric units and directions, keys scored by judges.
- `svg_charts`: SVG charts: lines over experiments, bars and lines over time, sparklines.
- `content_view`: Rendering of untrusted values as HTML: escaping, Markdown and code, chat messages, fields and
  blocks.
- `rendering`: Template rendering: environment, security headers, static files.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "content_view",
    "feedback_display",
    "filter_form",
    "preferences",
    "rendering",
    "svg_charts",
]
