"""Demo: a small retrieval-augmented application over the Python reference, traced and evaluated.

Modules, in the order in which data flows:

- `application`: Demo application: corpus, BM25 or embedding search, and answers by a model or by extraction.
- `walkthrough`: Demo walkthrough: live traffic, monitoring rules, two experiments and their comparison.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "application",
    "walkthrough",
]
