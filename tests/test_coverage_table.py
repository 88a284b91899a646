"""Every row of docs/coverage.md: its code exists, and what it says about problems, insights and files occurs."""

import dataclasses
import importlib
import inspect
import json
import re
import zipfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from spanwise.cli.app import app
from spanwise.collector.pages import PAGE_ROUTES
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, Judge, analyze, as_evaluator, evaluate, get_evaluator, list_evaluators
from spanwise.evaluators.databricks import evaluate as evaluate_agent
from spanwise.evaluators.interface import STANDARDS, get_registration, get_spec, list_specs
from spanwise.evaluators.interface.evaluator_registry import COMMON_PARAMETERS
from spanwise.evaluators.judges import scripted
from spanwise.tracer import current_run, span, trace

PAGE = Path(__file__).parent.parent / "docs" / "coverage.md"
CODE = re.compile(r"`([^`]+)`")
CALL = re.compile(r"([\w.]+)\(([\w=, ]+)\)")
# open rows: section, evaluator and beginning of the heading
OPEN = {
    ("Each evaluator", "hallucination", "Metrics calculated"),  # needs weights that cannot be downloaded everywhere
    ("Each evaluator", "toxicity", "Metrics calculated"),  # the same
    ("LangSmith", "", "Types of evaluators: human, annotation queue in the user interface"),
}
JUDGE = Judge(model="m", base_url="http://127.0.0.1:1/v1", api_key="x")
GOOD, BAD = "good", "bad"


class Row(NamedTuple):
    """Row of a table: the section it is in, the id of its evaluator, the heading, and what is in the other columns."""

    section: str
    id: str
    heading: str
    here: str
    answer: str

    @property
    def codes(self) -> list[str]:
        return CODE.findall(self.here)

    @property
    def topic(self) -> str:
        """Return the heading without what follows the colon."""
        return self.heading.partition(":")[0]


def read_rows():
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.strip("# ")
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[-1] in ("yes", "open"):
            id = CODE.findall(cells[0])[-1] if len(cells) == 4 else ""
            yield Row(section, id, *cells[-3:])


ROWS = list(read_rows())
BY_EVALUATOR = [row for row in ROWS if row.id]
OF_DOCUMENT = [
    spec.id for spec in list_specs() if spec.source.startswith("H2O Eval Studio: ") and spec.id != "faithfulness_nli"
]


def select(topic):
    return [row for row in BY_EVALUATOR if row.topic == topic and row.answer == "yes"]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_only_named_rows_are_open():
    assert {(row.section, row.id, row.heading) for row in ROWS if row.answer == "open"} == OPEN
    assert all(len(row.here) > 20 for row in ROWS if row.answer == "open")  # the reason
    assert len(ROWS) < 350


def test_the_tables_are_complete():
    assert {row.section for row in ROWS} == {
        *("All evaluators", "Each evaluator", "Laminar", "Haystack", "LangSmith", "Databricks")
    }
    topics = defaultdict(set)
    for row in BY_EVALUATOR:
        topics[row.id].add(row.topic)
    assert sorted(topics) == sorted(OF_DOCUMENT)
    without_parameters = {"language_mismatch", "summarization_cf"}  # the document has no such heading
    for id, found in topics.items():
        wanted = {"Metrics calculated", "Problems reported", "Insights diagnosed"}
        assert found >= wanted | (set() if id in without_parameters else {"Evaluator parameters"}), id


@pytest.mark.parametrize(
    "section",
    [
        "All evaluators",
        "Laminar",
        pytest.param("Haystack", marks=pytest.mark.process),  # imports Haystack for seconds
        "LangSmith",
        "Databricks",
    ],
)
def test_code_exists(section):
    rows = [row for row in ROWS if row.section == section]
    assert rows
    assert [(row.heading, problem) for row in rows for code in row.codes if (problem := find_problem(code))] == []
    assert [row.heading for row in rows if not row.codes] == []


def find_problem(code):
    """Return why a code is wrong, or ""."""
    if code in STANDARDS:
        return ""
    if code.startswith("spanwise "):
        return find_command_problem(code.split()[1:])
    if code.startswith("/"):
        return "" if code in {path.replace(":path}", "}") for path, _, _ in PAGE_ROUTES} else f"no page {code}"
    name, names = match.groups() if (match := CALL.fullmatch(code)) else (code, "")
    parameters = [each.removesuffix("=") for each in names.split(", ")] if names else []
    if "." in name:
        return find_name_problem(name, parameters)
    if name not in list_evaluators():
        return f"no evaluator {name!r}"
    return "; ".join(f"{name} has no parameter {each!r}" for each in parameters if not has_parameter(name, each))


def find_name_problem(name, parameters):
    try:
        found = resolve(name)
    except (ImportError, AttributeError) as error:
        return str(error)
    # a class is called through its __init__: the signature of a Haystack component is that of its metaclass
    known = inspect.signature(found.__init__ if isinstance(found, type) else found).parameters if parameters else {}
    return "; ".join(f"{name} has no parameter {each!r}" for each in parameters if each not in known)


