"""Pytest plugin: runs a marked test once per example and records an experiment.

Every pytest run loads the plugin if Spanwise is installed, so it imports only pytest until a test is marked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spanwise.cli.xdist_coordinator import SharedExperiment, XdistCoordinator
    from spanwise.collector.records import Example, Feedback
    from spanwise.collector.stores import Store
    from spanwise.evaluators import Evaluator, Experiment
    from spanwise.evaluators.experiments import OpenRun, Recorder


MARK = (
    "spanwise(dataset, name=None, evaluators=(), split=None, limit=None, repetitions=1, min_pass=None, metadata=None, "
    "store=None): run the test once per example of a dataset. The fields of an example (inputs, reference_outputs, …) "
    "and the evaluators, by their ids, are arguments of the test. Evaluators that are not arguments score the outputs "
    "after the test. min_pass is the minimum share of runs that must pass"
)


class EvaluatorFailed(Exception):
    """Error in an evaluator that a test called."""


@dataclass
class MarkSettings:
    """Arguments of a mark. Raises `ValueError` for invalid ones."""

    dataset: Any
    name: str | None = None
    evaluators: Sequence[Any] = ()
    split: str | Sequence[str] | None = None
    limit: int | None = None
    repetitions: int = 1
    min_pass: float | None = None
    metadata: Mapping[str, Any] | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.evaluators, Iterable):
            raise ValueError(f"evaluators must be a list of evaluators, got {self.evaluators!r:.200}")
        self.evaluators = [self.evaluators] if isinstance(self.evaluators, str) else list(self.evaluators)
        if not isinstance(self.split, str | list | tuple | None):
            raise ValueError(f"split must be a name or a list of names, got {self.split!r:.200}")
        if self.limit is not None:
            _require_positive("limit", self.limit)
        _require_positive("repetitions", self.repetitions)
        share = self.min_pass
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
            raise ValueError(f"min_pass must be a share of all runs, above 0 and at most 1, got {share!r}")
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise ValueError(f"metadata must be a dict, got {self.metadata!r:.200}")


@dataclass
class ExampleGroup:
    """Examples of one marked test function, and the experiment that records its runs."""

    test: str  # node id of the test
    name: str
    dataset: str
    settings: MarkSettings
    evaluators: tuple[Evaluator, ...]
    after: tuple[Evaluator, ...]  # evaluators that are not arguments of the test; they score each run at its end
    coordinator: Any = None  # address of the coordinator in a worker of pytest-xdist
    version: int | None = None  # version of the stored dataset
    examples: Sequence[Example] | None = None  # all examples of a dataset that is not stored
    store: Store | None = None
    recorder: Recorder | None = None

    def recording(self) -> Recorder:
        """Return the recorder of the experiment, which starts when the first test of the group runs."""
        if self.recorder is None:
            from spanwise.evaluators.experiments import Recorder

            shared = self._join_shared_experiment()
            metadata = {**(self.settings.metadata or {}), **self._save_dataset()}
            self.recorder = Recorder(
                self.opened(),
                self.name,
                self.dataset,
                self.evaluators,
                dataset_version=self.version,
                repetitions=self.settings.repetitions,
                metadata=metadata,
                id=shared.id if shared else None,
                started_ns=shared.started_ns if shared else None,
            )
        return self.recorder

    def opened(self) -> Store:
        """Return the store of the experiment; in an xdist worker, the controller's store."""
        if self.store is None:
            from spanwise.cli.xdist_coordinator import ask_coordinator
            from spanwise.collector import connect

            where = self.settings.store
            self.store = connect(ask_coordinator(self.coordinator, "store", where) if self.coordinator else where)
        return self.store

    def _join_shared_experiment(self) -> SharedExperiment | None:
        """Return the controller's experiment that all xdist workers share; None without xdist."""
        if not self.coordinator:
            return None
        from spanwise.cli.xdist_coordinator import ask_coordinator

        whole, lost = _serialize_evaluators([evaluator for evaluator in self.evaluators if evaluator.summary])
        options = {"min_pass": self.settings.min_pass, "whole": whole, "lost": lost}
        arguments = (self.test, self.name, self.settings.store, options)
        shared: SharedExperiment = ask_coordinator(self.coordinator, "begin", *arguments)
        return shared

    def _save_dataset(self) -> dict[str, str]:
        """Save the examples that are given in the test file as a version of a dataset, to which the experiment then
        refers.

        Return the reason if that fails.
        """
        if self.examples is None or self.version is not None:
            return {}
        from spanwise.collector.errors import StoreError
        from spanwise.evaluators import datasets

        try:
            self.version = datasets.save(self.opened(), self.dataset, self.examples, replace=True).version
        except (StoreError, ValueError) as error:
            return {"dataset_unpinned": f"{type(error).__name__}: {error}"}
        return {}


