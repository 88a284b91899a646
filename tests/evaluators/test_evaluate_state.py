"""What `resume` takes for the same objects: their plain state, but for what their own code changes."""

import threading
from dataclasses import dataclass, field

import pytest

from looped_cases import loop_over
from spanwise.evaluators import evaluate
from spanwise.evaluators.experiments import CannotResume
from spanwise.evaluators.interface import digest_code, list_untracked_state


@dataclass
class Retriever:
    k: int = 3
    filters: dict = field(default_factory=dict)


class App:
    def __init__(self, prompt, retriever=None, **settings):
        self.prompt, self.retriever, self.settings = prompt, retriever, settings
        self.calls, self.cache, self.api_key, self.lock = 0, {}, object(), threading.Lock()

    def __call__(self, q):
        self.calls += 1
        return self.answer(q)

    def answer(self, q):
        return f"{self.prompt} {q} {self.settings} {self.retriever}"

    def remember(self, q):
        self.cache[q] = q


class Slotted:
    __slots__ = ("k", "unset")

    def __init__(self, k):
        self.k = k

    def __call__(self, q):
        return q * self.k


def differing(one, other):
    before, after = digest_code(one), digest_code(other)
    return {name.split(".")[-1] for name in {**before, **after} if before.get(name) != after.get(name)}


@loop_over(
    ("one", "other", "names"),
    [
        (App("p1"), App("p2"), {"prompt"}),
        (App("p").answer, App("q").answer, {"prompt"}),
        (App("p", temperature=0), App("p", temperature=1), {"settings"}),
        (App("p", Retriever(3)), App("p", Retriever(4)), {"k"}),
        (App("p", Retriever(filters={"a": [1, {2}]})), App("p", Retriever(filters={"a": [1, {3}]})), {"filters"}),
        (App("p", [Retriever()]), App("p", None), {"retriever"}),
        (Slotted(1), Slotted(2), {"k"}),
        (App("p", b={2}, a=1), App("p", a=1, b={2}), set()),
    ],
)
def test_plain_state_counts(one, other, names):
    assert differing(one, other) == names


def test_what_the_code_itself_changes_does_not_count():
    one, other = App("p"), App("p")
    one("q")
    one.remember("q")
    assert differing(one, other) == set()


def test_secrets_do_not_count_and_no_value_is_kept():
    one, other = Slotted("sk-one-1234"), App("p")
    other.api_key = "sk-other"
    assert differing(other, App("p")) == set()
    assert "sk-one" not in repr(digest_code(one))


def test_closures_count_with_what_they_hold():
    def over(settings):
        return lambda q: q * settings["k"]

    def noting(calls):
        def task(q):
            calls.append(q)
            return q

        return task

    assert differing(over({"k": 1}), over({"k": 2})) == {"settings"}
    assert differing(noting([]), noting([1])) == set()


def test_state_that_refers_to_itself_or_is_huge_ends_the_walk():
    loop = App("p")
    loop.retriever, loop.settings["me"] = loop, loop.settings
    assert digest_code(loop) == digest_code(loop)
    huge = App("p", documents=list(range(100_000)))
    assert [told.split(".")[-1] for told in list_untracked_state(huge)] == ["lock (lock)", "settings (dict)"]


def test_no_code_of_an_object_is_run():
    class Lazy:
        @property
        def model(self):
            raise AssertionError("loaded")

        def __getattr__(self, name):
            raise AssertionError(name) if not name.startswith("__") else AttributeError(name)

        def answer(self, q):
            return q

    assert digest_code(Lazy().answer)


def test_resume_refuses_an_object_with_another_prompt_and_says_what_it_cannot_compare(store, capfd):
    def run(app, **options):
        return evaluate([{"q": 1}], app, name="x", resume=True, store=store, **options)

    run(App("p1"), progress=False)
    run(App("p1"))
    assert "cannot check whether these values have changed: " in (said := capfd.readouterr().err)
    assert "App().lock (lock)" in said
    with pytest.raises(CannotResume, match=r"the task's code changed: .*App\(\)\.prompt\. Its stored runs"):
        run(App("p2"), progress=False)
