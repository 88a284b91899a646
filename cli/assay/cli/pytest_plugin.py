"""The pytest plugin: `@pytest.mark.assay(dataset=…)` runs a test once per example and keeps an experiment of it.

Loaded into every pytest that runs where Assay is installed, so it imports nothing but pytest until a test is marked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from assay.collector.records import Example, Feedback
    from assay.collector.stores import Store
    from assay.evaluators import Evaluator
    from assay.evaluators.engine import OpenRun, Recorder

MARK = (
    "assay(dataset, name=None, evaluators=(), split=None, limit=None, store=None): run once per example of a dataset, "
    "whose fields (inputs, reference_outputs, …) and evaluators, by their ids, are arguments of the test; evaluators "
    "that are none look at the outputs when the test is over"
)


class EvaluatorFailed(Exception):
    """An evaluator that a test called raised an error itself."""


@dataclass
class Group:
    """The examples of one marked test function, and the experiment that its runs become."""

    name: str
    dataset: str
    where: str | None
    evaluators: tuple[Evaluator, ...]
    after: tuple[Evaluator, ...] = ()  # those of them that are no arguments: they look at each run when it is over
    store: Store | None = None
    recorder: Recorder | None = None

    def recording(self) -> Recorder:
        """The experiment, begun when the first test of the group runs."""
        if self.recorder is None:
            from assay.evaluators.engine import Recorder

            self.recorder = Recorder(self.opened(), self.name, self.dataset, self.evaluators)
        return self.recorder

    def opened(self) -> Store:
        """The store of the experiment."""
        if self.store is None:
            from assay.collector import connect

            self.store = connect(self.where)
        return self.store


@dataclass
class Current:
    """One test of a group: its example, and its run while it lasts."""

    group: Group
    example: Example
    run: OpenRun | None = None


@dataclass
class Scorer:
    """An evaluator as a test's argument: call it with the outputs (and whatever else it should see)."""

    evaluator: Evaluator
    current: Current
    feedback: list[Feedback] = field(default_factory=list)

    def __call__(self, outputs: Any = None, **more: Any) -> Any:
        """The score (or label) under the evaluator's key, None if it skipped; all of it is kept with the experiment."""
        if self.current.run is None:
            raise RuntimeError("an evaluator is called inside the test that it is an argument of")
        self.feedback = self.current.run.score(self.evaluator, outputs, **more)
        first = self.feedback[0]
        if first.error is not None:
            raise EvaluatorFailed(f"{first.key}: {first.error}")
        return first.label if first.score is None else first.score


_VERDICTS = (AssertionError, pytest.fail.Exception, pytest.skip.Exception)  # of the test, not errors of the run
_ARGUMENT = "_assay_current"
_GROUPS = pytest.StashKey[list[Group]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option: where experiments go."""
    parser.getgroup("assay").addoption("--assay-store", default=None, help="where experiments of marked tests go")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", MARK)
    config.stash[_GROUPS] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per example."""
    mark = metafunc.definition.get_closest_marker("assay")
    if mark is None:
        return
    from assay.collector.errors import StoreError

    __tracebackhide__ = True
    try:
        group, examples = _group(metafunc, **_settings(mark))
    except (StoreError, OSError, ValueError) as error:  # a mistyped name costs one line
        pytest.fail(f"{metafunc.function.__name__}: {error}", pytrace=False)
    metafunc.config.stash[_GROUPS].append(group)
    asked = _asked_for(metafunc.fixturenames, group)
    rows = [_arguments(asked, Current(group, example), group) for example in examples]
    ids = [str(example.metadata.get("name") or example.id[:12]) for example in examples]
    metafunc.fixturenames.append(_ARGUMENT)  # a parameter that only this plugin looks at
    metafunc.parametrize([*asked, _ARGUMENT], rows, ids=ids)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """The test's run: a root span around it, and whether it passed."""
    callspec = getattr(item, "callspec", None)
    current: Current | None = callspec.params.get(_ARGUMENT) if callspec else None
    if current is None:
        yield
        return
    name = getattr(item, "originalname", None) or item.name
    error: BaseException | None = None
    try:
        function = getattr(item, "function", None)
        with current.group.recording().run(name, current.example, current.group.after, function) as current.run:
            outcome = yield
            error = outcome.excinfo[1] if outcome.excinfo else None
            if not isinstance(error, pytest.skip.Exception):
                current.run.note("passed", error is None, None if error is None else _line(error))
            if error is not None and not isinstance(error, _VERDICTS):
                raise error
    except BaseException as raised:
        if raised is not error:  # else pytest knows it already
            raise
    finally:
        current.run = None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A table per experiment."""
    for group in config.stash.get(_GROUPS, []):
        if group.recorder is not None:
            terminalreporter.section(f"assay: {group.name}")
            terminalreporter.write_line(str(group.recorder.finish()).rstrip())
        if group.store is not None:
            group.store.close()


def _settings(mark: pytest.Mark) -> dict[str, Any]:
    known = dict(zip(("dataset", "name"), mark.args, strict=False)) | dict(mark.kwargs)
    if "dataset" not in known:
        raise pytest.UsageError("@pytest.mark.assay needs a dataset: a name, a path, or a list of examples")
    return known


def _group(
    metafunc: pytest.Metafunc,
    dataset: Any,
    name: str | None = None,
    evaluators: Iterable[Any] = (),
    split: str | None = None,
    limit: int | None = None,
    store: str | None = None,
) -> tuple[Group, list[Example]]:
    from assay.evaluators import as_evaluator, datasets

    given = metafunc.function.__name__
    known = [as_evaluator(judge) for judge in evaluators]
    known += [as_evaluator(id) for id in _ids(metafunc.fixturenames) if id not in {judge.key for judge in known}]
    after = tuple(judge for judge in known if judge.key not in metafunc.fixturenames and not judge.summary)
    group = Group(name or given, given, store or metafunc.config.getoption("--assay-store"), tuple(known), after)
    if isinstance(dataset, str) and not datasets.is_file(dataset):
        group.dataset = dataset
        examples = group.opened().examples(dataset)
    elif datasets.is_file(dataset):
        beside = Path(metafunc.module.__file__ or ".").parent / dataset
        path = beside if beside.exists() else Path(dataset)
        group.dataset, examples = path.stem, datasets.read(path)
    else:
        examples = datasets.read(dataset)
    return group, [example for example in examples if split is None or example.split == split][:limit]


def _ids(names: Iterable[str]) -> list[str]:
    """The arguments of a test that are ids of registered evaluators."""
    from assay.evaluators import names as registered

    known = set(registered())
    return [name for name in names if name in known]


def _asked_for(fixtures: Iterable[str], group: Group) -> list[str]:
    from assay.collector.records import Example

    ours = {field.name for field in fields(Example)} - {"id"} | {"example"} | {judge.key for judge in group.evaluators}
    return [name for name in fixtures if name in ours]


def _arguments(asked: Iterable[str], current: Current, group: Group) -> list[Any]:
    scorers = {judge.key: judge for judge in group.evaluators}
    values: list[Any] = []
    for name in asked:
        if name in scorers:
            values.append(Scorer(scorers[name], current))
        else:
            values.append(current.example if name == "example" else getattr(current.example, name))
    return [*values, current]


def _line(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
