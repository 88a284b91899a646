"""Cases out of traces and values, and evaluators on them."""
