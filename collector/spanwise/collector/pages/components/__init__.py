"""Components of pages: rendering, value layout, filter form, feedback chips, sparklines.

Modules, in the order in which data flows:

- `filter_form`: Filter form: page URL to filter and back, removable conditions, integer parameters.
- `preferences`: Display preferences of a reader: theme, time zone, row height, side bar, columns. They are kept in cookies.
- `feedback_display`: Feedback display: chips, metric units and directions, keys scored by judges.
- `sparkline`: SVG sparklines: time buckets and bar geometry.
- `line_chart`: SVG line charts: one value per experiment with the band of its interval.
- `rendering`: Template rendering: security headers, escaping of untrusted text, layout of JSON values.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "feedback_display",
    "filter_form",
    "line_chart",
    "preferences",
    "rendering",
    "sparkline",
]
