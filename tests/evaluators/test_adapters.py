"""Metric objects of other libraries as evaluators.

pydantic-evals, autoevals, deepeval and ragas are not installed here: small classes with the names, attributes and
signatures of theirs stand in for them. The adapters were tried with the packages themselves.
"""

import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from spanwise.collector.records import Run, Trace
from spanwise.evaluators import as_evaluator, evaluate, score


def of(module):
    """Say that a class belongs to a module."""

    def decorate(cls):
        cls.__module__ = module
        return cls

    return decorate


@of("autoevals.score")
class Scorer:
    def eval(self, output, expected=None, **kwargs):
        return self._run_eval_sync(output, expected, **kwargs)

    async def eval_async(self, output, expected=None, **kwargs):
        return self._run_eval_sync(output, expected, **kwargs)

    def _name(self):
        return type(self).__name__


def said(score, error=None, **metadata):
    return SimpleNamespace(name="x", score=score, metadata=metadata, error=error)


@of("autoevals.string")
class Levenshtein(Scorer):
    def _run_eval_sync(self, output, expected=None, **kwargs):
        return said(float(output == expected), rationale="They are compared.")


@of("autoevals.llm")
class OpenAIScorer(Scorer):
    client = None


@of("autoevals.llm")
class ClosedQA(OpenAIScorer):
    messages = ({"role": "user", "content": "{{input}}\n{{{output}}}\n{{criteria}}"},)

    def __init__(self, gives=None, **render_args):
        self.gives, self.render_args = gives, render_args

    def _run_eval_sync(self, output, expected=None, **kwargs):
        self.asked = kwargs
        return self.gives


def test_autoevals_scorer():
    one = as_evaluator(Levenshtein())
    assert (one.key, one.needs, one.make.source) == ("Levenshtein", ("outputs", "reference_outputs"), "code")
    [right] = score(one, outputs="a", reference_outputs="a")
    assert (right.key, right.score, right.comment) == ("Levenshtein", 1.0, "They are compared.")


def test_autoevals_scorer_is_not_asked_without_what_it_compares_with():
    [skipped] = score(Levenshtein(), outputs="a")
    assert (skipped.outcome, "needs reference_outputs" in skipped.comment) == ("skip", True)


def test_autoevals_model_says_by_its_prompt_what_it_needs():
    one = as_evaluator(ClosedQA(said(None)))
    assert (one.needs, one.make.source) == (("outputs", "inputs"), "model")
    assert as_evaluator(ClosedQA(said(None), input="fixed")).needs == ("outputs",)


@pytest.mark.parametrize(
    ("gives", "outcome"), [(said(None), "skip"), (said(0.0), "score"), (said(None, ValueError("no")), "error")]
)
def test_autoevals_outcomes(gives, outcome):
    assert score(ClosedQA(gives), outputs="a", inputs="b")[0].outcome == outcome


@of("deepeval.metrics.base_metric")
class BaseMetric:
    threshold, score, reason, success, error, skipped, async_mode, model = (
        0.5,
        None,
        None,
        None,
        None,
        False,
        True,
        None,
    )

    def is_successful(self):
        return self.score >= self.threshold

    @property
    def __name__(self):
        return type(self).__name__


@of("deepeval.metrics.base_metric")
class BaseConversationalMetric(BaseMetric):
    pass


@dataclass
class TestCase:
    __test__ = False
    turns: list = field(default_factory=list)
    input: str = ""
    actual_output: str | None = None
    expected_output: str | None = None
    retrieval_context: list | None = None
    context: list | None = None
    tools_called: list | None = None
    metadata: dict | None = None
    expected_outcome: str | None = None


@pytest.fixture
def _deepeval(monkeypatch):
    module = ModuleType("deepeval.test_case")
    module.LLMTestCase = module.ConversationalTestCase = TestCase
    module.ToolCall = module.Turn = SimpleNamespace
    monkeypatch.setitem(sys.modules, "deepeval", ModuleType("deepeval"))
    monkeypatch.setitem(sys.modules, "deepeval.test_case", module)


class Short(BaseMetric):
    _required_params = (SimpleNamespace(value="input"), SimpleNamespace(value="actual_output"))

    async def a_measure(self, case, _show_indicator=True):
        assert not _show_indicator
        self.case, self.score, self.reason = case, len(case.actual_output) / 10, f"{case.actual_output!r} is short"
        self.success = self.is_successful()
        return self.score


