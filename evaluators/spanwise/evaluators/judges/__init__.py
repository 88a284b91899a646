"""LLM judges: evaluators that call a language model, with their prompts, rating scales and panels.

Modules, in the order in which data flows:

- `judge_evaluator`: Judgement of one case, and the base class and registration of evaluators that call a judge.
- `prompt_templates`: Prompts: templates and overrides, case values as text, delimiters against prompt injection.
- `ratings`: Ratings: scales, yes/no questions, ratings per chunk, and G-Eval weighting by token
  probabilities.
- `user_defined_judge`: User-defined judges: `judge(name, prompt, scale)` with few-shot examples, and panels of
  judges.
- `rag_metrics`: Components of the RAGAS metrics: statements and verdicts, scores, their base class, similarity by
  embeddings.
- `ragas`: RAGAS evaluators: faithfulness, answer correctness and relevancy, context precision and recall.
- `databricks`: Databricks judges: correctness, groundedness, relevance, guidelines, safety, context
  sufficiency, chunks.
- `h2o`: H2O judges: five boolean metrics per judge, language mismatch, and fact checking by an agent.
- `haystack_judges`: Haystack judges: context relevance and faithfulness, with Haystack's few-shot prompt
  layout.
- `conversations`: Judges of agents and conversations: goal reached, tool choice, completeness, user
  frustration.
- `pipeline_judge`: Laminar's pipeline judge: one prompt over the named nodes of a pipeline's outputs.
- `step_alignment`: Step alignment: steps of a procedure in the answer compared with those in the retrieved
  context.
"""

from spanwise.evaluators.judges.judge_evaluator import Judgement
from spanwise.evaluators.judges.llm_client.chat_completions import (
    Answer,
    Ask,
    Backend,
    Completion,
    CutOff,
    Declined,
    NoJudge,
    ParseFailure,
    Token,
)
from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge
from spanwise.evaluators.judges.llm_client.judge_settings import UNKNOWN_MODEL, Amount, AskedModel, Ledger, use_ledger
from spanwise.evaluators.judges.llm_client.scripted_judge import scripted
from spanwise.evaluators.judges.prompt_templates import Prompt, prompt
from spanwise.evaluators.judges.user_defined_judge import judge, panel

__all__ = [
    "UNKNOWN_MODEL",
    "Amount",
    "Answer",
    "Ask",
    "AskedModel",
    "Backend",
    "Completion",
    "CutOff",
    "Declined",
    "Judge",
    "Judgement",
    "Ledger",
    "NoJudge",
    "ParseFailure",
    "Prompt",
    "Token",
    "judge",
    "make_judge",
    "panel",
    "prompt",
    "scripted",
    "use_ledger",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "haystack_judges",
    "judge_evaluator",
    "prompt_templates",
    "ratings",
]