@dataclass
class CurrentTest:
    """One test of a group: its example, and during the test its open run."""

    group: ExampleGroup
    example: Example
    repetition: int = 0
    run: OpenRun | None = None


@dataclass
class Scorer:
    """Evaluator that a test receives as an argument. It is called with the outputs, and any further fields of the
    case.
    """

    evaluator: Evaluator
    current: CurrentTest
    feedback: list[Feedback] = field(default_factory=list)

    def __call__(self, outputs: Any = None, **more: Any) -> Any:
        """Return the score (or label) under the evaluator's key; None if the evaluator skipped. All its feedback is
        stored in the experiment.
        """
        if self.current.run is None:
            raise RuntimeError("an evaluator can be called only inside the test that received it as an argument")
        self.feedback = self.current.run.score(self.evaluator, outputs, **more)
        first = self.feedback[0]
        if first.error is not None:
            raise EvaluatorFailed(f"{first.key}: {first.error}")
        return first.label if first.score is None else first.score


# exceptions that are outcomes of the test; they do not count as errors of the run
_TEST_OUTCOMES = (AssertionError, pytest.fail.Exception, pytest.skip.Exception)
_FAILED = (AssertionError, pytest.fail.Exception)
_ARGUMENT = "_spanwise_current"
_GROUPS = pytest.StashKey[list[ExampleGroup]]()
_COORDINATOR: pytest.StashKey[XdistCoordinator] = pytest.StashKey()  # set only in the xdist controller
_FINISHED: pytest.StashKey[list[FinishedExperiment]] = pytest.StashKey()


