"""Drop-in replacements for functions of other products: same calling conventions, results in a Spanwise store.

Modules, in the order in which data flows:

- `langsmith`: `evaluate` and `aevaluate` of LangSmith.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "langsmith",
]
