"""Declared facts of an evaluator: metrics with thresholds, needs, sources and compliance standards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from spanwise.collector.records import Source
from spanwise.evaluators.interface.value_conversion import decode_infinity, encode_infinities


@dataclass(frozen=True, slots=True)
class Metric:
    """One key of an evaluator: the range of its scores, which direction is good, and from where on it passes.

    `range` is (lowest, highest), either may be infinite; None says nothing. `threshold` None: passing is not defined,
    except for booleans, which pass when they are on the good side.
    """

    key: str
    range: tuple[float, float] | None = (0.0, 1.0)
    higher_is_better: bool = True
    threshold: float | None = None
    primary: bool = False

    def passes(self, score: float | bool) -> bool | None:
        """Whether a score (or a mean of scores) is on the good side of the threshold; a score equal to it passes."""
        threshold = 0.5 if self.threshold is None and isinstance(score, bool) else self.threshold
        if threshold is None:
            return None
        return score >= threshold if self.higher_is_better else score <= threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: infinite ends of the range become None, an infinite threshold the word "Infinity"."""
        plain = {**asdict(self), "threshold": encode_infinities(self.threshold)}
        if self.range is not None:
            plain["range"] = [None if abs(end) == float("inf") else end for end in self.range]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """What is known of passing from what `to_dict` gave: key, direction and threshold."""
        return cls(plain["key"], None, plain.get("higher_is_better", True), decode_infinity(plain.get("threshold")))


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
DATABRICKS_COLUMNS: Mapping[str, str] = {  # its columns, and the fields of a case that they are
    "request": "inputs",
    "response": "outputs",
    "expected_response": "reference_outputs",
    "retrieved_context": "documents",
    "expected_retrieved_context": "expected_documents",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec:
    """What the registry says of an evaluator. `needs` are the arguments that cases must have, `uses` those they may."""

    id: str
    group: str
    metrics: tuple[Metric, ...]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    version: str = FIRST_VERSION  # a number that changes whenever results change; part of the version of every feedback
    standards: tuple[str, ...] = ()
    source: str = ""  # the document that defines it
    canonical: str = ""  # the implementation whose numbers it gives
    llm: bool = True  # makes sense for a model alone
    rag: bool = True  # makes sense for retrieval and generation
    judge: bool = False
    agent: bool = False
    model: bool = False
    gpu: bool = False
    summary: bool = False
    kind: Source = "code"
    example: str = ""  # arguments of `score(…)`, as code

    @property
    def needed(self) -> dict[str, Need]:
        """The table of needs: which columns of a test case, and which machinery."""
        columns = {name: self._need(fields) for name, fields in TEST_CASE_COLUMNS.items()}
        machinery = {"judge": self.judge, "agent": self.agent, "model": self.model, "gpu": self.gpu}
        return columns | {name: "yes" if needed else "no" for name, needed in machinery.items()}

    def _need(self, fields: frozenset[str]) -> Need:
        return "yes" if fields & set(self.needs) else "optional" if fields & set(self.uses) else "no"


SAFE = "Safe (NIST AI RMF)"
SECURE = "Secure and Resilient (NIST AI RMF)"
PRIVACY = "Privacy Enhanced (NIST AI RMF)"
FAIR = "Fair (NIST AI RMF)"
TRANSPARENT = "Accountable and Transparent (NIST AI RMF)"
VALID = "Valid and Reliable (NIST AI RMF)"
SOUNDNESS = "Conceptual Soundness (SR 11-7)"
MONITORING = "Ongoing Monitoring (SR 11-7)"  # every evaluator that a monitor rule runs
OUTCOMES = "Outcomes Analysis (SR 11-7)"