@dataclass
class FinishedExperiment:
    """Finished experiment for the terminal summary, with remarks, and the reason why it fails the session ("" if it does
    not).
    """

    experiment: Experiment
    remarks: Sequence[str]
    complaint: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the experiments' store."""
    parser.getgroup("spanwise").addoption(
        "--spanwise-store", default=None, help="store for the experiments of marked tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", MARK)
    config.stash[_GROUPS] = []


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the coordinator's address to a worker of pytest-xdist."""
    if _COORDINATOR not in node.config.stash:
        from spanwise.cli.xdist_coordinator import XdistCoordinator

        node.config.stash[_COORDINATOR] = XdistCoordinator()
    node.workerinput["spanwise"] = node.config.stash[_COORDINATOR].address


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Record that a worker crashed."""
    if error and _COORDINATOR in node.config.stash:
        node.config.stash[_COORDINATOR].crashed = True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one test per example and repetition."""
    mark = metafunc.definition.get_closest_marker("spanwise")
    if mark is None:
        return
    from spanwise.collector.errors import StoreError

    __tracebackhide__ = True
    try:
        group, examples = _make_group(metafunc, _read_mark(mark, metafunc.config))
    except (StoreError, OSError, ValueError) as error:  # so that a mistyped name is reported in one line
        pytest.fail(f"{metafunc.function.__name__}: {error}", pytrace=False)
    metafunc.config.stash[_GROUPS].append(group)
    from spanwise.collector.records import Example

    available = (
        {field.name for field in fields(Example)} - {"id", "evaluators"}
        | {"example"}
        | {judge.key for judge in group.evaluators}
    )
    arguments = [name for name in metafunc.fixturenames if name in available]
    repetitions = group.settings.repetitions
    rows, ids = [], []
    for example in examples:
        name = str(example.metadata.get("name") or example.id[:12])
        for repetition in range(repetitions):
            rows.append(_argument_values(arguments, CurrentTest(group, example, repetition), group))
            ids.append(name if repetitions == 1 else f"{name}-{repetition + 1}")
    metafunc.fixturenames.append(_ARGUMENT)  # passes the example to the hooks of this plugin, not to the test function
    metafunc.parametrize([*arguments, _ARGUMENT], rows, ids=ids)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Record the test's run with a root span, and whether it passed."""
    current = _current_test(item)
    if current is None:
        yield
        return
    name = getattr(item, "originalname", None) or item.name
    error: BaseException | None = None
    try:
        function = getattr(item, "function", None)
        recorder, after = current.group.recording(), current.group.after
        with recorder.run(name, current.example, after, function, current.repetition) as current.run:
            outcome = yield
            error = outcome.excinfo[1] if outcome.excinfo else None
            if not isinstance(error, pytest.skip.Exception):
                current.run.note("passed", error is None, None if error is None else _error_line(error))
            if error is not None and not isinstance(error, _TEST_OUTCOMES):
                raise error
    except BaseException as raised:
        if raised is not error:  # pytest already reports the test's own error
            raise
    finally:
        current.run = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Report a failed assertion as an xfail if the mark allows a share of failed runs (`min_pass`).

    The share is checked at the end. Any other exception fails the test.
    """
    outcome = yield
    report, current = outcome.get_result(), _current_test(item)
    if current is None or current.group.settings.min_pass is None or not report.failed or call.when != "call":
        return
    if call.excinfo is not None and isinstance(call.excinfo.value, _FAILED):
        report.outcome = "skipped"
        report.wasxfail = f"min_pass={current.group.settings.min_pass!r}: {_error_line(call.excinfo.value)}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Finish the experiments, and fail the session if too few runs passed. In xdist workers, the controller does
    this.
    """
    config = session.config
    if hasattr(config, "workerinput"):
        return
    stopped = bool(session.shouldfail or session.shouldstop) or session.exitstatus in _INTERRUPTED
    config.stash[_FINISHED] = finished = list(_finish_experiments(config, stopped))
    if any(experiment.complaint for experiment in finished) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print a table per experiment."""
    finished = config.stash.get(_FINISHED, [])
    if not finished:  # returns early, because the code below needs the collector, which may not be installed
        return
    from spanwise.collector.terminal_escaping import escape_line, escape_text

    for end in finished:
        terminalreporter.section(f"spanwise: {escape_line(end.experiment.name)}")
        for text in (str(end.experiment).rstrip(), *end.remarks):
            terminalreporter.write_line(escape_text(text))
        if end.complaint:
            terminalreporter.write_line(escape_text(end.complaint), red=True, bold=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the stores."""
    for group in config.stash.get(_GROUPS, []):
        if group.store is not None:
            group.store.close()
    if _COORDINATOR in config.stash:
        config.stash[_COORDINATOR].close()


_INTERRUPTED = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)


def _finish_experiments(config: pytest.Config, stopped: bool) -> Iterator[FinishedExperiment]:
    """Finish the experiments of this process, and those that the workers of pytest-xdist shared."""
    for group in config.stash.get(_GROUPS, []):
        if group.recorder is not None:
            experiment = group.recorder.finish("interrupted" if stopped else "finished")
            yield FinishedExperiment(experiment, (), _find_complaint(experiment, group.settings.min_pass))
    if _COORDINATOR not in config.stash:
        return
    coordinator = config.stash[_COORDINATOR]
    for shared, experiment in coordinator.finished("interrupted" if stopped or coordinator.crashed else "finished"):
        remarks = [
            f"{key} was not evaluated: under pytest-xdist, a set-level evaluator must be importable by its name"
            for key in shared.lost
        ]
        yield FinishedExperiment(experiment, remarks, _find_complaint(experiment, shared.min_pass))


def _find_complaint(experiment: Experiment, min_pass: float | None) -> str:
    """Return the reason why the experiment as a whole fails, or "".

    Reasons are an evaluator that failed on every run, and too few passed runs.
    """
    from spanwise.collector.terminal_escaping import escape_line

    summary = experiment.summary()
    for key, stats in summary.items():
        if stats.failed and not stats.n and not stats.labelled:
            why = escape_line(summary.why.get(key, "an error"))
            return f"{experiment.name}: {key} failed on every run that it evaluated ({stats.failed}): {why}"
    for key, feedback in summary.overall.items():
        if feedback.error is not None:
            return f"{experiment.name}: {key} failed: {escape_line(feedback.error)}"
    if min_pass is None:
        return ""
    passed = summary.get("passed")
    if passed is None or not passed.n or passed.mean is None:
        return f"{experiment.name}: no run passed or failed, and min_pass={min_pass!r}"
    share = f"{experiment.name}: {round(passed.mean * passed.n)} of {passed.n} runs passed ({passed.mean:.1%})"
    return f"{share}, fewer than min_pass={min_pass!r}" if passed.mean < min_pass - 1e-9 else ""


