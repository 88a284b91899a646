"""`spanwise evaluators` and `spanwise feedback` as a user runs them; the pages of the evaluators are up to date."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.cli import evaluator_docs as made
from spanwise.cli.app import app
from spanwise.collector.errors import Refused
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import get_evaluator
from spanwise.evaluators.interface import STANDARDS, list_specs

DOCS = Path(__file__).parents[2] / "docs" / "evaluators"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    store.append(
        [
            Run(
                trace_id=TRACE,
                span_id="a" * 16,
                name="answer",
                inputs={"q": "Why?"},
                outputs="42 cats",
                start_ns=1,
                end_ns=2,
            )
        ]
    )
    store.close()
    return path


@pytest.fixture
def spanwise(database):
    def run(*arguments, store=True, status=0):
        result = CliRunner().invoke(app, [*arguments, *(["--store", str(database)] if store else [])])
        assert result.exit_code == status, result.output
        return result.stdout

    return run


def lines(output):
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.process
def test_pages_are_up_to_date():
    pages = made.render_pages()
    there = {path.name: path.read_text() for path in DOCS.glob("*.md") if path.name != "protocol.md"}
    assert there.keys() == pages.keys(), "run: python -m spanwise.cli.evaluator_docs docs/evaluators"
    assert [name for name in pages if there[name] != pages[name]] == [], (
        "run: python -m spanwise.cli.evaluator_docs docs/evaluators"
    )


@pytest.mark.process
def test_the_page_of_whatever_embeds_names_the_model_and_its_limits():
    embeds = [page for page in made.render_pages().values() if re.search(r"^\| `(model|embed)` \|", page, re.MULTILINE)]
    assert len(embeds) > 15
    without = [page.partition("\n")[0] for page in embeds if "| Default model |" not in page]
    assert without == ["# fairness_bias"]  # it asks a judge unless a model is given


@pytest.mark.parametrize(
    "page", [path for path in sorted(DOCS.glob("*.md")) if "```text" in path.read_text()], ids=lambda path: path.stem
)
def test_examples_print_what_the_page_says(page, capsys):
    code, output = re.findall(r"^```(?:python|text)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out == output


def test_every_evaluator_that_needs_no_model_shows_an_example_that_gives_a_score():
    shown = [said for said in list_specs() if not said.judge and not said.model]
    assert [said.id for said in shown if not said.example] == []
    assert [said.id for said in shown if not any(one.outcome == "score" for one in made.run_example(said))] == []


@pytest.mark.process
def test_writing_pages_takes_old_ones_away(tmp_path):
    (tmp_path / "gone.md").write_text("old")
    (tmp_path / "protocol.md").write_text("by hand")
    made.write_pages(tmp_path)
    assert not (tmp_path / "gone.md").exists()
    assert (tmp_path / "protocol.md").read_text() == "by hand"


def test_the_list_of_evaluators(spanwise):
    output = spanwise("evaluators", "list", store=False)
    assert "document_recall" in output
    rows = lines(spanwise("evaluators", "list", "--needs", "conditions", "--json", store=False))
    assert {row["id"] for row in rows} == {"encoding_guardrail", "guideline_adherence", "text_matching"}
    assert rows[-1]["needed"]["context"] == "optional"


@pytest.mark.process
def test_keys_are_listed_with_their_direction(spanwise):
    output = spanwise("evaluators", "list", "--group", "numbers", store=False)
    assert "latency ↓" in output
    assert "↑ higher" in spanwise("evaluators", "show", "exact", store=False)
    assert "↓ lower" in spanwise("evaluators", "show", "latency", store=False)
    assert "↑" not in spanwise("evaluators", "show", "human_feedback", store=False)


def test_evaluators_are_listed_by_standard_and_the_assignment_is_ours(database):
    run = CliRunner().invoke(app, ["evaluators", "list", "--by", "standard"])
    assert "Spanwise's own reading" in run.stderr
    named = [line.partition(":")[0] for line in run.stdout.splitlines() if ": " in line]
    assert named == list(STANDARDS)
    privacy = "Privacy Enhanced (NIST AI RMF): contact_information, encoding_guardrail, pii, sensitive_data"
    assert privacy in " ".join(run.stdout.split())
    as_json = CliRunner().invoke(app, ["evaluators", "list", "--by", "standard", "--json"])
    groups = {row["standard"]: row["evaluators"] for row in lines(as_json.stdout)}
    assert list(groups) == list(STANDARDS)
    assert {id for ids in groups.values() for id in ids} == {spec.id for spec in list_specs()}


def test_evaluators_of_a_group_are_listed_by_standard(spanwise):
    rows = lines(spanwise("evaluators", "list", "--by", "standard", "--group", "text", "--json", store=False))
    assert rows[0] == {"standard": next(iter(STANDARDS)), "evaluators": []}
    assert "rouge" in rows[-1]["evaluators"]


def test_the_page_of_an_evaluator_shows_display_names_and_what_the_document_says(spanwise):
    assert "Agent Sanity" in spanwise("evaluators", "show", "agent_sanity", store=False)
    page = spanwise("evaluators", "show", "perplexity", store=False)
    assert "The document gives other values" in page
    assert "0 to ∞" in page
    [shown] = lines(spanwise("evaluators", "show", "groundedness", "--json", store=False))
    [metric] = shown["metrics"]
    assert (metric["display_name"], metric["threshold"]) == ("Groundedness", None)
    assert (metric["document"]["range"], metric["document"]["threshold"]) == ([0.0, 1.0], 0.75)
    assert "bge-small-en" in metric["document"]["threshold_reason"]


def test_the_page_of_an_evaluator(spanwise):
    assert "Discounted" not in spanwise("evaluators", "show", "regex", store=False)
    assert "ir_ndcg score" in spanwise("evaluators", "show", "ir_ndcg", store=False)
    [shown] = lines(spanwise("evaluators", "show", "pii", "--json", store=False))
    assert (shown["needs"], shown["parameters"]["region"]) == (["outputs"], None)


def test_what_a_judge_asks_with_is_shown_without_a_judge(spanwise, monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    assert "{trajectory}" in spanwise("evaluators", "show", "goal_reached", store=False)
    [shown] = lines(spanwise("evaluators", "show", "goal_reached", "--json", store=False))
    [prompt] = shown["prompts"]
    assert (prompt["id"], prompt["version"], len(prompt["hash"])) == ("goal_reached", "1", 12)
    assert "{trajectory}" in prompt["text"]


MINE = """from spanwise.evaluators import evaluator, judge
shown = {"outputs": "Go.", "rationale": "Rude.", "rating": 1}
polite = judge("polite", "Is it polite?\\n{outputs}", {1: "rude", 2: "warm"}, judge="m", examples=[shown])

