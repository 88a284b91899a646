"""Evaluation files of `spanwise eval`, and evaluators named on the command line."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import logging
import os
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson
import typer

from spanwise.cli.command_io import error_console, print_note
from spanwise.collector.errors import Refused
from spanwise.collector.statistics import TASK_OK
from spanwise.collector.stores import ComparisonOptions
from spanwise.tracer.module_loading import UncachedSourceLoader
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator


# Evaluators named on the command line: registry ids, functions in Python files, definition files.


def resolve_evaluator(named: str, pairs: Iterable[str] | None = None) -> Evaluator:
    """Return the evaluator called `exact`, `evals/mine.py:concise` or `polite.yaml`, with name=value parameters.

    In a file it may be a function, a class, or the result of `get_evaluator`, `judge` or `@evaluator`.

    Raises `Refused` for a missing name and for unknown parameters, and `ValueError` as `get_evaluator` does.
    """
    from spanwise.evaluators import from_dict, get_evaluator
    from spanwise.evaluators.interface import read_definition

    parameters = dict(map(_parse_parameter, pairs or []))
    file, _, name = named.rpartition(":")
    if is_definition_file(named):
        definition = read_definition(Path(named))
        defaults = definition.get("init_parameters") or {}
        return from_dict({**definition, "init_parameters": {**defaults, **parameters}})
    if is_evaluator_file(named):
        return _load_from_file(Path(file), name, parameters)
    return get_evaluator(named, **parameters)


def is_evaluator_file(named: str) -> bool:
    """Return whether the name refers to a file: `evals/mine.py:concise`, or a definition file."""
    file, colon, _ = named.rpartition(":")
    return bool(colon and file.endswith(".py")) or is_definition_file(named)


def is_definition_file(named: str) -> bool:
    """Return whether the name is that of a definition file, which holds the output of `to_dict`."""
    return named.endswith((".json", ".yaml", ".yml"))


def print_judge_endpoints(evaluators: Iterable[Evaluator]) -> None:
    """Print to stderr, once each, the endpoints to which the judges among these evaluators send text."""
    judges = [evaluator.asking for evaluator in evaluators if evaluator.asking is not None]
    print_endpoints(endpoint for judge in judges for endpoint in judge.where)


def print_endpoints(endpoints: Iterable[str]) -> None:
    """Print to stderr, once each, the endpoints that receive text."""
    for endpoint in dict.fromkeys(endpoints):
        print_note(f"text goes to {endpoint}")


def _load_from_file(file: Path, name: str, parameters: Mapping[str, Any]) -> Evaluator:
    from spanwise.evaluators import Evaluator, as_evaluator

    module = load_module(file)
    value = getattr(module, name, None)
    if not callable(value):
        known = [known for known, member in vars(module).items() if callable(member) and not known.startswith("_")]
        raise Refused(f"{str(file)!r} has no function {name!r}{did_you_mean(name, known)}")
    try:
        evaluator = as_evaluator(value(**parameters) if inspect.isclass(value) else value)
        # with a `spec`, the object is a registered class with parameters, such as a judge, and needs no `partial`
        if evaluator.spec is not None:
            return evaluator if inspect.isclass(value) else _change_parameters(evaluator, parameters)
        if parameters and not inspect.isclass(value):
            function = value.function if isinstance(value, Evaluator) else value
            inspect.signature(function).bind_partial(**parameters)
            evaluator = replace(evaluator, function=partial(function, **parameters))
    except TypeError as error:
        raise Refused(f"{file!s}:{name}: {error}") from error
    return replace(evaluator, origin={"type": f"{file.name}:{name}", "init_parameters": dict(parameters)})


def _change_parameters(evaluator: Evaluator, parameters: Mapping[str, Any]) -> Evaluator:
    """Return the evaluator with other parameters. Raises `TypeError` for an unknown one, and the evaluator's
    `ValueError`.
    """
    from spanwise.evaluators import as_evaluator

    if not parameters:
        return evaluator
    known = [field.name for field in dataclasses.fields(evaluator.function) if field.init]  # type: ignore[arg-type]
    for name in parameters:
        if name not in known:
            raise TypeError(f"it has no parameter {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}")
    changed = as_evaluator(dataclasses.replace(evaluator.function, **parameters))  # type: ignore[type-var]
    if "key" in parameters:
        return changed
    make = replace(evaluator.make, version=changed.version, parameters=changed.make.parameters)
    origin = {**evaluator.origin, "init_parameters": {**evaluator.origin["init_parameters"], **parameters}}
    return replace(
        evaluator,
        function=changed.function,
        version=changed.version,
        revision=changed.revision,
        make=make,
        origin=origin,
    )


def _parse_parameter(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise ValueError(f"a parameter must be name=value, got {pair!r}")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def load_module(file: Path) -> ModuleType:
    """Load a file as a module, with its folder importable as for `python FILE`."""
    loader = UncachedSourceLoader(file.stem, str(file))
    spec = importlib.util.spec_from_file_location(file.stem, file, loader=loader)
    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}")
    if spec is None or spec.loader is None:
        raise Refused(f"{str(file)!r} is not a Python file")
    sys.path.insert(0, str(file.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print_user_traceback(error, file)
        raise typer.Exit(1) from None
    return module


def print_user_traceback(error: BaseException, file: Path) -> None:
    """Print the traceback, starting at its first frame in the user's file. The frames before it are Spanwise's own."""
    lines = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(lines.stack) if Path(frame.filename).name == file.name), len(lines.stack))
    del lines.stack[:first]
    error_console.print("".join(lines.format()), end="", markup=False, highlight=False, soft_wrap=True)


# Evaluation files of `spanwise eval`: their discovery in a folder, and the definitions that they contain.

REQUIRED_NAMES = frozenset(("dataset", "evaluators"))
OPTION_NAMES = (
    *("metadata", "split", "timeout", "retries", "retry_on", "fixture"),
    *("seed", "fail_fast", "max_failures", "max_usd"),
)
_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules"))
_logger = logging.getLogger(__name__)

KeyStatus: TypeAlias = Literal["declared", "possible", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFile:
    """Loaded evaluation file. `settings` are the options of `evaluate()` that it defines."""

    path: Path
    text: str
    module: ModuleType
    evaluators: Sequence[Evaluator]
    summary_evaluators: Sequence[Evaluator]
    settings: Mapping[str, Any]
    margin: Mapping[str, float]
    primary: Sequence[str] | None

    @property
    def all_evaluators(self) -> list[Evaluator]:
        """Return all evaluators, set-level ones last."""
        return [*self.evaluators, *self.summary_evaluators]

    @property
    def reported_keys(self) -> set[str]:
        """Return the keys that the evaluators declare."""
        return {metric.key for evaluator in self.all_evaluators for metric in evaluator.metrics}

    @property
    def set_keys(self) -> set[str]:
        """Return the keys that only set-level evaluators declare. They have one score, not one per run."""
        return {
            metric.key
            for evaluator in self.all_evaluators
            for metric in evaluator.metrics
            if evaluator.summary or evaluator in self.summary_evaluators
        }

    def find_key(self, key: str) -> KeyStatus:
        """Return whether an evaluator declares a key, or may report it at run time.

        Registered evaluators declare all their keys, whereas a user's function or the task may return any. An
        undeclared key is therefore absent if it resembles a declared one, or if all evaluators declare theirs. It is
        possible in any case if the text of the file contains it.
        """
        known = {TASK_OK, *self.reported_keys}
        if key in known:
            return "declared"
        own_mentions = (key in self.margin) + (key in (self.primary or ()))  # `margin` and `primary` define no key
        if len(re.findall(rf"(?<!\w){re.escape(key)}(?!\w)", self.text)) > own_mentions:
            return "possible"
        closed = all(evaluator.spec is not None or len(evaluator.metrics) > 1 for evaluator in self.all_evaluators)
        return "absent" if closed or did_you_mean(key, known) else "possible"


def find_evaluation_files(path: Path) -> list[Path]:
    """Return the evaluation files of a folder and its subfolders, sorted; a file is returned as it is.

    An evaluation file binds `dataset` and `evaluators` at its top level. Files are parsed, not imported. Raises
    `Refused` if there are none, and if two have the same name, because experiments are named after their files.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in _iterate_python_files(path) if _is_evaluation(file)]
    if not found:
        raise Refused(f"no file in {str(path)!r} defines dataset and evaluators; name another folder or file")
    stems: defaultdict[str, list[Path]] = defaultdict(list)
    for file in found:
        stems[file.stem].append(file)
    for stem, files in stems.items():
        if len(files) > 1:
            raise Refused(
                f"{' and '.join(map(str, files[:2]))} have the same name {stem!r}, so their experiments could not be "
                "distinguished; rename one of them"
            )
    return found


