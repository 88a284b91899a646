"""Full-text search: extraction of searchable text, and the FTS5 index.

Modules, in the order in which data flows:

- `searchable_text`: Searchable text of runs: extraction, buffer until it is indexed, tokens of the full-text index.
- `fulltext_index`: Full-text index: FTS5 entries per trace, re-indexing of growing traces, merging of segments.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "fulltext_index",
    "searchable_text",
]
