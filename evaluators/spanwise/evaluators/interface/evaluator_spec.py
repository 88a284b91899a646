"""Declared facts of an evaluator: metrics with thresholds, required and optional arguments, sources and compliance
standards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any, Literal, Self

from spanwise.collector.records import Source
from spanwise.collector.statistics import is_passing
from spanwise.evaluators.interface.document_metrics import DocumentMetric
from spanwise.evaluators.interface.value_conversion import decode_infinity, encode_infinities


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
