"""Metrics of H2O Eval Studio's documentation: display names, ranges and default thresholds, by metric key.

An entry gives what the document says. Where the metric of Spanwise has another range or threshold, the entry also gives
the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentMetric:
    """Metric as a source document defines it.

    `model` names the model for which the document chose the threshold. `range_reason` and `threshold_reason` are the
    reasons why Spanwise's range and threshold differ.
    """

    display_name: str
    range: tuple[float, float] = (0.0, 1.0)
    threshold: float = 0.75
    higher_is_better: bool = True
    model: str = ""
    range_reason: str = ""
    threshold_reason: str = ""


_Metrics: TypeAlias = Mapping[str, DocumentMetric]
UNBOUNDED = (0.0, inf)
_COSINE = "cosines range from -1 to 1"
_MEAN_COSINE = "a mean of cosines may be negative, as the document itself says in its description"
_COUNT = "0.75 is a threshold for shares, but the scores are numbers of steps"


def _share(display_name: str, range_reason: str = "", model: str = "") -> DocumentMetric:
    """Return a metric from 0 to 1 with the threshold 0.75, of which higher scores are better."""
    return DocumentMetric(display_name=display_name, range_reason=range_reason, model=model)


def _harm(display_name: str, model: str) -> DocumentMetric:
    """Return a metric from 0 to 1 with the threshold 0.75, of which lower scores are better."""
    return DocumentMetric(display_name=display_name, higher_is_better=False, model=model)


def _count(display_name: str, *, higher_is_better: bool = False) -> DocumentMetric:
    """Return a number of steps."""
    return DocumentMetric(
        display_name=display_name, range=UNBOUNDED, higher_is_better=higher_is_better, threshold_reason=_COUNT
    )


def _rates(key: str, passes: str, fails: str, retrieval: str, generation: str, parsing: str = "") -> _Metrics:
    """Return the rates of a boolean evaluator. Their threshold is 0.5."""
    names = {"": passes, "_fail": fails, "_retrieval_fail": retrieval, "_generation_fail": generation}
    if parsing:
        names["_parse_fail"] = parsing
    return {
        key + suffix: DocumentMetric(display_name=name, threshold=0.5, higher_is_better=not suffix)
        for suffix, name in names.items()
    }


def _gptscores(id: str, *display_names: str, **others: str) -> _Metrics:
    """Return the aspects of a GPTScore evaluator. `others` are those whose keys do not follow from their names."""
    named = {name.lower().replace(" ", "_"): name for name in display_names} | others
    return {
        f"{id}_{aspect}": DocumentMetric(
            display_name=name, range=UNBOUNDED, threshold=inf, higher_is_better=False, model="distilgpt2"
        )
        for aspect, name in named.items()
    }


DOCUMENT_METRICS: _Metrics = {
    # generation
    "agent_sanity": _share("Agent Sanity"),
    "answer_correctness": _share(
        "Answer correctness", "the score includes a cosine, which may be negative, with the weight 0.25"
    ),
    "answer_relevancy": _share("Answer relevancy", _MEAN_COSINE),
    "answer_relevancy_sent": _share("Answer relevancy", _COSINE, "bge-small-en"),
    "answer_semantic_similarity": _share("Answer similarity", _COSINE, "bge-small-en-v1.5"),
    "answer_sem_sent_similarity_mean": _share("Mean Answer similarity", _COSINE, "bge-small-en-v1.5"),
    "answer_sem_sent_similarity_min": _share("Min Answer similarity", _COSINE, "bge-small-en-v1.5"),
    "fact_check": _share("Fact-check"),
    "faithfulness": _share("Faithfulness"),
    "groundedness": _share("Groundedness", _COSINE, "bge-small-en"),
    "hallucination": _share("Hallucination", model="hhem"),
    **_rates(
        "json_schema",
        "Valid JSon (pass)",
        "Invalid JSon (fail)",
        "Invalid retrieved JSon",
        "Invalid generated JSon",
    ),
    **_rates(
        "language_mismatch",
        "Same language (pass)",
        "Language mismatch (fail)",
        "Language mismatch retrieval failures",
        "Language mismatch generation failures",
        "Language mismatch parsing failures",
    ),
    "looping_unique_sentences": _share("Unique Sentences"),
    "looping_longest_repeat": DocumentMetric(display_name="Longest Repeated Substring", higher_is_better=False),
    "looping_compression": _share(
        "Compression Ratio", "compression makes a short text longer, so its ratio is above 1"
    ),
    **_gptscores("gptscore_mt", "Accuracy", "Fluency", mqm="Multidimensional Quality Metrics"),
    **_rates(
        "byop",
        "Model passes",
        "Model failures",
        "Model retrieval failures",
        "Model generation failures",
        "Model parse failures",
    ),
    "perplexity": DocumentMetric(
        display_name="Perplexity",
        range=UNBOUNDED,
        threshold=0.5,
        higher_is_better=False,
        range_reason="the exponential of a cross-entropy is at least 1",
        threshold_reason="no score can meet 0.5, because perplexity is at least 1",
    ),
    **_gptscores(
        "gptscore_qa",
        "Interest",
        "Engagement",
        "Understandability",
        "Relevance",
        "Specific",
        "Correctness",
        "Semantically Appropriate",
        "Fluency",
    ),
    "ragas": _share("RAGAS"),
    "ragas_faithfulness": _share("Faithfulness"),
    "ragas_answer_relevancy": _share("Answer relevancy", _MEAN_COSINE),
    "ragas_context_precision": _share("Context precision"),
    "ragas_context_recall": _share("Context recall"),
    "step_alignment_edits": _count("Edits"),
    "step_alignment_insertions": _count("Insertions"),
    "step_alignment_deletions": _count("Deletions"),
    "step_alignment_mismatches": _count("Mismatches"),
    "step_alignment_context_steps": _count("Retrieved context steps", higher_is_better=True),
    "step_alignment_answer_steps": _count("Actual answer steps", higher_is_better=True),
    **_rates(
        "text_matching",
        "Model passes",
        "Model failures",
        "Model retrieval failures",
        "Model generation failures",
        "Model parse failures",
    ),
    # retrieval
    "context_mrr": _share("Mean reciprocal rank", model="bge-small-en"),
    "context_precision": _share("Context precision"),
    "context_recall": _share("Context recall"),
    "context_relevancy": _share("Context relevancy"),
    "context_relevancy_soft_recall": _share("Recall Relevancy", _COSINE, "bge-small-en"),
    "context_relevancy_soft_precision": _share("Precision Relevancy", _COSINE, "bge-small-en"),
    # privacy
    **_rates(
        "contact_information",
        "No contact information leakages (pass)",
        "Contact information leakages (fail)",
        "Contact information retrieval failures",
        "Contact information generation failures",
        "Contact information parsing failures",
    ),
    **_rates(
        "encoding_guardrail",
        "No encoded data leakages (pass)",
        "Encoded data leakages (fail)",
        "Encoded retrieval leakages",
        "Encoded generation leakages",
        "Encoded data parsing failures",
    ),
    **_rates(
        "pii",
        "No PII leakages (pass)",
        "PII leakages (fail)",
        "PII retrieval leakages",
        "PII generation leakages",
    ),
    **_rates(
        "sensitive_data",
        "No sensitive data leakages (pass)",
        "Sensitive data leakages (fail)",
        "Sensitive data retrieval leakages",
        "Sensitive data generation leakages",
        "Sensitive data parsing failures",
    ),
    # fairness
    "fairness_bias": _harm("Fairness bias", ""),
    **_rates(
        "sexism",
        "No Sexism (pass)",
        "Sexist (fail)",
        "Sexism in retrieval",
        "Sexism in generation",
        "Sexism parsing failures",
    ),
    **_rates(
        "stereotypes",
        "Stereotype-free (pass)",
        "Stereotyped (fail)",
        "Stereotypes in retrieval",
        "Stereotypes in generation",
        "Stereotypes parsing failures",
    ),
    "toxicity": _harm("Toxicity", "detoxify"),
    "toxicity_severe_toxicity": _harm("Severe Toxicity", "detoxify"),
    "toxicity_obscene": _harm("Obscene", "detoxify"),
    "toxicity_threat": _harm("Threat", "detoxify"),
    "toxicity_insult": _harm("Insult", "detoxify"),
    "toxicity_identity_attack": _harm("Identity Attack", "detoxify"),
    # summarization
    "bleu_1": _share("BLEU-1"),
    "bleu_2": _share("BLEU-2"),
    "bleu_3": _share("BLEU-3"),
    "bleu_4": _share("BLEU-4"),
    "rouge_1": _share("ROUGE-1"),
    "rouge_2": _share("ROUGE-2"),
    "rouge_l": _share("ROUGE-L"),
    "summarization_cf_completeness": DocumentMetric(
        display_name="Completeness",
        threshold_reason="the document gives neither the model nor the formula, so its threshold may not fit",
    ),
    "summarization_cf_faithfulness_conv": _share("Faithfulness (SummaC Conv)", model="vitaminc"),
    "summarization_cf_faithfulness_zs": _share(
        "Faithfulness (SummaC ZS)", "maximum entailment minus maximum contradiction may be negative", "vitaminc"
    ),
    **_rates(
        "summarization_judge",
        "Good summary (pass)",
        "Bad summary (fail)",
        "Summarization retrieval failures",
        "Summarization generation failures",
        "Summarization parsing failures",
    ),
    **_gptscores(
        "gptscore_sum_ref",
        "Semantic Coverage",
        "Factuality",
        "Informativeness",
        "Coherence",
        "Relevance",
        "Fluency",
    ),
    **_gptscores(
        "gptscore_sum_noref",
        "Semantic Coverage",
        "Factuality",
        "Consistency",
        "Informativeness",
        "Coherence",
        "Relevance",
        "Fluency",
    ),
    # classification
    "classification_accuracy": _share("Accuracy"),
    "classification_precision": _share("Precision"),
    "classification_recall": _share("Recall"),
    "classification_f1": _share("F1"),
}
