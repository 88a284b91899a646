"""The demo: a small retrieval-augmented application over the Python reference, traced and evaluated."""