def resolve(name):
    """Return the object of a dotted name: the longest part that is a module, then its attributes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"no module {name!r}")


def has_parameter(id, name):
    fields = {field.name for field in dataclasses.fields(get_registration(id).factory) if field.init}
    return name in fields or name in COMMON_PARAMETERS


def find_command_problem(words):
    command = typer.main.get_command(app)
    for word in words:
        if word.startswith("-"):
            if word not in {option for parameter in command.params for option in parameter.opts}:
                return f"{command.name} has no option {word}"
        else:
            command = command.get_command(typer.Context(command), word)
            if command is None:
                return f"no command {word!r}"
    return ""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("spanwise experiments analyse", "no command 'analyse'"),
        ("spanwise experiments analyze --pdf", "analyze has no option --pdf"),
        ("exakt", "no evaluator 'exakt'"),
        ("exact(pattern=)", "exact has no parameter 'pattern'"),
        ("spanwise.evaluators.evaluate(tusk=)", "spanwise.evaluators.evaluate has no parameter 'tusk'"),
        ("spanwise.evaluators.evaluat", "module 'spanwise.evaluators' has no attribute 'evaluat'"),
        ("/queue", "no page /queue"),
    ],
)
def test_wrong_code_is_found(code, problem):
    assert find_problem(code) == problem


# --- each evaluator of H2O Eval Studio --------------------------------------------------------------------------------


def test_metric_keys_are_those_of_the_registry():
    rows = [row for row in BY_EVALUATOR if row.topic == "Metrics calculated"]
    assert {row.id: [code for code in row.codes if not code.endswith("=")] for row in rows} == {
        row.id: [metric.key for metric in get_spec(row.id).metrics] for row in rows
    }


def test_parameters_are_accepted():
    named = [(row.id, code[:-1]) for row in BY_EVALUATOR for code in row.codes if code.endswith("=")]
    assert [(id, name) for id, name in named if not has_parameter(id, name)] == []
    assert [row for row in select("Evaluator parameters") if not all(code.endswith("=") for code in row.codes)] == []


@pytest.mark.parametrize(
    "row", [row for row in select("Evaluator parameters") if ":" in row.heading], ids=lambda r: r.id
)
def test_names_of_a_connection_are_answered_with_the_parameter(row):
    for name in CODE.findall(row.heading):
        with pytest.raises(ValueError, match=f"use {row.codes[0]}"):
            get_evaluator(row.id, **{name: "x"})


def make_scripted(id, **options):
    """Return the evaluator with its metrics, whose function gives the best or the worst scores by the answer."""
    options |= {"judge": JUDGE} if get_spec(id).judge else {}
    options |= {"prompt": "{outputs}"} if id == "byop" else {}
    made = get_evaluator(id, **options)

    def rate(outputs):
        return [{"key": metric.key, "score": pick_score(metric, outputs == GOOD)} for metric in made.metrics]

    return dataclasses.replace(made, function=rate, binding=as_evaluator(rate).binding)


def pick_score(metric, good):
    low, high = (0.0, 1.0) if metric.range[1] <= 1 else (1.0, 9.0)
    return high if good == metric.higher_is_better else low


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Problems and insights, by evaluator: with default thresholds, and with thresholds."""
    ids = [id for id in OF_DOCUMENT if not get_spec(id).summary]
    needing = {row.id for row in select("Problems reported") if "metric_threshold=" in row.codes}
    thresholds = {id: 5.0 if get_spec(id).metrics[0].range[1] > 1 else 0.5 for id in needing}
    with SQLiteStore(tmp_path_factory.mktemp("coverage") / "a.db") as store:
        yield {
            "default": examine(store, ids, {}),
            "given": examine(store, ids, thresholds),
        }


def examine(store, ids, thresholds):
    """Return kinds of problems and insights per evaluator, of a good model and one that fails most cases."""
    cases = [{"id": f"e{n}", "inputs": {"n": n}} for n in range(6)]
    cases.append({"id": "perturbed", "inputs": {"n": 6}, "base_id": "e0", "categories": ["typos"]})
    evaluators = [make_scripted(id, **({"metric_threshold": thresholds[id]} if id in thresholds else {})) for id in ids]
    sides = []
    for model, failing in (("good", {6}), ("bad", {1, 2, 3, 4, 5, 6})):

        def task(n, model=model, failing=failing):
            current_run().set_usage(input_tokens=1, output_tokens=1, cost={"good": 0.1, "bad": 0.2}[model])
            return BAD if n in failing else GOOD

        sides.append(
            evaluate(cases, task, evaluators, name=model, store=store, metadata={"model": model}, progress=False)
        )
    analysis = analyze(*sides)
    owner = {metric.key: id for id in ids for metric in get_spec(id).metrics}
    problems, insights = defaultdict(set), defaultdict(dict)
    for problem in analysis.problems:
        problems[owner[problem.key]].add(problem.kind)
    for insight in analysis.insights:
        insights[owner[insight.key]][insight.kind] = insight.text
    return problems, insights