@pytest.mark.usefixtures("_deepeval")
def test_deepeval_metric():
    one = as_evaluator(Short())
    assert (one.key, one.needs, one.metrics[0].threshold) == ("Short", ("inputs", "outputs"), 0.5)
    [given] = score(one, inputs={"q": "Why?"}, outputs="because")
    assert (given.score, given.comment, given.metadata["success"]) == (0.7, "'because' is short", True)


@pytest.mark.usefixtures("_deepeval")
def test_deepeval_metric_keeps_no_result_of_another_case(store):
    metric = Short()
    rows = [{"inputs": {"q": "x" * number}} for number in range(1, 9)]
    done = evaluate(rows, lambda q: q, evaluators=[metric], store=store, concurrency=8)
    assert sorted(row.feedback["Short"].score for row in done.rows()) == [number / 10 for number in range(1, 9)]
    assert metric.score is None


@pytest.mark.usefixtures("_deepeval")
def test_deepeval_metric_of_which_less_is_better():
    class Toxic(Short):
        def is_successful(self):
            return self.score <= self.threshold

    assert [as_evaluator(kind()).metrics[0].higher_is_better for kind in (Short, Toxic)] == [True, False]


@pytest.mark.usefixtures("_deepeval")
def test_deepeval_sees_documents_and_tools():
    class Looks(Short):
        async def a_measure(self, case):
            self.score, self.reason = (
                1.0,
                f"{case.retrieval_context} {[(t.name, t.input_parameters) for t in case.tools_called]}",
            )

    ids = {"trace_id": "1" * 32}
    root = Run(**ids, span_id="a" * 16, name="agent", inputs="x", outputs="y", end_ns=1)
    tool = Run(**ids, span_id="b" * 16, parent_id="a" * 16, name="search", kind="tool", inputs={"q": 1})
    [given] = score(Looks(), Trace(root, (root, tool)), documents=["doc"])
    assert given.comment == "['doc'] [('search', {'q': 1})]"
    call = {"id": "c", "function": {"name": "search", "arguments": '{"q": 1}'}}
    asked = Run(**ids, span_id="c" * 16, parent_id="a" * 16, name="chat", kind="llm", outputs=[{"tool_calls": [call]}])
    [given] = score(Looks(), Trace(root, (root, asked)), documents=["doc"])
    assert given.comment == "['doc'] [('search', {'q': 1})]"


@pytest.mark.usefixtures("_deepeval")
def test_deepeval_conversation():
    class Talk(BaseConversationalMetric):
        async_mode = False

        def measure(self, case):
            self.score, self.reason = 1.0, " ".join(f"{turn.role}:{turn.content}" for turn in case.turns)
            assert threading.current_thread() is not threading.main_thread()

    [given] = score(Talk(), history=[{"role": "user", "content": "a"}], inputs="b", outputs="c")
    assert given.comment == "user:a user:b assistant:c"
    assert score(Talk(), documents=["x"])[0].outcome == "skip"


@pytest.mark.usefixtures("_deepeval")
@pytest.mark.parametrize(
    ("set", "outcome"), [({"error": "broken"}, "error"), ({"skipped": True}, "skip"), ({}, "skip")]
)
def test_deepeval_outcomes_that_are_no_scores(set, outcome):
    class Says(BaseMetric):
        async def a_measure(self, case):
            vars(self).update(set)

    assert score(Says(), inputs="a", outputs="b")[0].outcome == outcome


@pytest.mark.usefixtures("_deepeval")
def test_deepeval_test_case_that_lacks_something_is_a_skip():
    MissingTestCaseParamsError = type("MissingTestCaseParamsError", (Exception,), {})

    class Says(BaseMetric):
        async def a_measure(self, case):
            raise MissingTestCaseParamsError("'expected_tools' cannot be None")

    [given] = score(Says(), inputs="a", outputs="b")
    assert (given.outcome, given.comment) == ("skip", "'expected_tools' cannot be None")


def test_deepeval_metrics_that_judge_no_single_case_are_refused():
    arena = type("BaseArenaMetric", (), {"__module__": "deepeval.metrics.base_metric"})
    with pytest.raises(ValueError, match="compares several answers"):
        as_evaluator(arena())
    with pytest.raises(ValueError, match="traces that deepeval recorded"):
        as_evaluator(type("Loops", (BaseMetric,), {"requires_trace": True})())