def _read_mark(mark: pytest.Mark, config: pytest.Config) -> MarkSettings:
    """Return the checked arguments of a mark. Raises `ValueError`."""
    from spanwise.tracer.suggestions import did_you_mean

    names = [field.name for field in fields(MarkSettings)]
    for name in mark.kwargs:
        if name not in names:
            hint = did_you_mean(name, names, form=" ({})")
            raise ValueError(f"@pytest.mark.spanwise has no option {name!r}{hint}; it takes {', '.join(names)}")
    if len(mark.args) > 2:
        raise ValueError(
            f"@pytest.mark.spanwise takes only dataset and name as positional arguments, got {mark.args[2]!r:.200}"
        )
    options = dict(zip(names, mark.args, strict=False)) | dict(mark.kwargs)
    if "dataset" not in options:
        raise ValueError("@pytest.mark.spanwise needs a dataset: a name, a path, or a list of examples")
    settings = MarkSettings(**options)
    return replace(settings, store=settings.store or config.getoption("--spanwise-store"))


def _require_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _make_group(metafunc: pytest.Metafunc, settings: MarkSettings) -> tuple[ExampleGroup, list[Example]]:
    from spanwise.evaluators import as_evaluator, datasets
    from spanwise.evaluators.interface import check_keys

    function, dataset = metafunc.function.__name__, settings.dataset
    known = [as_evaluator(judge) for judge in settings.evaluators]
    known += [
        as_evaluator(id) for id in _evaluator_ids(metafunc.fixturenames) if id not in {judge.key for judge in known}
    ]
    check_keys(known)
    after = tuple(judge for judge in known if judge.key not in metafunc.fixturenames and not judge.summary)
    coordinator = getattr(metafunc.config, "workerinput", {}).get("spanwise")
    test = metafunc.definition.nodeid
    group = ExampleGroup(test, settings.name or function, function, settings, tuple(known), after, coordinator)
    if isinstance(dataset, str) and not datasets.is_file(dataset):
        name, at, version = dataset.rpartition("@")
        if not (at and version.isdigit()):
            name, version = dataset, ""
        record = group.opened().dataset(name, int(version) if version else None)
        group.dataset, group.version = name, record.version
        examples = list(group.opened().examples(name, record.version))
    elif datasets.is_file(dataset):
        relative = Path(metafunc.module.__file__ or ".").parent / dataset
        path = relative if relative.exists() else Path(dataset)
        group.dataset, group.examples = path.stem, datasets.read(path)
        examples = list(group.examples)
    else:
        group.examples = examples = datasets.read(dataset)
    selected = [example for example in examples if datasets.in_split(example, settings.split)]
    if not selected:  # without examples, pytest would silently skip the test
        raise ValueError(f"the dataset has no examples{f' in split {settings.split!r}' if settings.split else ''}")
    return group, selected[: settings.limit]


def _serialize_evaluators(whole: Sequence[Evaluator]) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Return set-level evaluators as plain values that workers can import by name, and the keys of those that they
    cannot.
    """
    from spanwise.evaluators import from_dict

    plain, lost = [], []
    for evaluator in whole:
        try:
            from_dict(definition := evaluator.to_dict())
            plain.append(definition)
        except Exception:  # importing user code may raise anything
            lost.append(evaluator.key)
    return tuple(plain), tuple(lost)


def _current_test(item: pytest.Item) -> CurrentTest | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(_ARGUMENT) if callspec else None


def _evaluator_ids(names: Iterable[str]) -> list[str]:
    """Return those arguments of a test whose names are ids of registered evaluators."""
    from spanwise.evaluators import list_evaluators as registered

    # `judge` cannot be used without parameters, so a fixture of this name is the user's own
    known = set(registered()) - {"judge"}
    return [name for name in names if name in known]


def _argument_values(names: Iterable[str], current: CurrentTest, group: ExampleGroup) -> list[Any]:
    scorers = {judge.key: judge for judge in group.evaluators}
    values: list[Any] = []
    for name in names:
        if name in scorers:
            values.append(Scorer(scorers[name], current))
        else:
            values.append(current.example if name == "example" else getattr(current.example, name))
    return [*values, current]


def _error_line(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
