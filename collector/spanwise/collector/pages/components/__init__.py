"""Components of pages: rendering, content of values, filter form, feedback chips, sparklines.

Modules, in the order in which data flows:

- `filter_line`: Filter line: conditions typed in the grammar of the command line, and suggestions while they are typed.
- `filter_form`: Filter form: page URL to filter and back, removable conditions, integer parameters.
- `preferences`: Display preferences of a reader: theme, time zone, row height, side bar, columns. They are kept in cookies.
- `saved_views`: Saved views of the trace list: names for filters, orders and columns, kept in a cookie of the browser.
- `feedback_display`: Feedback display: chips, metric units and directions, keys scored by judges.
- `sparkline`: SVG sparklines: time buckets and bar geometry.
- `time_chart`: SVG charts over time: bars or lines on axes, with gaps where there are no values.
- `line_chart`: SVG line charts: one value per experiment with the band of its interval.
- `escaping`: Escaping of untrusted text for HTML: visible marks for invisible characters, JSON with highlighted tokens.
- `markdown_rendering`: Markdown and code as HTML: without HTML of the author, remote images, scripts.
- `content_view`: Rendering of values within a limit per page: chat messages, fields, and blocks as HTML.
- `rendering`: Template rendering: environment, security headers, static files.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "content_view",
    "escaping",
    "feedback_display",
    "filter_form",
    "filter_line",
    "line_chart",
    "preferences",
    "rendering",
    "saved_views",
    "sparkline",
    "time_chart",
]
