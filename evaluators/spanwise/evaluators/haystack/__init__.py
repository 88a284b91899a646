"""Haystack's evaluators under their own names: `run(...)` over lists, with its result keys.

They return the numbers of Haystack 3: average precision over all relevant documents, each document credited once.
They accept documents of Haystack and of Spanwise. A question without expected documents, or whose documents cannot be
compared, scores 0 as in Haystack; the built-in retrieval metrics skip it. An empty document ("" or None) is ignored
among both expected and retrieved documents, as in Haystack's recall. Haystack's three other document evaluators treat
an expected "" like any other document.

Evaluators with a judge accept a Haystack generator or a Spanwise judge as `chat_generator`. Without one, the
environment names the judge (SPANWISE_JUDGE). If it names none, they use Haystack's `OpenAIChatGenerator` in JSON mode
with Haystack's default model, provided that Haystack is installed and OPENAI_API_KEY is set.

If Haystack is installed, they are its components: `Pipeline.add_component("mrr", DocumentMRREvaluator())`. Versions
of Haystack that load only trusted modules need the package's name: `Pipeline.loads(text,
allowed_modules=["spanwise.evaluators.haystack"])`.

Modules, in the order in which data flows:

- `llm_evaluators`: LLM evaluators: custom instructions, context relevance and faithfulness; serialization in
  pipelines.
- `ground_truth_evaluators`: Evaluators against ground truth: exact match, MAP, MRR, nDCG, recall, semantic
  similarity.
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
