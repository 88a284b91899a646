"""Evaluation set in Databricks' format: one row with all fields, one with an answer alone."""

ROWS = [
    {
        "request_id": "r1",
        "request": "When was it built?",
        "response": "In 1912.",
        "expected_response": "1912",
        "retrieved_context": [
            {"content": "Built in 1912.", "doc_uri": "a"},
            {"content": "Open at noon.", "doc_uri": "b"},
        ],
        "expected_retrieved_context": [{"doc_uri": "a"}, {"doc_uri": "c"}],
        "guidelines": ["Be brief"],
    },
    {"request_id": "r2", "request": "Where is it?", "response": "I do not know."},
]
