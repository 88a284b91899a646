"""Which module holds which of our evaluators, so that naming them all imports none, and getting one imports its own."""

from collections.abc import Mapping

_HELD = {  # module below `spanwise.evaluators` → ids
    "builtin.agents": "agent_sanity has_span step_limit tool_calls trajectory_match",
    "builtin.classification": "classification",
    "builtin.human": "human_feedback",
    "builtin.json": "is_json json_schema",
    "builtin.looping": "looping",
    "builtin.numbers": "cost latency numeric tokens",
    "builtin.overlap": "bleu fuzzy levenshtein rouge",
    "builtin.pipeline": "pipeline",
    "builtin.privacy": "encoding_guardrail pii sensitive_data",
    "builtin.retrieval": "document_recall hit_at_k ir_map ir_mrr ir_ndcg precision_at_k",
    "builtin.text": "contains exact length not_empty regex",
    "builtin.text_matching": "text_matching",
    "judges._own": "judge",
    "judges.conversations": "conversation_complete goal_reached tool_choice user_frustrated",
    "judges.databricks": "chunk_relevance context_sufficiency correctness custom_judge global_guideline_adherence "
    "groundedness_judge guideline_adherence relevance_to_query safety",
    "judges.h2o": "byop contact_information fact_check sexism stereotypes summarization_judge",
    "judges.haystack": "haystack_context_relevance haystack_faithfulness",
    "judges.language": "language_mismatch",
    "judges.pipeline": "pipeline_judge",
    "judges.ragas": "answer_correctness answer_relevancy context_precision context_recall context_relevancy "
    "faithfulness ragas",
    "judges.steps": "step_alignment",
    "models.classes": "fairness_bias profanity toxicity",
    "models.embeddings": "answer_relevancy_sent answer_sem_sent_similarity answer_semantic_similarity context_mrr "
    "context_relevancy_soft groundedness sas semantic_similarity",
    "models.likelihoods": "gptscore_mt gptscore_qa gptscore_sum_noref gptscore_sum_ref perplexity",
    "models.summaries": "summarization_cf",
    "models.support": "faithfulness_nli hallucination",
}
TABLE: Mapping[str, str] = {id: f"spanwise.evaluators.{module}" for module, ids in _HELD.items() for id in ids.split()}
