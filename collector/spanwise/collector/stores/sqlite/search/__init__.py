"""Full-text search: extraction of searchable text, and the FTS5 index.

Modules, in the order in which data flows:

- `searchable_text`: Searchable text of runs: extraction, and a buffer (memory, then a spill file) until it is
  indexed.
- `fulltext_tokens`: Tokens of the full-text index: preparation of text for FTS5's tokenizer, and FTS5 expressions for
  searches.
- `fulltext_index`: Full-text index: FTS5 entries per trace, re-indexing of growing traces, merging of segments.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "fulltext_index",
    "fulltext_tokens",
    "searchable_text",
]
