"""An experiment as a page of its own: what is on it, and that nothing on it is live."""

import re

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import evaluate, evaluator
from spanwise.evaluators.experiments import experiment_results

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


@pytest.fixture
def made(tmp_path):
    def answer(question):
        if question == "fails":
            raise ValueError(EVIL)
        return EVIL * (200 if question == "long" else 1)

    @evaluator(key="judged" + EVIL)
    def judged(outputs, inputs):
        if inputs["question"] == "unjudged":
            raise KeyError(EVIL)
        return {"score": 0.123456, "comment": EVIL}

    rows = [{"question": q, "expected": EVIL} for q in ("fine", "unjudged", "long", "fails")]
    with SQLiteStore(tmp_path / "a.db") as store:
        yield evaluate(rows, answer, [judged, "exact"], name=EVIL, store=store)


def test_a_page_escapes_everything_and_needs_nothing(made):
    written = made.to_html()
    assert "<script" not in written
    assert "<img" not in written
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*['\"]?(?:http|//)", written)
    assert written.count("&lt;script&gt;") > 10


def test_failures_come_first_and_long_texts_are_cut(made):
    written = made.to_html()
    places = [written.index(f"&quot;question&quot;: &quot;{q}&quot;") for q in ("fails", "unjudged", "fine", "long")]
    assert places == sorted(places)
    assert "0.1235" in written
    assert "characters)" in written


def test_a_page_says_how_many_of_its_rows_it_shows(made, monkeypatch):
    monkeypatch.setattr(experiment_results, "MAX_ROWS", 2)
    written = made.to_html()
    assert "The first 2 of 4 runs, failures first." in written
    assert "&quot;fine&quot;" not in written


def test_a_row_is_short_and_says_why_it_failed(made):
    rows = {row.inputs["question"]: row for row in made.rows()}
    assert rows["fails"].why.startswith("ValueError: ")
    assert "KeyError" in rows["unjudged"].why
    assert rows["fine"].why is None
    assert all(len(repr(row)) < 600 and "\n" not in repr(row) for row in rows.values())
    assert "<script" not in rows["fails"]._repr_html_()
