"""Report of an analysis: the HTML document, the archive, the page of the collector, and hostile strings in all of them."""

import base64
import hashlib
import json
import re
import zipfile
from collections import Counter
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from spanwise.collector.api import create_app
from spanwise.evaluators import Metric, evaluate, evaluator
from spanwise.evaluators.analysis import analyze, render_page
from spanwise.tracer import current_run, span

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def run(store, name, score, question="What is it?", model=None):
    """Run an experiment over a stored dataset whose scores are all `score`."""

    @evaluator(metrics=[Metric("k", threshold=0.5), Metric(HOSTILE[:40], None)])
    def judge(outputs):
        return [{"key": "k", "score": score, "comment": HOSTILE}, {"key": HOSTILE[:40], "score": 1.0}]

    rows = [{"inputs": {"question": f"{question} {n}"}, "reference_outputs": str(n)} for n in range(6)]
    metadata = {"model": model} if model else None
    return evaluate(rows, lambda question: HOSTILE, [judge], name=name, store=store, metadata=metadata, progress=False)


@pytest.fixture
def analysis(store):
    return analyze(run(store, "first", 0.1), run(store, "second", 0.9))


def test_the_report_is_one_file_that_loads_nothing(analysis, tmp_path):
    text = analysis.report(tmp_path / "report.html").read_text()
    assert "Leaderboard" in text
    assert re.findall(r'(?:src|href)="', text) == []
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_its_policy_allows_only_its_own_script_and_style(analysis, tmp_path):
    text = analysis.report(tmp_path / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    for kind in ("script", "style"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert re.findall(r' (?:on\w+|style)="', text) == []


def test_hostile_strings_are_text(store, tmp_path):
    sides = [run(store, HOSTILE, score, HOSTILE, model=f"{HOSTILE}{score}") for score in (0.1, 0.9)]
    text = analyze(*sides).report(tmp_path / "report.html").read_text()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_the_archive_holds_all_results_and_a_manifest_with_hashes(analysis, tmp_path):
    with zipfile.ZipFile(analysis.report(tmp_path / "work-dir.zip")) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} == {
        name: entry["sha256"] for name, entry in manifest.items()
    }
    rows = json.loads(files["llm-eval-results.json"])
    assert (len(rows), {row["model"] for row in rows}) == (12, {"first", "second"})
    assert rows[0]["outputs"] == HOSTILE
    assert [problem["model"] for problem in json.loads(files["problems.json"])] == ["first"]
    assert {"report.html", "llm-heatmap-leaderboard.json", "llm-bool-leaderboard.json", "insights.json"} <= files.keys()


def test_the_table_of_the_archive_has_one_row_per_run(analysis, tmp_path):
    import io

    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    with zipfile.ZipFile(analysis.report(tmp_path / "work-dir.zip")) as archive:
        frame = pandas.read_parquet(io.BytesIO(archive.read("llm-eval-results.parquet")))
    assert (len(frame), sorted(frame["k"].unique())) == (12, [0.1, 0.9])


def test_another_ending_is_refused(analysis, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.html or \.zip, got '.*report.pdf'"):
        analysis.report(tmp_path / "report.pdf")


def test_the_page_shows_the_analysis_with_links(store):
    first, second = run(store, "first", 0.1), run(store, "second", 0.9)
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        answer = client.get(f"/analysis?ids={first.id},{second.id}")
        compared = client.get(f"/compare?ids={first.id},{second.id}").text
    assert answer.status_code == 200
    assert "'sha256-" in answer.headers["content-security-policy"]
    assert f'href="/experiments/{first.id}"' in answer.text
    assert 'href="/traces/' in answer.text
    assert f'href="/analysis?ids={first.id},{second.id}"' in compared


def test_the_page_needs_experiments_and_evaluators(store):
    first = run(store, "first", 0.1)
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        assert client.get("/analysis").status_code == 400
        assert client.get("/analysis?ids=nope").status_code == 404
        assert client.get("/analysis?ids=" + ",".join(map(str, range(51)))).status_code == 400
    with TestClient(create_app(store)) as client:
        answer = client.get(f"/analysis?ids={first.id}")
    assert (answer.status_code, "spanwise serve" in answer.text) == (404, True)


# --- flips ------------------------------------------------------------------------------------------------------------


def run_perturbed(store, name="perturbed", flips=1):
    """Run over base cases that pass or fail and perturbations that flip; all texts are hostile."""
    rows = []
    for n in range(flips):
        base = {"id": f"e{n}", "inputs": {"question": f"{HOSTILE} {n}", "answer": "yes"}, "reference_outputs": "yes"}
        worse = {"inputs": {"question": f"worse {n}", "answer": HOSTILE}, "base_id": f"e{n}", "categories": ["typos"]}
        failing = {"id": f"f{n}", "inputs": {"question": f"failing {n}", "answer": "no"}, "reference_outputs": "yes"}
        better = {
            "inputs": {"question": f"better {n}", "answer": "yes"},
            "base_id": f"f{n}",
            "categories": [f"{HOSTILE[:30]}"],
        }
        rows += [base, {**base, **worse, "id": f"w{n}"}, failing, {**failing, **better, "id": f"b{n}"}]
    return evaluate(rows, lambda answer: answer, ["exact"], name=name, store=store, progress=False)


def test_flips_are_listed_side_by_side_in_both_directions(store):
    experiment = run_perturbed(store)
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        page = client.get(f"/analysis/flips?ids={experiment.id}").text
        linking = client.get(f"/analysis?ids={experiment.id}").text
    assert f'href="/analysis/flips?ids={experiment.id}"' in linking
    assert f'href="/analysis?ids={experiment.id}"' in page
    rows = re.findall(r"<tr><td><span.*?</tr>", page)
    assert [re.findall("pass→fail|fail→pass", row) for row in rows] == [["pass→fail"], ["fail→pass"]]
    base, changed = re.findall(r'<td class="text">(.*?)</td>', rows[1])[:2]
    assert "failing 0" in base
    assert "<pre>no</pre>" in base
    assert "better 0" in changed
    assert "<pre>yes</pre>" in changed
    assert "exact 0 · " in base
    assert "exact 1 · " in changed
    assert len(re.findall('href="/traces/', rows[1])) == 2
    assert "<img" not in page
    assert "<script>alert" not in page


def test_the_report_holds_flips_without_links(store, tmp_path):
    text = analyze(run_perturbed(store, flips=30)).report(tmp_path / "report.html").read_text()
    assert "50 of 60 flips" in text
    assert "href=" not in text
    assert "<img" not in text


def test_the_page_of_flips_says_if_there_are_none_or_too_many(store):
    first, many = run(store, "first", 0.1), run_perturbed(store, "many", flips=300)
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        assert "No perturbed case flips." in client.get(f"/analysis/flips?ids={first.id}").text
        assert "The first 500 of 600 flips." in client.get(f"/analysis/flips?ids={many.id}").text
        assert client.get("/analysis/flips").status_code == 400


def test_the_archive_holds_the_flips_of_each_model(store, tmp_path):
    with zipfile.ZipFile(analyze(run_perturbed(store)).report(tmp_path / "work-dir.zip")) as archive:
        rows = json.loads(archive.read("perturbations.json"))
    assert {(row["model"], row["kind"], len(row["flips"])) for row in rows} == {
        ("perturbed", "typos", 1),
        ("perturbed", HOSTILE[:30], 1),
    }


# --- attacks ----------------------------------------------------------------------------------------------------------

TEXTS = [
    HOSTILE,
    "</style></script><!--<svg onload=alert(3)>",
    'x" onmouseover="alert(4)',
    "javascript:alert(5)",
    "\x1b[31m\u202eright to left\x07",
    "a" * 20_000,
    "![](http://example.org/x) {{7*7}} ${7*7}",
]


@pytest.mark.process
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_names_labels_models_and_prompts_are_text_in_report_and_pages(store, tmp_path, text):
    """All names, labels, models, prompts, answers, categories and comments are the same hostile text."""
    key = text[:60]

    @evaluator(metrics=[Metric(key, threshold=0.5), Metric("label")])
    def judge(outputs):
        return [{"key": key, "score": float(outputs == "yes"), "comment": text}, {"key": "label", "label": text}]

    def task(question, answer):
        with span("chat", kind="llm"):
            current_run().set_model(f"{text}{len(question) % 2}")
        return answer

    rows = []
    for n in range(4):
        base = {"id": f"e{n}", "inputs": {"question": text + "q" * n, "answer": "yes"}}
        changed = {"question": text + "p" * n, "answer": text}
        rows += [base, {"id": f"p{n}", "inputs": changed, "base_id": f"e{n}", "categories": [text[:100]]}]
    experiment = evaluate(rows, task, [judge], name=text[:200], store=store, progress=False)
    document = analyze(experiment).report(tmp_path / "report.html").read_text()
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        pages = [client.get(f"{path}?ids={experiment.id}").text for path in ("/analysis", "/analysis/flips")]
    assert "pass→fail" in pages[1]
    for page in (document, *pages):
        assert len(page) < 2**20
        parsed = Elements(page)
        assert (parsed.names["script"], parsed.names["style"]) == (1, 1)
        assert not parsed.names.keys() & {"img", "iframe", "object", "embed", "link", "form", "base"}
        assert not [name for name in parsed.attributes if name.startswith("on") or name in ("style", "src")]
        assert all(address.startswith("/") and not address.startswith("//") for address in parsed.addresses)
    str(analyze(experiment))


class Elements(HTMLParser):
    """Elements of a document: how often each occurs, their attributes, and the addresses of links."""

    def __init__(self, document):
        super().__init__()
        self.names, self.attributes, self.addresses = Counter(), Counter(), []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.names[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        self.addresses += [value for name, value in attrs if name == "href"]


@pytest.mark.slow
def test_fifty_experiments_with_two_hundred_keys_are_shown(store, tmp_path):
    keys = [f"key {n}" for n in range(200)]

    @evaluator(metrics=[Metric(key, threshold=0.5) for key in keys])
    def judge(outputs):
        return [{"key": key, "score": (outputs + n) % 7 / 6} for n, key in enumerate(keys)]

    rows = [{"inputs": {"q": n}} for n in range(3)]
    sides = [
        evaluate(rows, lambda q, n=n: q + n, [judge], name=f"experiment {n}", store=store, progress=False)
        for n in range(50)
    ]
    analysis = analyze(*sides)
    assert (len(analysis.models), len(analysis.leaderboard.keys), len(analysis.results.cells)) == (50, 200, 10_000)
    assert "45 more models" in str(analysis)
    assert analysis.report(tmp_path / "report.html").stat().st_size < 2 * 2**20
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        ids = ",".join(side.id for side in sides)
        assert client.get(f"/analysis?ids={ids}").status_code == 200
        assert client.get(f"/analysis/flips?ids={ids}").status_code == 200


def test_a_problem_links_to_the_traces_of_its_cases(analysis, store):
    (problem,) = analysis.problems
    ids = ",".join(record.id for record in analysis.records)
    with TestClient(create_app(store, render_analysis=render_page)) as client:
        row = re.search(r"<details><summary>6</summary>(.*?)</details>", client.get(f"/analysis?ids={ids}").text)[1]
    assert re.findall(r'href="/traces/(\w+)"', row) == list(problem.cases.values())


def test_a_problem_of_a_secondary_metric_has_cases(store):
    @evaluator(metrics=[Metric("main", threshold=0.5, primary=True), Metric("other", threshold=0.5)])
    def judge(outputs):
        return [{"key": "main", "score": 1.0}, {"key": "other", "score": 0.0}]

    rows = [{"inputs": {"question": str(n)}} for n in range(3)]
    (problem,) = analyze(evaluate(rows, lambda question: "", [judge], store=store, progress=False)).problems
    assert (problem.key, len(problem.cases)) == ("other", 3)