@evaluator(threshold=0.5)
def short(outputs):
    \"\"\"Whether it is short.\"\"\"
    return len(outputs) < 9
"""


def test_a_judge_of_a_file_is_shown_with_its_prompt_scale_and_examples(spanwise, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    text = " ".join(spanwise("evaluators", "show", f"{tmp_path}/mine.py:polite", store=False).split())
    assert [word in text for word in ("Is it polite?", "1: rude", "2: warm", "outputs: Go.", "m at ")] == [True] * 5
    assert "Whether it is short." in spanwise("evaluators", "show", f"{tmp_path}/mine.py:short", store=False)


def test_a_definition_is_shown_and_is_the_same_judge(spanwise, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    [shown] = lines(spanwise("evaluators", "show", f"{tmp_path}/mine.py:polite", "--json", store=False))
    assert (shown["id"], shown["needs"], shown["definition"]["type"]) == ("polite", ["outputs"], "judge")
    (tmp_path / "polite.json").write_text(json.dumps(shown["definition"]))
    [again] = lines(spanwise("evaluators", "show", f"{tmp_path}/polite.json", "--json", store=False))
    assert again == shown


def test_a_file_that_defines_nothing_is_one_line(tmp_path):
    (tmp_path / "x.yaml").write_text("[1]")
    shown = CliRunner().invoke(app, ["evaluators", "show", f"{tmp_path}/x.yaml"])
    assert (shown.exit_code, "is not the definition of an evaluator" in str(shown.exception or shown.output)) == (
        1,
        True,
    )


def test_an_evaluator_looks_at_a_stored_trace(spanwise, database):
    spanwise("evaluators", "score", "regex", TRACE, "--set", "pattern=[0-9]+", "--save")
    [kept] = lines(spanwise("feedback", "list", TRACE, "--json"))
    assert (kept["key"], kept["score"], kept["evaluator"]) == ("regex", 1.0, "regex")
    assert "needs reference_outputs" in " ".join(spanwise("evaluators", "score", "exact", TRACE).split())


def test_people_say_something_and_are_kept_apart(spanwise):
    spanwise("feedback", "add", TRACE, "good", "1", "--author", "ann")
    spanwise("feedback", "add", TRACE, "good", "0", "--author", "ann", "--comment", "on second thought")
    spanwise("feedback", "add", TRACE, "good", "yes", "--author", "bob")
    spanwise("feedback", "add", TRACE, "tone", "dry", "--author", "bob")
    rows = {(row["author"], row["key"]): row for row in lines(spanwise("feedback", "list", "--json"))}
    assert {who: row["score"] for who, row in rows.items()} == {
        ("ann", "good"): 0.0,
        ("bob", "good"): 1.0,
        ("bob", "tone"): None,
    }
    assert rows[("bob", "tone")]["label"] == "dry"
    assert rows[("ann", "good")]["source"] == "human"


def test_feedback_on_a_trace_that_has_not_come_yet_is_kept_and_said(spanwise, database):
    unknown = CliRunner().invoke(app, ["feedback", "add", "f" * 32, "good", "1", "--store", str(database)])
    known = CliRunner().invoke(app, ["feedback", "add", TRACE, "good", "1", "--store", str(database)])
    assert ("has not arrived yet" in unknown.stderr, "has not arrived yet" in known.stderr) == (True, False)
    assert len(lines(spanwise("feedback", "list", "f" * 32, "--json"))) == 1


def test_feedback_is_removed_by_id(spanwise):
    [kept] = lines(spanwise("feedback", "add", TRACE, "good", "1", "--json"))
    assert spanwise("feedback", "delete", kept["id"]) == "removed 1 feedbacks\n"
    assert lines(spanwise("feedback", "list", "--json")) == []


def test_where_feedback_is_sent_on_to_is_shown(spanwise, database):
    assert (lines(spanwise("feedback", "outlets", "--json")), spanwise("feedback", "outlets")) == ([], "")
    with SQLiteStore(database) as store:
        store.open_outlet("hub", "http://hub:4318")
    spanwise("feedback", "add", TRACE, "good", "1")
    [shown] = lines(spanwise("feedback", "outlets", "--json"))
    assert (shown["name"], shown["waiting"], shown["sent"]) == ("hub", 1, 0)
    assert "http://hub:4318" in spanwise("feedback", "outlets")


def test_human_feedback_is_a_source_of_scores(spanwise):
    for author, value in (("ann", "1"), ("bob", "0"), ("cid", "1"), ("dan", "1")):
        spanwise("feedback", "add", TRACE, "good", value, "--author", author)
    [row] = lines(spanwise("evaluators", "score", "human_feedback", TRACE, "--set", "of=good", "--json"))
    assert (row["score"], row["source"]) == (0.75, "human")


@pytest.mark.process
def test_other_packages_evaluators_are_listed_and_shown(monkeypatch, tmp_path):
    package = tmp_path / "tiny_evaluators-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-evaluators\nVersion: 1\n")
    points = "longer = tiny_evaluators:Longer\nbroken = tiny_evaluators:nothing\n"
    (package / "entry_points.txt").write_text(f"[spanwise.evaluators]\n{points}")
    code = "class Longer:\n    def __init__(self, than=3): ...\n    def __call__(self, outputs, documents): ...\n"
    (tmp_path / "tiny_evaluators.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    listed = CliRunner().invoke(app, ["evaluators", "list", "--group", "tiny-evaluators", "--json"])
    assert [(one["id"], one["needs"], one["parameters"]) for one in lines(listed.stdout)] == [
        ("longer", ["outputs", "documents"], {"than": 3})
    ]
    assert "evaluator 'broken' (tiny_evaluators:nothing of tiny-evaluators)" in " ".join(listed.stderr.split())
    shown = CliRunner().invoke(app, ["evaluators", "show", "longer"])
    assert "tiny_evaluators:Longer of tiny-evaluators" in shown.stdout


OWN = """
from dataclasses import dataclass