def _iterate_python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED_FOLDERS
            and not Path(parent, name, "pyvenv.cfg").exists()  # a virtual environment
        )
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))


def _is_evaluation(file: Path) -> bool:
    source = file.read_bytes()
    try:
        names = set(_iterate_bound_names(ast.parse(source).body))
    except (SyntaxError, ValueError):
        # a file with a syntax error is an evaluation if it seems to be one: its import then reports the error
        names = {name for name in REQUIRED_NAMES if name.encode() in source}
    if missing := REQUIRED_NAMES - names:
        _logger.debug("%s is not an evaluation: it does not define %s", file, " and ".join(sorted(missing)))
    return not missing


def _iterate_bound_names(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind at their level, those in blocks such as `if` and `with` included."""
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.AnnAssign(value=None):
                pass
            case _:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.stmt):
                        yield from _iterate_bound_names([child])
                    elif isinstance(child, ast.ExceptHandler | ast.match_case):
                        yield from _iterate_bound_names(child.body)
                    else:
                        yield from (
                            node.id
                            for node in ast.walk(child)
                            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                        )


def load_evaluation_file(path: Path) -> EvaluationFile:
    """Import an evaluation file, and return its definitions.

    Raises `Refused` if the file cannot be imported, and the errors of invalid definitions.
    """
    try:
        module = load_module(path)
    except typer.Exit:  # its traceback has been printed
        raise Refused(f"{str(path)!r} could not be imported") from None
    except SystemExit as error:
        raise Refused(f"{str(path)!r} called sys.exit({error.code!r}) when it was imported") from None
    for name in ("evaluators", "dataset"):
        if not hasattr(module, name):
            raise Refused(f"{path} does not define {name!r}; it must define dataset, task and evaluators")
    return EvaluationFile(
        path=path,
        text=path.read_text("utf-8", "replace"),
        module=module,
        evaluators=_as_evaluators(module.evaluators),
        summary_evaluators=_as_evaluators(getattr(module, "summary_evaluators", ())),
        settings={name: getattr(module, name) for name in OPTION_NAMES if hasattr(module, name)},
        **_read_comparison_options(module, path),
    )


def _as_evaluators(listed: Any) -> list[Evaluator]:
    """Return the evaluators that a file lists. A single id is a list of one evaluator."""
    from spanwise.evaluators import as_evaluator

    return [as_evaluator(value) for value in ([listed] if isinstance(listed, str) else listed)]


def _read_comparison_options(module: ModuleType, path: Path) -> dict[str, Any]:
    margin, primary = getattr(module, "margin", None), getattr(module, "primary", None)
    if margin is not None and not isinstance(margin, Mapping):
        raise Refused(f"{path}: margin must be a dict such as {{'exact': 0.02}}, got {margin!r:.100}")
    keys = [primary] if isinstance(primary, str) else primary
    if keys is not None and not (
        isinstance(keys, list | tuple | set | frozenset) and all(isinstance(key, str) for key in keys)
    ):
        raise Refused(f"{path}: primary must be a list of keys such as ['exact'], got {primary!r:.100}")
    try:
        ComparisonOptions(margin=margin)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from None
    return {"margin": dict(margin or {}), "primary": None if keys is None else list(keys)}


def check_shared_imports(files: Sequence[EvaluationFile]) -> None:
    """Raise `Refused` if a file may have got a module of another file's folder, because both folders have one of this
    name.
    """
    folders = {file.path.parent.resolve() for file in files}
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if origin is None or "." in name or (home := Path(origin).resolve().parent) not in folders:
            continue
        if other := next((folder for folder in folders - {home} if (folder / f"{name}.py").exists()), None):
            raise Refused(
                f"{origin} was imported as {name!r}, but {other / f'{name}.py'} has the same name, and one process can "
                "import only one of them; rename one, or run the folders separately"
            )