@of("ragas.metrics.base")
class Metric:
    name = "exact_match"
    required_columns = property(lambda self: {"SINGLE_TURN": {"response", "reference"}})

    def get_required_columns(self, with_optional):
        return {"SINGLE_TURN": {"response", "reference", "retrieved_contexts"}}

    async def single_turn_ascore(self, sample):
        self.seen = vars(sample)
        return float(sample.response == sample.reference)


@of("ragas.metrics.base")
class SimpleBaseMetric:
    name, allowed_values = "tone", (0.0, 1.0)


@pytest.fixture
def _ragas(monkeypatch):
    module = ModuleType("ragas.dataset_schema")
    module.SingleTurnSample = SimpleNamespace
    monkeypatch.setitem(sys.modules, "ragas", ModuleType("ragas"))
    monkeypatch.setitem(sys.modules, "ragas.dataset_schema", module)


@pytest.mark.usefixtures("_ragas")
def test_ragas_metric_with_a_sample():
    metric = Metric()
    one = as_evaluator(metric)
    assert (one.key, set(one.needs), one.uses) == ("exact_match", {"outputs", "reference_outputs"}, ("documents",))
    [given] = score(one, outputs={"answer": "a"}, reference_outputs="a", documents=["d"], inputs="not asked for")
    assert given.score == 1.0
    assert metric.seen == {"response": "a", "reference": "a", "retrieved_contexts": ["d"]}


def test_ragas_metric_with_arguments():
    class Tone(SimpleBaseMetric):
        async def ascore(self, user_input, response):
            return SimpleNamespace(value=None if response == "bad" else 0.5, reason=f"of {user_input}")

    one = as_evaluator(Tone())
    assert (one.needs, one.metrics[0].range) == (("inputs", "outputs"), (0.0, 1.0))
    assert [(given.score, given.comment) for given in score(one, inputs="q", outputs="x")] == [(0.5, "of q")]
    assert [(given.outcome, given.error) for given in score(one, inputs="q", outputs="bad")] == [("error", "of q")]


def test_ragas_metric_that_is_handed_its_model_is_refused():
    class Discrete(SimpleBaseMetric):
        async def ascore(self, **kwargs): ...

    with pytest.raises(ValueError, match="takes its model as an argument"):
        as_evaluator(Discrete())


@of("pydantic_evals.evaluators.evaluator")
class Evaluator:
    def get_default_evaluation_name(self):
        return type(self).__name__

    def get_evaluator_version(self):
        return "v2"

    async def evaluate_async(self, ctx):
        return self.evaluate(ctx)


@pytest.fixture
def _pydantic_evals(monkeypatch):
    names = ("pydantic_evals", "pydantic_evals.otel", "pydantic_evals.otel._errors", "pydantic_evals.evaluators")
    modules = {name: ModuleType(name) for name in names}
    modules["pydantic_evals.evaluators"].EvaluatorContext = SimpleNamespace
    modules["pydantic_evals.otel._errors"].SpanTreeRecordingError = ValueError
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("_pydantic_evals")
@pytest.mark.parametrize(
    ("gives", "told"),
    [
        (True, [("Mine", True, None, None)]),
        (3, [("Mine", 3.0, None, None)]),
        ("dry", [("Mine", None, "dry", None)]),
        (SimpleNamespace(value=False, reason="no"), [("Mine", False, None, "no")]),
        (
            {"a": 1, "b": SimpleNamespace(value="x", reason="so")},
            [("a", 1.0, None, None), ("b", None, "x", "so")],
        ),
    ],
)
def test_pydantic_evals_evaluator(gives, told):
    class Mine(Evaluator):
        def evaluate(self, ctx):
            assert (ctx.inputs, ctx.output, ctx.expected_output) == ({"q": 1}, "x", None)
            return gives

    one = as_evaluator(Mine())
    assert (one.needs, one.version) == (("outputs",), "v2")
    feedback = score(one, inputs={"q": 1}, outputs="x")
    assert [(given.key, given.score, given.label, given.comment) for given in feedback] == told


@pytest.mark.usefixtures("_pydantic_evals")
def test_pydantic_evals_evaluator_that_finds_nothing_to_compare_is_a_skip():
    class Mine(Evaluator):
        def evaluate(self, ctx):
            return {}

    assert score(Mine(), outputs="x")[0].outcome == "skip"


def test_anything_else_is_no_metric():
    with pytest.raises(TypeError, match="an evaluator must be a callable"):
        as_evaluator(SimpleNamespace(score=1))
    with pytest.raises(TypeError, match="an evaluator must be a callable"):
        as_evaluator(Levenshtein)
