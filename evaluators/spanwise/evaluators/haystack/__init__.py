"""Haystack's evaluators under their own names: `run(...)` over lists, with its result keys.

They give the numbers of Haystack 3 (average precision over all relevant documents, each document credited once), and
take its documents as well as ours. Unlike the built-in retrieval metrics, a question for which nothing is expected,
or whose documents cannot be compared, scores 0, as it does there. An empty document ("" or None) counts for nothing
on either side, as in Haystack's recall; its three others take an expected "" for a document like any other.

Those with a judge take one of Haystack's generators or ours as `chat_generator`; without one the environment says who
judges (SPANWISE_JUDGE), since a model is never guessed.

Where Haystack is installed they are its components: `Pipeline.add_component("mrr", DocumentMRREvaluator())`. Versions
that load trusted modules need their name: `Pipeline.loads(text, allowed_modules=["spanwise.evaluators.haystack"])`.

Modules, in the order in which data flows:

- `pipeline_component`: Haystack pipeline components: registration, serialization of judges and types.
- `ground_truth_evaluators`: Evaluators against ground truth: exact match, MAP, MRR, nDCG, recall, semantic
  similarity.
- `llm_evaluators`: LLM evaluators: custom instructions, context relevance and faithfulness, row by row.
"""

from spanwise.evaluators.haystack.ground_truth_evaluators import (
    AnswerExactMatchEvaluator,
    DocumentMAPEvaluator,
    DocumentMRREvaluator,
    DocumentNDCGEvaluator,
    DocumentRecallEvaluator,
    RecallMode,
    SASEvaluator,
)
from spanwise.evaluators.haystack.llm_evaluators import ContextRelevanceEvaluator, FaithfulnessEvaluator, LLMEvaluator

__all__ = [
    "AnswerExactMatchEvaluator",
    "ContextRelevanceEvaluator",
    "DocumentMAPEvaluator",
    "DocumentMRREvaluator",
    "DocumentNDCGEvaluator",
    "DocumentRecallEvaluator",
    "FaithfulnessEvaluator",
    "LLMEvaluator",
    "RecallMode",
    "SASEvaluator",
]
