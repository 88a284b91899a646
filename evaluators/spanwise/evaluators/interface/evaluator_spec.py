"""Declared facts of an evaluator: metrics with thresholds, arguments, sources, compliance standards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any, Literal, Self, TypeAlias

from spanwise.collector.records import Source
from spanwise.collector.statistics import is_passing
from spanwise.evaluators.interface.outcomes import decode_infinity, encode_infinities

# Metrics of H2O Eval Studio's documentation: display names, ranges and default thresholds, by metric key.
#
# An entry gives what the document says. Where the metric of Spanwise has another range or threshold, the entry also
# gives the reason.


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


# Declared facts of an evaluator: metrics with thresholds, required and optional arguments, sources and compliance
# standards.


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of one feedback key: range of its scores, better direction, and the threshold for passing.

    `range` is (lowest, highest), each of which may be infinite; None means unknown. Without a threshold, only boolean
    scores pass or fail: True passes if higher is better, else False. `primary` marks an evaluator's main metric.
    `good_labels` are the labels that comparisons count as good.

    `display_name` is a name for people, such as "No PII leakages (pass)". `document` is the metric as its source
    document defines it. `threshold_model` names the model for which the threshold was chosen, if another model is in
    use.
    """

    key: str
    range: tuple[float, float] | None = (0.0, 1.0)
    higher_is_better: bool = True
    threshold: float | None = None
    primary: bool = False
    good_labels: tuple[str, ...] = ()
    display_name: str = ""
    document: DocumentMetric | None = field(default=None, repr=False, compare=False)
    threshold_model: str = ""

    @property
    def arrow(self) -> str:
        """Return "↑" if higher scores are better and "↓" if lower ones are.

        Return "" for a metric without a range whose higher scores are better: that is the default, not a declared
        direction.
        """
        if not self.higher_is_better:
            return "↓"
        return "" if self.range is None else "↑"

    def passes(self, score: float | bool) -> bool | None:
        """Return whether a score (or a mean of scores) is on the better side of the threshold or equal to it.

        Without a threshold return None for a number; for a boolean 0.5 is used.
        """
        threshold = 0.5 if self.threshold is None and isinstance(score, bool) else self.threshold
        if threshold is None:
            return None
        return is_passing(score, threshold, self.higher_is_better)

    @property
    def is_reachable(self) -> bool:
        """Return whether some score in the range meets the threshold; True without a threshold or a range."""
        if self.threshold is None or self.range is None:
            return True
        return self.threshold <= self.range[1] if self.higher_is_better else self.threshold >= self.range[0]

    @property
    def document_differences(self) -> dict[str, Any]:
        """Return the document's range and threshold, each only if it differs, with the reasons."""
        document = self.document
        if document is None:
            return {}
        differing: dict[str, Any] = {}
        if self.range != document.range:
            differing |= {"range": _encode_range(document.range), "range_reason": document.range_reason}
        if self.threshold != document.threshold:
            reason = "another threshold was set" if self.threshold is not None else document.threshold_reason
            if not reason and document.model:
                reason = f"the document chose it for {document.model}; another model has none until it is set or fitted"
            differing |= {"threshold": encode_infinities(document.threshold), "threshold_reason": reason}
        return differing

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: infinite ends of the range become None, an infinite threshold "Infinity".

        Names, the document's differing range and threshold, and facts about the threshold are left out if there are
        none.
        """
        plain: dict[str, Any] = {
            "key": self.key,
            "range": None if self.range is None else _encode_range(self.range),
            "higher_is_better": self.higher_is_better,
            "threshold": encode_infinities(self.threshold),
            "primary": self.primary,
        }
        optional = {
            "good_labels": self.good_labels,
            "display_name": self.display_name,
            "document": self.document_differences,
            "threshold_model": self.threshold_model,
            "unreachable": not self.is_reachable,
        }
        return plain | {name: value for name, value in optional.items() if value}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the metric of a `to_dict` result, with key, range, direction, threshold and display name."""
        ends = plain.get("range")
        return cls(
            plain["key"],
            None if ends is None else (-inf if ends[0] is None else ends[0], inf if ends[1] is None else ends[1]),
            plain.get("higher_is_better", True),
            decode_infinity(plain.get("threshold")),
            display_name=plain.get("display_name", ""),
            threshold_model=plain.get("threshold_model", ""),
        )


def _encode_range(ends: tuple[float, float]) -> list[float | None]:
    """Return the ends of a range as JSON; infinite ones become None."""
    return [None if isinf(end) else end for end in ends]


