"""What `resume` takes for the same code: what the task reaches in its project, by name, and nothing else."""

import functools
import importlib
import json
import os
import subprocess
import sys

import pytest

from spanwise.evaluators import evaluate, evaluator, get_evaluator
from spanwise.evaluators.experiments import CannotResume
from spanwise.evaluators.interface import digest_code, list_untracked_state

TASK = """
import json
import shop_search as search
from shop_words import PROMPT, Style

calls = 0

def answer(q):
    global calls
    calls += 1
    return json.dumps(PROMPT.format(search.find(q), Style().loud(q), q in {"a", "b", "c"}))

def unrelated(outputs):
    return 1
"""
SEARCH = "LIMIT = 3\ndef find(q):\n    return [q] * LIMIT\n\ndef other():\n    return 1\n"
WORDS = "PROMPT = 'Say {} {}'\nclass Style:\n    mark = '!'\n    def loud(self, q):\n        return q + self.mark\n"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A project of three modules; write one anew and get the digests of its task."""
    monkeypatch.syspath_prepend(tmp_path)
    files = {"shop_task": TASK, "shop_search": SEARCH, "shop_words": WORDS}

    def digests(**changed):
        for name, text in {**files, **changed}.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            return digest_code(importlib.import_module("shop_task").answer)
        finally:
            sys.dont_write_bytecode = before

    yield digests
    for name in files:
        sys.modules.pop(name, None)


def differing(one, other):
    return {name for name in one | other if one.get(name) != other.get(name)}


@pytest.mark.parametrize(
    ("module", "before", "after", "names"),
    [
        ("shop_task", "json.dumps(P", "str(P", {"shop_task.answer"}),
        ("shop_search", "LIMIT = 3", "LIMIT = 4", {"shop_search.LIMIT"}),
        ("shop_search", "[q] *", "[q, q] *", {"shop_search.find"}),
        ("shop_words", "Say", "Tell", {"shop_task.PROMPT"}),
        ("shop_words", "'!'", "'?'", {"shop_words.Style.mark"}),
        ("shop_words", "q + self", "q + q + self", {"shop_words.Style.loud"}),
        ("shop_search", "return 1", "return 2", set()),
        ("shop_search", "def find(q):", "def find(q):\n    # a comment", set()),
        ("shop_task", "calls = 0", "calls = 7", set()),
        ("shop_task", "def unrelated(outputs):\n    return 1", "", set()),
    ],
)
def test_a_change_is_noticed_where_it_matters(shop, module, before, after, names):
    text = {"shop_task": TASK, "shop_search": SEARCH, "shop_words": WORDS}[module]
    assert before in text
    assert differing(shop(), shop(**{module: text.replace(before, after)})) == names


@pytest.mark.process
def test_the_digests_are_the_same_in_every_process(shop, tmp_path):
    shop()
    script = "import json, shop_task; from spanwise.evaluators.interface.fingerprint import digest_code as c; print(json.dumps(c(shop_task.answer)))"
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                cwd=tmp_path,
                capture_output=True,
                check=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
            ).stdout
        )
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert "shop_search.find" in found[0]
    assert not any(name.startswith("json") for name in found[0])


def test_arguments_and_closures_count():
    def task(k, q):
        return q * k

    def closing(k):
        return lambda q: q * k

    assert digest_code(functools.partial(task, 2)) == digest_code(functools.partial(task, 2))
    assert differing(digest_code(functools.partial(task, 2)), digest_code(functools.partial(task, 3)))
    assert differing(digest_code(closing(2)), digest_code(closing(3)))


def test_resume_names_what_changed_in_the_code(store):
    def task(k):
        return lambda q: q + k

    evaluate([{"q": 1}], task(1), name="x", store=store, progress=False)
    with pytest.raises(CannotResume, match=r"the task's code changed: .*<lambda>\.k\. Its stored runs"):
        evaluate([{"q": 1}], task(2), name="x", resume=True, store=store, progress=False)


def test_resume_compares_what_was_given_as_metadata(store):
    def run(**metadata):
        return evaluate([{"q": 1}], _same, name="x", metadata=metadata, store=store, resume=True, progress=False)

    first = run(k=3, tags=("a",))
    assert run(k=3, tags=("a",)).id == run().id == first.id
    with pytest.raises(CannotResume, match=r"metadata 'k' was 3 and is 5"):
        run(k=5, tags=("a",))


def _same(q):
    return q


def test_an_evaluator_that_changed_says_it_again(store):
    looked = []

    def scored(value):
        def look(outputs):
            looked.append(value)
            return value

        return evaluator(key="e")(look)

    first = evaluate([{"q": 1}, {"q": 2}], _same, [scored(0.0)], store=store, progress=False)
    assert first.evaluate([scored(0.0)], progress=False).summary()["e"].mean == 0.0
    assert first.evaluate([scored(1.0)], progress=False).summary()["e"].mean == 1.0
    assert first.evaluate([scored(1.0)], progress=False).summary()["e"].mean == 1.0
    assert looked == [0.0, 0.0, 1.0, 1.0]


def test_an_evaluator_with_other_parameters_says_it_again(store):
    first = evaluate([{"q": "abc"}], _same, [get_evaluator("regex", pattern="a")], store=store, progress=False)
    again = first.evaluate([get_evaluator("regex", pattern="z")], progress=False)
    assert (first.summary()["regex"].mean, again.summary()["regex"].mean) == (1.0, 0.0)


CONFIGURED = """
import dataclasses, enum

CONFIG, SEEN, LAST = {"prompt": "x"}, [], {}
Color = enum.Enum("Color", "RED")

@dataclasses.dataclass
class Style:
    mark: str = "!"
    marks = ["a"]

def remember(q, cache={}):
    global LAST
    LAST = {"q": q}
    SEEN.append(q)
    cache[q] = Color.RED

def answer(q, words=["b"]):
    remember(q)
    return CONFIG["prompt"] + Style.marks[0] + words[0]
"""


def test_containers_beside_the_code_are_compared_unless_it_changes_them(shop):
    found = shop(shop_task=CONFIGURED)
    changes = ('"x"', '"y"'), ('["a"]', '["c"]'), ('"b"', '"d"')
    changed = [shop(shop_task=CONFIGURED.replace(*change)) for change in changes]
    told = [{name for name in found if found[name] != one[name]} for one in changed]
    assert told == [{"shop_task.CONFIG"}, {"shop_task.Style.marks"}, {"shop_task.answer..words"}]
    answer = importlib.import_module("shop_task").answer
    answer("?")
    assert digest_code(answer) == changed[-1]
    assert list_untracked_state(answer) == []
