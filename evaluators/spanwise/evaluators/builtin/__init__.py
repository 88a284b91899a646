"""Built-in evaluators that need neither a judge nor a model, and the text utilities they share.

Modules, in the order in which data flows:

- `case_text`: Text of cases: fields, chat messages, completions; sentences, steps and tokens.
- `boolean_families`: Boolean metric families: pass, failure, retrieval, generation and parse failure of one case.
- `text_matching`: Text matching: condition language with AND, OR, NOT and regular expressions under a time limit.
- `text`: Text evaluators: exact, contains, regex, length, not_empty, BLEU, ROUGE and edit distances.
- `looping`: Looping evaluator: unique sentences, longest repeated substring, compression ratio.
- `json`: JSON evaluators: strict JSON and JSON Schema validation with bounded keywords.
- `numbers`: Numeric evaluators: numbers within a tolerance; latency, tokens and cost of a trace.
- `classification`: Classification evaluator: accuracy, precision, recall, F1 and confusion matrix over all cases.
- `language_detection`: Language detection of texts, and comparison of the languages of question and answer.
- `retrieval`: Retrieval evaluators: recall, MAP, MRR, nDCG, precision and hits at k; matching of documents.
- `agents`: Agent evaluators: tool calls, trajectory, spans, step limit, sanity of artifacts and sessions.
- `artifacts`: Artifacts of an agent: expectations, and file access confined to a directory.
- `privacy`: Privacy evaluators: personal data, secrets, and decoding of texts hidden by an encoding.
- `leak_detection`: Detectors of personal data and secrets: patterns, checksums, telephone numbers, normalization.
- `human`: Human feedback evaluator: mean of the labels that people gave a trace.
- `pipeline`: Pipeline evaluator: score returned by a callable, parsed from its free-form or JSON reply.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "boolean_families",
    "case_text",
    "json",
    "language_detection",
    "pipeline",
    "retrieval",
    "text",
]
