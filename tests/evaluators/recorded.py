"""Results of built-in evaluators over fixed cases, recorded with their version numbers.

`python tests/evaluators/recorded.py` records what is new. It refuses results that changed under the same number: give
the evaluator another number first, as in `@builtin("exact", version="2", …)`.
"""

import json
import re
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from spanwise.cli.evaluator_docs import run_example
from spanwise.evaluators import get_evaluator, list_evaluators, score
from spanwise.evaluators.interface import get_spec

FILE = Path(__file__).parent.parent / "fixtures" / "evaluators" / "recorded.json"
TEXTS = [
    ("Paris", "Paris"),
    ("paris ", "Paris"),
    ("The cat sat on the mat. The cat sat on the mat.", "A cat was sitting on the mat."),
    ("", "Paris"),
    ({"answer": "Paris"}, {"answer": "Paris", "why": "It is."}),
    ({"answer": ""}, "Paris"),
    ({"city": "Paris", "n": [1, 2]}, {"city": "Paris", "n": [1, 2.0]}),
    ("42", 42),
    (3.14159, "3.14"),
    ("no", False),
    ('{"city": "Paris"}', {"city": "Paris"}),
    ([], []),
    ("Call +49 30 901820 or write to jo@example.org, card 4111 1111 1111 1111.", "secret"),
    ("api_key = sk-abcdefghijklmnopqrstuvwxyz012345", ""),
    ("aGVsbG8gd29ybGQsIHRoaXMgaXMgYSBoaWRkZW4gbWVzc2FnZQ==", "hello"),
]
DOCUMENTS = ["Paris is the capital of France.", "Berlin is the capital of Germany.", "The mat is red."]
EXPECTED = ["Paris is the capital of France.", "Rome is the capital of Italy."]
PARAMETERS = {
    "contains": [{}, {"text": "paris", "ignore_case": True}, {"text": ["cat", "dog"], "match": "any"}],
    "document_recall": [{"by": "content"}, {"by": "content", "k": 1}, {"by": "content", "mode": "single_hit"}],
    "fuzzy": [{}, {"ignore_case": True}],
    "hit_at_k": [{"by": "content", "k": 1}],
    "ir_map": [{"by": "content"}, {"by": "content", "k": 2}],
    "ir_mrr": [{"by": "content"}],
    "ir_ndcg": [{"by": "content"}, {"by": "content", "k": 2}],
    "is_json": [{}, {"lenient": True}],
    "json_schema": [{"json_schema": {"type": "object", "required": ["city"]}}, {}],
    "length": [{}, {"max": 5}, {"unit": "words"}],
    "levenshtein": [{}, {"ignore_case": True}],
    "numeric": [{}, {"absolute": 0.01}],
    "pipeline": [],
    "precision_at_k": [{"by": "content", "k": 2}],
    "regex": [{"pattern": r"\d+"}, {"pattern": "^paris", "flags": "i"}],
    "text_matching": [{"condition": '"Paris" AND NOT regexp("cat")'}],
}
LEFT_OUT = {"human_feedback", "latency", "agent_sanity"}  # people, clocks and folders decide on their results


def recorded_ids():
    """The evaluators whose results are the same on every machine: those without a model that has to be there."""
    return [id for id in list_evaluators() if id not in LEFT_OUT and not _needs_model(id)]


def results(id):
    """What an evaluator says of its example and of the fixed cases, as plain values."""
    said = [[_plain(one) for one in run_example(get_spec(id))]] if get_spec(id).example else []
    if get_spec(id).judge or get_spec(id).model or get_spec(id).summary or get_spec(id).group == "agents":
        return said
    for parameters in PARAMETERS.get(id, [{}]):
        evaluator = get_evaluator(id, **parameters)
        for outputs, reference in TEXTS:
            fields = {"inputs": "Where is the cat?", "outputs": outputs, "reference_outputs": reference}
            fields |= {"documents": DOCUMENTS, "expected_documents": EXPECTED}
            said.append([_plain(one) for one in score(evaluator, **fields)])
    return said


def _needs_model(id):
    return get_spec(id).model and not re.search(r"(model|embed)=", get_spec(id).example)


def _plain(feedback):
    value = feedback.label if feedback.score is None else feedback.score
    if isinstance(value, float):
        value = round(value, 9)
    return [feedback.key, feedback.outcome, value if feedback.outcome == "score" else None]


def main():
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    now = {}
    for id in recorded_ids():
        with redirect_stderr(StringIO()):
            now[id] = {"version": get_spec(id).version, "results": results(id)}
        known = before.get(id)
        if known and known["version"] == now[id]["version"] and known["results"] != now[id]["results"]:
            sys.exit(f"results of {id!r} changed under version {known['version']!r}: give it another version number")
    FILE.parent.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(id)}: {json.dumps(value)}" for id, value in now.items())
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