from spanwise.evaluators import evaluator

@evaluator(key="brief", higher_is_better=False)
def brief(outputs, longest=3):
    return len(str(outputs)) <= longest

def loud(outputs, mark="!"):
    return str(outputs).endswith(mark)

@dataclass
class Counted:
    word: str = "a"

    def __call__(self, outputs):
        return float(str(outputs).count(self.word))
"""


@pytest.mark.parametrize(
    ("named", "parameters", "key", "score"),
    [
        ("brief", [], "brief", False),
        ("brief", ["longest=500"], "brief", True),
        ("loud", ["mark=cats"], "loud", True),
        ("Counted", ["word=cats"], "Counted", 1.0),
    ],
)
def test_functions_of_a_file_score_a_trace_with_their_parameters(spanwise, tmp_path, named, parameters, key, score):
    (tmp_path / "own.py").write_text(OWN)
    sets = [part for parameter in parameters for part in ("--set", parameter)]
    [row] = lines(spanwise("evaluators", "score", f"{tmp_path / 'own.py'}:{named}", TRACE, *sets, "--json"))
    assert (row["key"], row["score"]) == (key, score)


@pytest.mark.parametrize(
    ("named", "parameters", "told"),
    [
        ("breif", [], "has no function 'breif'; did you mean 'brief'?"),
        ("brief", ["longst=3"], "own.py:brief: got an unexpected keyword argument 'longst'"),
        ("OWN", [], "has no function 'OWN'"),
    ],
)
def test_what_a_file_has_not_is_told(tmp_path, named, parameters, told):
    (tmp_path / "own.py").write_text(OWN)
    sets = [part for parameter in parameters for part in ("--set", parameter)]
    result = CliRunner().invoke(app, ["evaluators", "score", f"{tmp_path / 'own.py'}:{named}", TRACE, *sets])
    assert isinstance(result.exception, Refused)
    assert told in str(result.exception)


@pytest.mark.parametrize(
    "id",
    [
        "groundedness",
        "answer_relevancy_sent",
        "answer_semantic_similarity",
        "answer_sem_sent_similarity",
        "context_mrr",
        "context_relevancy_soft",
        "exact",
    ],
)
def test_pages_print_the_thresholds_that_the_evaluator_has(id):
    page = (Path(__file__).parents[2] / "docs" / "evaluators" / f"{id}.md").read_text()
    table = page.partition("## Metrics\n\n")[2].partition("\n\n")[0]
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    printed = {row[0].strip("`"): row[head.index("threshold")] for row in rows}
    has = {
        metric.key: "" if metric.threshold is None else f"{metric.threshold:g}" for metric in get_evaluator(id).metrics
    }
    assert printed == has