FIRST_VERSION = "1"
Need = Literal["yes", "optional", "no"]
TEST_CASE_COLUMNS: Mapping[str, frozenset[str]] = {
    "question": frozenset({"inputs"}),
    "expected": frozenset({"reference_outputs", "expected_documents"}),
    "context": frozenset({"documents"}),
    "actual": frozenset({"outputs"}),
    "conditions": frozenset({"conditions", "guidelines"}),
    "trace": frozenset({"trace", "run", "root_run"}),
}
DATABRICKS_COLUMNS: Mapping[str, str] = {  # Databricks' columns and the corresponding fields of a case
    "request": "inputs",
    "response": "outputs",
    "expected_response": "reference_outputs",
    "retrieved_context": "documents",
    "expected_retrieved_context": "expected_documents",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec:
    """Registry entry of an evaluator.

    `needs` holds the arguments that a case must have, `uses` the optional ones.
    """

    id: str
    group: str
    metrics: tuple[Metric, ...]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    # number that is raised whenever the evaluator's results change; part of the version in every feedback
    version: str = FIRST_VERSION
    standards: tuple[str, ...] = ()
    source: str = ""  # name of the document that defines the evaluator
    canonical: str = ""  # reference implementation with the same results
    llm: bool = True  # whether it can evaluate a model without retrieval
    rag: bool = True  # whether it can evaluate retrieval-augmented generation
    judge: bool = False
    agent: bool = False
    model: bool = False
    gpu: bool = False
    summary: bool = False
    kind: Source = "code"
    example: str = ""  # arguments of `score(…)` in an example, as code

    @property
    def needed(self) -> dict[str, Need]:
        """Return what the evaluator requires: each column of a test case, and a judge, an agent, a model and a GPU."""
        columns: dict[str, Need] = {}
        for name, fields in TEST_CASE_COLUMNS.items():
            columns[name] = "yes" if fields & set(self.needs) else "optional" if fields & set(self.uses) else "no"
        machinery = {"judge": self.judge, "agent": self.agent, "model": self.model, "gpu": self.gpu}
        return columns | {name: "yes" if needed else "no" for name, needed in machinery.items()}


SAFE = "Safe (NIST AI RMF)"
SECURE = "Secure and Resilient (NIST AI RMF)"
PRIVACY = "Privacy Enhanced (NIST AI RMF)"
FAIR = "Fair (NIST AI RMF)"
TRANSPARENT = "Accountable and Transparent (NIST AI RMF)"
VALID = "Valid and Reliable (NIST AI RMF)"
SOUNDNESS = "Conceptual Soundness (SR 11-7)"
MONITORING = "Ongoing Monitoring (SR 11-7)"  # applies to every evaluator that a monitor rule runs
OUTCOMES = "Outcomes Analysis (SR 11-7)"

# Summaries of the standards, from NIST AI 100-1 and SR 11-7 (works of the US government), as H2O's documentation has them
STANDARDS: Mapping[str, str] = {
    SAFE: (
        "AI systems should not under defined conditions, lead to a state in which human life, health, "
        "property, or the environment is endangered. Safe operation of AI systems is improved through: "
        "responsible design, development, and deployment practices, clear information to deployers on "
        "responsible use of the system, responsible decision-making by deployers and end users; and "
        "explanations and documentation of risks based on empirical evidence of incidents."
    ),
    SECURE: (
        "AI systems, as well as the ecosystems in which they are deployed, may be said to be resilient if "
        "they can withstand unexpected adverse events or unexpected changes in their environment or use - or "
        "if they can maintain their functions and structure in the face of internal and external change and "
        "degrade safely and gracefully when this is necessary."
    ),
    PRIVACY: (
        "Privacy refers generally to the norms and practices that help to safeguard human autonomy, identity, "
        "and dignity. These norms and practices typically address freedom from intrusion, limiting "
        "observation, or individuals' agency to consent to disclosure or control of facets of their "
        "identities (e.g., body, data, reputation). Privacy values such as anonymity, confidentiality, and "
        "control generally should guide choices for AI system design, development, and deployment."
    ),
    FAIR: (
        "Fairness in AI includes concerns for equality and equity by addressing issues such as harmful bias "
        "and discrimination. Standards of fairness can be complex and difficult to define because perceptions "
        "of fairness differ among cultures and may shift depending on application. Organizations' risk "
        "management efforts will be enhanced by recognizing and considering these differences. Systems in "
        "which harmful biases are mitigated are not necessarily fair. For example, systems in which "
        "predictions are somewhat balanced across demographic groups may still be inaccessible to individuals "
        "with disabilities or affected by the digital divide or may exacerbate existing disparities or "
        "systemic biases."
    ),
    TRANSPARENT: (
        "Trustworthy AI depends upon accountability. Accountability presupposes transparency. Transparency "
        "reflects the extent to which information about an AI system and its outputs is available to "
        "individuals interacting with such a system - regardless of whether they are even aware that they are "
        "doing so. Meaningful transparency provides access to appropriate levels of information based on the "
        "stage of the AI lifecycle and tailored to the role or knowledge of AI actors or individuals "
        "interacting with or using the AI system. By promoting higher levels of understanding, transparency "
        "increases confidence in the AI system."
    ),
    VALID: (
        "Validity and reliability for deployed AI systems are often assessed by ongoing testing or monitoring "
        "that confirms a system is performing as intended. Measurement of validity, accuracy, robustness, and "
        "reliability contribute to trustworthiness and should take into consideration that certain types of "
        "failures can cause greater harm."
    ),
    SOUNDNESS: (
        "Involves assessing the quality of the model design and construction. It entails review of "
        "documentation and empirical evidence supporting the methods used and variables selected for the "
        "model."
    ),
    MONITORING: (
        "Emphasizes the continuous evaluation of a model's performance after deployment. This involves "
        "tracking the model's outputs against real-world data, identifying any deviations or unexpected "
        "results, and assessing if the model's underlying assumptions or market conditions have changed. This "
        "ongoing process ensures the model remains reliable and trustworthy for decision-making."
    ),
    OUTCOMES: (
        "Comparison of model outputs to corresponding actual outcomes. Outcomes analysis typically relies on "
        "statistical tests or other quantitative measures. It can also include expert judgment to check the "
        "intuition behind the outcomes and confirm that the results make sense."
    ),
}