def test_problems_occur(found):
    for row in select("Problems reported"):
        if ":" in row.heading or get_spec(row.id).summary:
            continue
        kinds = {code for code in row.codes if not code.endswith("=")}
        assert kinds <= found["given"][0][row.id], row
        by_default = "metric_threshold=" not in row.codes
        assert ("threshold" in found["default"][0][row.id]) == by_default, row


def test_insights_occur(found):
    for row in select("Insights diagnosed"):
        if get_spec(row.id).summary:
            continue
        insights = found["given"][1][row.id]
        assert {code for code in row.codes if not code.endswith("=")} - {row.id} <= insights.keys(), row
        if row.id in ("groundedness", "hallucination"):
            assert "hallucinated" in insights["hardest test case"]


def test_problems_of_cases_occur(store):
    @trace(kind="agent")
    def agent(content):
        with suppress(ConnectionError), span("look up", kind="tool"):
            raise ConnectionError("away")
        return {"artifacts": [{"path": "a.json", "content": content}]}

    checked = evaluate([{"inputs": {"content": "[1"}}], agent, ["agent_sanity"], store=store, progress=False)
    grounded = get_evaluator("groundedness", model=lambda texts: [[1.0]] * len(texts))
    empty = evaluate(
        [{"inputs": {"n": 1}, "documents": ["A chunk."]}], lambda n: "", [grounded], store=store, progress=False
    )
    occurred = {"agent_sanity": kinds_of(checked), "groundedness": kinds_of(empty)}
    rows = [row for row in BY_EVALUATOR if row.heading.startswith(("Problems reported:", "Method: problems"))]
    assert {row.id for row in rows} == occurred.keys()
    for row in rows:
        assert set(row.codes) <= occurred[row.id]


def kinds_of(experiment):
    return {problem.kind for problem in analyze(experiment).problems}


def test_insights_of_retrieval_need_the_context_to_be_judged():
    for row in select("Insights diagnosed"):
        if "best retrieval" in row.codes and row.id != "fact_check":
            (judged,) = [
                field.default
                for field in dataclasses.fields(get_registration(row.id).factory)
                if field.name == "evaluate_retrieved_context"
            ]
            assert judged == ("evaluate_retrieved_context=" not in row.codes), row


def test_problems_and_insights_of_a_classification_occur(store):
    cases = [{"id": f"e{n}", "inputs": {"n": n}, "reference_outputs": "y"} for n in range(9)]
    cases.append({"id": "p", "inputs": {"n": 9}, "reference_outputs": "y", "base_id": "e0", "categories": ["typos"]})
    sides = [
        evaluate(cases, lambda n, bad=bad: "x" if n in bad else "y", ["classification"], store=store, progress=False)
        for bad in (set(range(1, 10)), {9})
    ]
    analysis = analyze(*sides)
    occurred = {
        "Problems reported": {problem.kind for problem in analysis.problems},
        "Insights diagnosed": {insight.kind for insight in analysis.insights if insight.shown},
    }
    rows = [row for row in BY_EVALUATOR if row.id == "classification" and row.heading in occurred]
    assert len(rows) == 2
    assert all(set(row.codes) <= occurred[row.heading] for row in rows)


def test_explanations_are_files_of_the_archive(store, tmp_path):
    experiment = evaluate([{"inputs": {"n": 1}}], lambda n: "Hi.", ["pii"], store=store, progress=False)
    with zipfile.ZipFile(experiment.analyze().report(tmp_path / "work-dir.zip")) as archive:
        names = set(archive.namelist())
        assert json.loads(archive.read("llm-bool-leaderboard.json"))[0]["key"] == "pii"
    rows = select("Explanations created")
    assert len(rows) == 8
    assert {code for row in rows for code in row.codes} <= names


# --- Databricks -------------------------------------------------------------------------------------------------------


def test_names_of_databricks_are_computed(store):
    case = {
        "request": "When was it built?",
        "response": "In 1912.",
        "expected_response": "1912",
        "retrieved_context": [{"content": "Built in 1912.", "doc_uri": "a"}],
        "expected_retrieved_context": [{"doc_uri": "a"}],
        "guidelines": ["Be brief"],
    }
    judge = scripted(lambda ask: {"rationale": "It does.", "rating": "yes"})
    custom = [
        get_evaluator("custom_judge", judge=judge, assessment_name="own", assessment_type=kind, prompt=prompt)
        for kind, prompt in (("ANSWER", "Short? {response}"), ("RETRIEVAL", "New? {documents}"))
    ]
    names = set()
    for extra in ([custom[0]], [custom[1]]):
        result = evaluate_agent(
            data=[case],
            model_type="databricks-agent",
            evaluator_config={"databricks-agent": {"global_guidelines": ["Be kind"]}},
            extra_metrics=extra,
            judge=judge,
            store=store,
            progress=False,
        )
        assert isinstance(result, Experiment)
        names |= {*result.metrics, *result.tables["eval_results"].columns}
    rows = [row for row in ROWS if row.section == "Databricks"]
    written = {
        code for row in rows for code in CODE.findall(row.heading) if code.startswith(("response/", "retrieval/"))
    }
    assert {name.replace("{assessment_name}", "own") for name in written} - names == set()
    assert len(written) > 40
